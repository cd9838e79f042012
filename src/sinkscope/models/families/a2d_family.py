"""What dllm trained on to diffuse: A2D, a Llama, Qwen2 or Qwen3 with transformers' own tensors and config keys; and
encoders, BERT and ModernBERT, which transformers' own network for masked tokens computes.
"""

from sinkscope.models.family import Family

A2D = Family(
    "a2d",
    causal=False,
    sampler="a2d",
    model_types=(),
    source="ZHZisZZ/dllm, dllm/pipelines/a2d",
    mask_text="<|mask|>",
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
