"""A2D: Llama, Qwen2 and Qwen3 that dllm trained on to diffuse, with transformers' own tensors and config keys."""

from sinkscope.models.family import Family

FAMILY = Family(
    "a2d",
    causal=False,
    sampler="a2d",
    model_types=(),
    source="ZHZisZZ/dllm, dllm/pipelines/a2d",
    mask_text="<|mask|>",
)
