"""What sinkscope knows about a family of checkpoints, as one frozen record each.

A record says how the network attends, how it is sampled and which special tokens it uses; nothing here runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sinkscope.errors import ModelError


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        name: as the field calls it.
        causal: each token sees only those before it.
        sampler: which loop of `sinkscope.decoding` writes with it.
        shift: the logits of a position predict the token after it, as in a causal model (Dream).
        recognised: ``model_type`` of the config.json files it claims.
        source: where its settings were read.
    """

    name: str
    causal: bool
    sampler: Literal["llada", "mmada", "dream", "autoregressive"]
    recognised: tuple[str, ...]
    source: str
    shift: bool = False


LLADA = Family("llada", causal=False, sampler="llada", recognised=("llama",), source="ML-GSAI/LLaDA, generate.py")
LLAMA = Family("llama", causal=True, sampler="autoregressive", recognised=("llama", "qwen2"), source="transformers, LlamaForCausalLM")

DREAM = Family("dream", causal=False, sampler="dream", recognised=("llama",), source="DreamLM/Dream, generation_utils.py", shift=True)
SMDM = Family(
    "smdm", causal=False, sampler="llada", recognised=("llama",), source="skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel_extratoken.py"
)
MARK = "sinkscope_family"  # in config.json, names the family of a folder in transformers' layout


def recognise(config: Mapping[str, Any], where: str) -> Family:
    """The family of a ``config.json``.

    Raises:
        ModelError: no family claims it.
    """
    model_type = config.get("model_type")
    causal = config.get("is_causal", True)
    if not isinstance(causal, bool):
        raise ModelError(f"{where}: is_causal in config.json is true or false, found {causal!r}")
    if config.get("quantization_config") is not None:
        raise ModelError(f"{where}: expected plain weights, found quantization_config in its config.json; convert them to bf16 first")
    if causal and model_type in LLAMA.recognised:
        return LLAMA
    if not causal and model_type in LLADA.recognised:
        if not isinstance(config.get("mask_token_id"), int):
            raise ModelError(
                f"{where}: a bidirectional model needs mask_token_id in its config.json, found {config.get('mask_token_id')!r}"
            )
        known = {family.name: family for family in (LLADA, DREAM, SMDM)}
        name = config.get(MARK, LLADA.name)
        if name not in known:
            raise ModelError(f"{where}: config.json: expected {MARK} to be one of {', '.join(known)}, found {name!r}")
        return known[name]
    code = " Its config.json names remote code (auto_map), which sinkscope never runs." if "auto_map" in config else ""
    raise ModelError(
        f"{where}: expected model_type llama or qwen2 (causal), or llama with is_causal false and a mask_token_id; "
        f"found model_type {model_type!r}, is_causal {causal}.{code}"
    )
