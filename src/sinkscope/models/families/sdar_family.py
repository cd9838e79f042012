"""SDAR: a Qwen3 that was trained on to write block by block, each block by diffusion behind the finished ones."""

from dataclasses import replace

from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import NUMBERS, STOCK, TIED, UNROTATED, Fixed

QWEN3 = STOCK["qwen3"]

FAMILY = Family(
    "sdar",
    causal=False,
    sampler="sdar",
    model_types=("sdar",),
    source="JetAstra/SDAR, generate.py",
    architectures=("SDARForCausalLM",),
    network="sinkscope.models.block_causal:BlockCausalQwen3",
    tokenizer_classes=("Qwen2Tokenizer", "Qwen2TokenizerFast"),
    layout=replace(
        QWEN3,
        numbers=NUMBERS,
        passed=frozenset(),
        fixed={**QWEN3.fixed, **UNROTATED, "attention_bias": Fixed((False,), False)},
        optional=frozenset(),
        flags=TIED,
        # The hub's config.json names neither. All published chat models have blocks of 4; the mask is checked against
        # the tokenizer.
        absent={"block_size": 4, "mask_token_id": 151669},
        # Of training, and of the way the weights were converted.
        ignored=QWEN3.ignored
        | {"debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep"},
    ),
    mask_text="<|MASK|>",
    end_of_turn=151645,
    shapes=(
        PublishedShape(("JetLM/SDAR-4B-Chat",), 4_411_424_256, 36, 2560, vocabulary=151936),
        PublishedShape(("JetLM/SDAR-8B-Chat",), 8_190_735_360, 36, 4096, vocabulary=151936),
    ),
)
