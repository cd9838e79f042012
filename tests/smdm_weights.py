"""Weights of small networks under the names of paper 2's code (lit-gpt), drawn from seeds; the logits that its code
gives for them are in ``models/fixtures/smdm_logits.npz``.
"""

from dataclasses import dataclass

import numpy as np
import torch

VOCABULARY = 32000  # its code has the ids of mask and sink written into it
MASK, SINK = 32000, 32001
COLUMNS = slice(17, 32000, 799)  # of the logits in the fixture


@dataclass(frozen=True)
class Shape:
    """Of a network, in lit-gpt's words."""

    n_layer: int = 3
    n_head: int = 6
    n_query_groups: int = 2
    n_embd: int = 24
    intermediate_size: int = 40


SHAPE = Shape()
KINDS = {"none": 1, "token": 2, "gate": 1}  # rows of the embedding beyond the vocabulary


def lit_gpt_weights(kind: str, shape: Shape = SHAPE, vocabulary: int = VOCABULARY) -> dict[str, torch.Tensor]:
    """Sharp enough for attention to be far from even."""
    size, width, inner = shape.n_embd // shape.n_head, shape.n_embd, shape.intermediate_size
    shapes = {
        "lm_head.weight": (vocabulary, width),
        "transformer.wte.weight": (vocabulary + KINDS[kind], width),
        "transformer.ln_f.weight": (width,),
    }
    for layer in range(shape.n_layer):
        block = dict.fromkeys(("norm_1", "norm_2"), (width,)) | {"attn.proj": (width, width)}
        block["attn.attn"] = ((shape.n_head + 2 * shape.n_query_groups) * size, width)
        block |= {"mlp.swiglu.w1": (inner, width), "mlp.swiglu.w2": (inner, width), "mlp.swiglu.w3": (width, inner)}
        block |= {"attn.gate": (width, width)} if kind == "gate" else {}
        shapes |= {f"transformer.h.{layer}.{name}.weight": one for name, one in block.items()}
    generator = np.random.Generator(np.random.PCG64(20260119))
    drawn = {name: generator.standard_normal(shapes[name]) for name in sorted(shapes)}
    scaled = {
        name: 1 + 0.3 * values if values.ndim == 1 else values * (1.0 if "wte" in name else 0.35)
        for name, values in drawn.items()
    }
    return {name: torch.from_numpy(values.astype(np.float32)) for name, values in scaled.items()}


def canvas() -> torch.Tensor:
    """Two rows with masks among the tokens."""
    tokens = np.random.Generator(np.random.PCG64(7)).integers(0, VOCABULARY, (2, 19))
    tokens[:, 4::3] = MASK
    return torch.from_numpy(tokens)
