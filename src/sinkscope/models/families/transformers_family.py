"""Any other causal model of transformers, such as Gemma, Mistral, Phi, OLMo or GPT-2, with its own network."""

from sinkscope.models.any_causal import NAME
from sinkscope.models.family import Family

FAMILY = Family(
    NAME,
    causal=True,
    sampler="autoregressive",
    model_types=(),
    source="transformers, AutoModelForCausalLM",
)
