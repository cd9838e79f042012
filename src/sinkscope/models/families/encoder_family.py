"""BERT and ModernBERT that dllm trained on to diffuse; transformers' own network for masked tokens computes them."""

from sinkscope.models.family import Family

NAME = "encoder"
"""Name of the family."""
ENCODERS = {"bert": "BertForMaskedLM", "modernbert": "ModernBertForMaskedLM"}
"""The network of each ``model_type``, in `sinkscope.models.encoders`."""

FAMILY = Family(
    NAME,
    causal=False,
    sampler="a2d",
    model_types=(),  # known by their mask token, which their tokenizers name
    source="ZHZisZZ/dllm, examples/bert",
    mask_text="[MASK]",
)
