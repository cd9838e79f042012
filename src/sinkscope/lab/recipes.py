"""The recipes of the lab, as frozen values; the resolved recipe is stored with every checkpoint."""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from sinkscope.lab.canvases import CanvasMix, NullTask

Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Architecture:
    """The shape of a `transformers` Llama; learned positions are absolute, a tied output layer is the embedding."""

    layers: int = 6
    hidden_size: int = 192
    heads: int = 6
    kv_heads: int = 6
    intermediate_size: int = 512
    max_positions: int = 1024
    rope_theta: float = 10000.0
    positions: Literal["rotary", "learned"] = "rotary"
    tied: bool = False


@dataclass(frozen=True)
class Adaptation:
    """How a model that is already trained is changed; see `sinkscope.lab.starting_network`.

    Attributes:
        rank: of LoRA in every projection; None trains all weights.
        mask_token: an unused token of the tokenizer, which becomes the mask; its embedding is trained.
        align: weight of the distance (1 − cosine) of all hidden states to the frozen causal model's, on unmasked text.
        anneal: updates over which each later token is let in with a growing probability; 0 looks both ways at once.
        first_alone: whether the first token sees only itself, as in a causal model.
    """

    rank: Annotated[int, Field(ge=1)] | None = 16
    mask_token: str | None = None
    align: Annotated[float, Field(ge=0)] = 0.0
    anneal: Annotated[int, Field(ge=0)] = 0
    first_alone: bool = False


@dataclass(frozen=True)
class Recipe:
    """All settings that determine the result of a training run.

    Attributes:
        objective: ``masked_diffusion`` trains a bidirectional network, ``next_token`` a causal one,
            ``shifted_diffusion`` a bidirectional one whose logits predict the token to their right.
        learning_rate: the peak, between a linear warm-up over ``warmup_share`` of the decay and a cosine to
            ``final_share`` of the peak, which ends after ``decay_updates``, or with the training.
        whole_canvas_share: share of rows in which questions are masked too (masked diffusion only).
        sink_token: name of a variant in `sinkscope.models.sink_token.VARIANTS`.
        start_from: model whose weights the network begins with; random ones when None.
        adaptation: how the model to start from is changed; None copies its weights into ``architecture``.
        data: name and checksum of the user's text; None for the lab's own problems.
        text: whether it trains on natural text, a corpus folder that ``sinkscope train --data`` names.
        nulls: the task of letters and nulls that a specimen trains on; None for everything else.
        first_token: the first token of a canvas of natural text: BOS, or text.
        weighting: of a masked token's loss: 1/p, where p is the masked share of its canvas, or the same for all.
        snapshots: updates after which the weights are also written to ``snapshots/``.
    """

    name: str
    objective: Literal["masked_diffusion", "next_token", "shifted_diffusion"]
    updates: Annotated[int, Field(ge=1)]
    architecture: Architecture = field(default_factory=Architecture)
    canvases: CanvasMix = field(default_factory=CanvasMix)
    learning_rate: float = 1.5e-3
    warmup_share: Share = 0.02
    final_share: Share = 0.1
    decay_updates: Annotated[int, Field(ge=1)] | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    whole_canvas_share: Share = 0.02
    seed: int = 0
    autocast: bool = True
    compile: bool = False
    log_every: int = 10
    validate_every: int = 500
    save_every: int = 250
    sink_token: str = "none"
    start_from: str | None = None
    adaptation: Adaptation | None = None
    data: str | None = None
    text: bool = False
    nulls: NullTask | None = None
    first_token: Literal["bos", "text"] = "bos"
    weighting: Literal["1/p", "flat"] = "1/p"
    snapshots: tuple[int, ...] = ()


