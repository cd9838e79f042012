"""Causal models for comparison: Llama, Qwen2 and Qwen3, and any other that transformers has, with its own network."""

from sinkscope.models.any_causal import NAME
from sinkscope.models.family import Family, PublishedShape

LLAMA_8B = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct")

LLAMA = Family(
    "llama",
    causal=True,
    sampler="autoregressive",
    model_types=("llama", "qwen2", "qwen3"),
    source="transformers, LlamaForCausalLM",
    shapes=(PublishedShape(LLAMA_8B, 8_030_261_248, 32, 4096, vocabulary=128256),),
)
OTHERS = Family(
    NAME, causal=True, sampler="autoregressive", model_types=(), source="transformers, AutoModelForCausalLM"
)
