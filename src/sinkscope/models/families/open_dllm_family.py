"""Open-dLLM (Open-dCoder): a Qwen2 that was trained on to diffuse; its logits predict the next token."""

from collections.abc import Mapping
from typing import Any

from sinkscope.models.family import Family

CODE = "modeling_qwen2.Qwen2ForCausalLM"
"""What ``auto_map`` names in its folders; nothing else in their config.json tells them from a causal Qwen2."""


def is_open_dllm(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json is Open-dLLM's."""
    return config.get("model_type") == "qwen2" and CODE in (config.get("auto_map") or {}).values()


FAMILY = Family(
    "open_dllm",
    causal=False,
    sampler="open_dllm",
    model_types=(),  # known by its code's name, or by the family's in its config.json
    source="pengzhangzhi/Open-dLLM, veomni/models/transformers/qwen2",
    shift=True,
    mask_text="<M>",
)
