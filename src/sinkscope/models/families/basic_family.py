"""Networks as transformers has them: causal ones for comparison; and what dllm trained on to diffuse, A2D, a Llama,
Qwen2 or Qwen3, and encoders, BERT and ModernBERT.
"""

from sinkscope.models.any_causal import NAME
from sinkscope.models.family import Family, PublishedShape

A2D = Family(
    "a2d", causal=False, sampler="a2d", model_types=(), source="ZHZisZZ/dllm, dllm/pipelines/a2d", mask_text="<|mask|>"
)
ENCODER = Family(
    "encoder",
    causal=False,
    sampler="a2d",
    model_types=(),  # known by their mask token, which their tokenizers name
    source="ZHZisZZ/dllm, examples/bert",
    mask_text="[MASK]",
)
ENCODERS = {"bert": "BertForMaskedLM", "modernbert": "ModernBertForMaskedLM"}
"""The network of each ``model_type``, in `sinkscope.models.networks`."""

LLAMA = Family(
    "llama",
    causal=True,
    sampler="autoregressive",
    model_types=("llama", "qwen2", "qwen3"),
    source="transformers, LlamaForCausalLM",
    shapes=(PublishedShape("meta-llama/Llama-3.1-8B", 8_030_261_248, 32, 4096, vocabulary=128256),),
)
OTHERS = Family(
    NAME, causal=True, sampler="autoregressive", model_types=(), source="transformers, AutoModelForCausalLM"
)
