"""MMaDA: LLaDA with codes of images after the text tokens, which text never uses."""

from collections.abc import Mapping
from typing import Any

from sinkscope.models.families.llada_family import HEADERS, header_template
from sinkscope.models.family import Family, PublishedShape
from sinkscope.models.layouts import MMADA_KEYS, PUBLISHED

VOCABULARY = 134656
"""Text tokens, special tokens and codes of images."""


def has_image_codes(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json that says ``llada`` is MMaDA's: by its class, its keys or its vocabulary."""
    rows = [config.get(key) for key in ("embedding_size", "vocab_size", "new_vocab_size")]
    named = (config.get("architectures") or []) == ["MMadaModelLM"]
    return config.get("model_type") == "llada" and bool(VOCABULARY in rows or MMADA_KEYS & set(config) or named)


FAMILY = Family(
    "mmada",
    causal=False,
    sampler="mmada",
    model_types=("mmada",),
    source="Gen-Verse/MMaDA, generate.py",
    layout=PUBLISHED["mmada"],
    architectures=("LLaDAModelLM", "MMadaModelLM"),
    claims=has_image_codes,
    mask_text="<|mdm_mask|>",
    end_of_turn=126348,
    chat_template=header_template("\n"),
    chat_tokens=HEADERS,
    shapes=(
        PublishedShape(
            ("Gen-Verse/MMaDA-8B-Base", "Gen-Verse/MMaDA-8B-MixCoT"), 8_082_690_048, 32, 4096, vocabulary=VOCABULARY
        ),
    ),
)
