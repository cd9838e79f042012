"""What the lab can train, as frozen values; the resolved recipe is stored with every checkpoint."""

from dataclasses import dataclass, field
from typing import Literal

from sinkscope.errors import CallError
from sinkscope.lab.canvases import CanvasMix


@dataclass(frozen=True)
class Architecture:
    """The shape of a `transformers` Llama.

    Attributes:
        positions: ``rotary`` as Llama has them, or ``learned`` absolute ones (`sinkscope.models.learned_positions`).
    """

    layers: int = 6
    hidden_size: int = 192
    heads: int = 6
    kv_heads: int = 6
    intermediate_size: int = 512
    max_positions: int = 1024
    rope_theta: float = 10000.0
    positions: Literal["rotary", "learned"] = "rotary"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training run produces.

    Attributes:
        objective: ``masked_diffusion`` trains a bidirectional network, ``next_token`` a causal one, ``shifted_diffusion`` a
            bidirectional one whose logits predict the token to their right.
        updates: optimiser steps.
        learning_rate: peak; linear warm-up over ``warmup_share`` of the updates, then cosine to ``final_share`` of it.
        whole_canvas_share: share of rows in which questions are masked too (masked diffusion only).
        compile: compile the layers with `torch.compile`; faster, and rounds differently.
        sink_token: variant of the sink token, as `sinkscope.models.sink_token.VARIANTS` names them.
        start_from: model whose weights the body begins with; None begins from random ones.
        data: name and checksum of the text that is trained on; None is the lab's own.
    """

    name: str
    objective: Literal["masked_diffusion", "next_token", "shifted_diffusion"]
    updates: int
    architecture: Architecture = field(default_factory=Architecture)
    canvases: CanvasMix = field(default_factory=CanvasMix)
    learning_rate: float = 1.5e-3
    warmup_share: float = 0.02
    final_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    whole_canvas_share: float = 0.02
    seed: int = 0
    autocast: bool = True
    compile: bool = False
    log_every: int = 10
    validate_every: int = 500
    save_every: int = 250
    sink_token: str = "none"
    start_from: str | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise CallError(f"updates: expected at least 1, found {self.updates}")


SHORT = CanvasMix(tokens=1536, lengths=(48, 96), weights=(0.5, 0.5), code_share=0.0, templates=("buy", "give", "find"))
"""One addition or subtraction a problem, so that an arm of a comparison learns it in minutes on a core."""
ARMS = ("none", "token", "token-end", "token-2", "token-4", "token-zero-value", "logit", "off-by-one", "gate")


def _arm(variant: str) -> Recipe:
    """From scratch with a sink; all arms see the same batches and begin with the same body."""
    return Recipe(
        f"lab-sink-{variant}",
        "masked_diffusion",
        updates=4000,
        canvases=SHORT,
        sink_token=variant,
        validate_every=250,
        whole_canvas_share=0.0,
    )


def _shifted(name: str, variant: str) -> Recipe:
    """From the autoregressive model with the logit shift, as Dream was."""
    return Recipe(
        name,
        "shifted_diffusion",
        updates=1500,
        canvases=SHORT,
        learning_rate=7e-4,
        whole_canvas_share=0.0,
        sink_token=variant,
        start_from="lab-autoregressive",
        validate_every=250,
    )


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("lab-diffusion", "masked_diffusion", updates=7500),
        Recipe("lab-autoregressive", "next_token", updates=1500),
        *map(_arm, ARMS),
        _shifted("lab-shifted", "none"),
        _shifted("lab-shifted-token", "token"),
        Recipe(
            "lab-diffusion-learned-positions",
            "masked_diffusion",
            updates=2500,
            architecture=Architecture(positions="learned", max_positions=96),
            canvases=SHORT,
            validate_every=250,
            whole_canvas_share=0.0,
        ),
    )
}
