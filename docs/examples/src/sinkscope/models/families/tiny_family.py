"""Tiny: a bidirectional Llama with some names of its own."""

from dataclasses import replace

from sinkscope.models.family import STOCK, Family

LLAMA = STOCK["llama"]

FAMILY = Family(
    "tiny",
    causal=False,
    sampler="leftmost",
    model_types=("tiny",),
    source="somebody/tiny, modeling_tiny.py",
    architectures=("TinyModel",),
    layout=replace(
        LLAMA,
        sizes={("width" if name == "hidden_size" else name): name for name in LLAMA.sizes},
        ignored=LLAMA.ignored | {"dropout"},
        tensors={
            "tokens.weight": "model.embed_tokens.weight",
            "blocks.{N}.query.weight": "model.layers.{N}.self_attn.q_proj.weight",
        },
    ),
    mask_text="<|mdm_mask|>",
)
