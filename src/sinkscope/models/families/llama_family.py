"""Causal models for comparison: Llama, Qwen2 and Qwen3, in transformers' own layout."""

from sinkscope.models.family import Family, PublishedShape

FAMILY = Family(
    "llama",
    causal=True,
    sampler="autoregressive",
    model_types=("llama", "qwen2", "qwen3"),
    source="transformers, LlamaForCausalLM",
    end_of_turn=128009,
    shapes=(
        PublishedShape(
            ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"), 8_030_261_248, 32, 4096, vocabulary=128256
        ),
    ),
)