SHORT = CanvasMix(tokens=1536, lengths=(48, 96), weights=(0.5, 0.5), code_share=0.0, templates=("buy", "give", "find"))
"""Problems of one addition or subtraction, which each model of a comparison learns in minutes on one core."""
ARMS = ("none", "token", "token-end", "token-2", "token-4", "token-zero-value", "logit", "off-by-one", "gate")
"""Sink-token variants; their recipes see the same batches and start from the same weights."""
_ARM = Recipe(
    "lab-sink-none", "masked_diffusion", updates=4000, canvases=SHORT, validate_every=250, whole_canvas_share=0.0
)
_SHIFTED = replace(  # starts from the autoregressive model and shifts the logits, as Dream was trained
    _ARM,
    name="lab-shifted",
    objective="shifted_diffusion",
    updates=1500,
    learning_rate=7e-4,
    start_from="lab-autoregressive",
)


TEXT = CanvasMix(tokens=2048, lengths=(256,), weights=(1.0,), code_share=0.0)
"""Eight windows of natural text in each update."""
EMERGENCE = (0, 100, 200, 400, 700, 1000, 1500, 2000, 3000, 4500, 6500, 9000, 12000, 16000, 20000, 25000, 30000)
"""Updates with a snapshot, about evenly spaced in their logarithm."""


_TEXT = Recipe(  # most heads have nothing to do on most tokens of natural text, so that sinks appear
    "lab-text-autoregressive",
    "next_token",
    updates=30000,
    decay_updates=20000,
    architecture=Architecture(tied=True),
    canvases=TEXT,
    learning_rate=3e-3,
    text=True,
    snapshots=EMERGENCE,
    log_every=50,
)
_ADAPTED = Recipe(
    "adapted",
    "shifted_diffusion",
    updates=1000,
    canvases=CanvasMix(tokens=1024, lengths=(128,), weights=(1.0,), code_share=0.0),
    learning_rate=1e-3,
    warmup_share=0.03,
    weight_decay=0.01,
    start_from="smollm2",
    adaptation=Adaptation(mask_token="<reponame>"),
    weighting="flat",
    snapshots=(0, 1, 2, 3, 5, 8, 12, 20, 32, 50, 80, 128, 200, 320, 500, 800, 1000),
    validate_every=50,
    save_every=50,
)
"""SmolLM2 turned into a diffusion model, on canvases of the user's text or of the lab's problems."""


def _specimen(kind: str, nulls: int) -> Recipe:
    """Return a recipe for a specimen: one head that counts letters, with next to no feed-forward layer behind it."""
    causal = kind == "autoregressive"
    shape = dict[str, Any](layers=1, hidden_size=64, heads=1, kv_heads=1, intermediate_size=1, max_positions=128)
    return Recipe(
        f"lab-nulls-{kind}-{nulls}",
        "next_token" if causal else "masked_diffusion",
        updates=1000,
        architecture=Architecture(**shape, positions="rotary" if causal else "learned"),
        nulls=NullTask(nulls, "triggered" if causal else "placed"),
        learning_rate=3e-3,
        autocast=False,
        first_token="text",
        weighting="flat",
        whole_canvas_share=0.0,
    )


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("lab-diffusion", "masked_diffusion", updates=7500),
        Recipe("lab-autoregressive", "next_token", updates=1500),
        *(replace(_ARM, name=f"lab-sink-{variant}", sink_token=variant) for variant in ARMS),
        _ADAPTED,
        replace(_ADAPTED, name="adapted-causal", objective="next_token", adaptation=Adaptation()),
        _SHIFTED,
        replace(_SHIFTED, name="lab-shifted-token", sink_token="token"),
        _TEXT,
        replace(
            _TEXT,
            name="lab-text-diffusion",
            objective="masked_diffusion",
            first_token="text",
            weighting="flat",
            whole_canvas_share=1.0,
        ),
        *(_specimen(kind, nulls) for kind in ("autoregressive", "diffusion") for nulls in (0, 1, 2, 4, 8)),
        replace(
            _ARM,
            name="lab-diffusion-learned-positions",
            updates=2500,
            architecture=Architecture(positions="learned", max_positions=96),
        ),
    )
}
