"""What ``recipe.json`` and ``corpus.json`` may hold, checked when one is read; a recipe is checked by the same before it is trained."""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator
from pydantic_core import PydanticCustomError

from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.nulls import NullTask
from sinkscope.lab.recipes import Architecture, Recipe
from sinkscope.lab.word_problems import TEMPLATES

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Size = Annotated[int, Field(ge=1, le=1 << 12)]
Updates = Annotated[int, Field(ge=1, le=1 << 31)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Beta = Annotated[FiniteFloat, Field(ge=0, lt=1)]


def _wrong(expected: str, found: str) -> PydanticCustomError:
    """Return the error of fields that do not fit each other."""
    return PydanticCustomError("value_error", "{error}", {"error": expected, "found": found})


class _Fields(BaseModel):
    """An object whose fields are all optional: recipes of earlier versions lack some, and their runs used today's defaults."""

    model_config = ConfigDict(strict=True, extra="allow")


class ArchitectureFields(_Fields):
    """`recipes.Architecture`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    layers: Annotated[int, Field(ge=1, le=1 << 12)] = Architecture.layers
    hidden_size: Annotated[int, Field(ge=1, le=1 << 16)] = Architecture.hidden_size
    heads: Size = Architecture.heads
    kv_heads: Size = Architecture.kv_heads
    intermediate_size: Annotated[int, Field(ge=1, le=1 << 18)] = Architecture.intermediate_size
    max_positions: Annotated[int, Field(ge=1, le=1 << 24)] = Architecture.max_positions
    rope_theta: Annotated[FiniteFloat, Field(gt=0)] = Architecture.rope_theta
    positions: Literal["rotary", "learned"] = Architecture.positions
    tied: bool = Architecture.tied

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.hidden_size % self.heads or self.hidden_size // self.heads % 2 or self.heads % self.kv_heads:
            expected = "a hidden_size that is a whole and even number for each head, and heads that the kv_heads divide"
            raise _wrong(expected, f"hidden_size {self.hidden_size}, heads {self.heads} and kv_heads {self.kv_heads}")
        return self


class CanvasFields(_Fields):
    """`canvases.CanvasMix`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tokens: Annotated[int, Field(ge=1, le=1 << 24)] = CanvasMix.tokens
    lengths: Annotated[list[Annotated[int, Field(ge=2, le=1 << 20)]], Field(min_length=1)] = list(CanvasMix.lengths)
    weights: list[Annotated[FiniteFloat, Field(gt=0)]] = list(CanvasMix.weights)
    code_share: Share = CanvasMix.code_share
    templates: list[Literal[*(template.name for template in TEMPLATES)]] = []  # pyright: ignore[reportInvalidTypeForm]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.weights) != len(self.lengths):
            raise _wrong("as many weights as lengths", f"{len(self.weights)} and {len(self.lengths)}")
        if not math.isfinite(sum(self.weights)):
            raise _wrong("weights whose sum is finite", f"{sum(self.weights)}")
        return self


class NullFields(_Fields):
    """`nulls.NullTask`, which has bounds of its own."""

    model_config = ConfigDict(strict=True, extra="forbid")

    nulls: int
    answers: Literal["triggered", "placed"]
    front: int = NullTask.front
    body: int = NullTask.body
    rows: int = NullTask.rows


class RecipeFile(_Fields):
    """``recipe.json``: the fields of `recipes.Recipe`, whose values are compared with those of the run, and what finished it."""

    name: Annotated[str, Field(max_length=200)]
    objective: Literal["masked_diffusion", "next_token", "shifted_diffusion"]
    updates: Updates
    architecture: ArchitectureFields = ArchitectureFields()
    canvases: CanvasFields = CanvasFields()
    learning_rate: Annotated[FiniteFloat, Field(ge=0)] = Recipe.learning_rate
    warmup_share: Share = Recipe.warmup_share
    final_share: Share = Recipe.final_share
    decay_updates: Updates | None = None
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)] = list(Recipe.betas)
    weight_decay: Annotated[FiniteFloat, Field(ge=0)] = Recipe.weight_decay
    clip: Annotated[FiniteFloat, Field(ge=0)] = Recipe.clip
    whole_canvas_share: Share = Recipe.whole_canvas_share
    seed: Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)] = Recipe.seed
    autocast: bool = Recipe.autocast
    compile: bool = Recipe.compile
    log_every: Updates = Recipe.log_every
    validate_every: Updates = Recipe.validate_every
    save_every: Updates = Recipe.save_every
    sink_token: str = Recipe.sink_token
    start_from: str | None = None
    data: str | None = None
    text: bool = False
    nulls: NullFields | None = None
    first_token: Literal["bos", "text"] = Recipe.first_token
    weighting: Literal["1/p", "flat"] = Recipe.weighting
    snapshots: list[Annotated[int, Field(ge=0, le=1 << 31)]] = []
    command: str | None = None
    weights_sha256: Sha256 = "0" * 64

    @model_validator(mode="after")
    def _has_positions(self) -> Self:
        shape, own = self.architecture, self.nulls
        if own is None and self.data is None and not self.text and self.canvases.tokens < max(self.canvases.lengths):
            raise _wrong(
                "canvases.tokens for a canvas of the longest length",
                f"{self.canvases.tokens} and {max(self.canvases.lengths)}",
            )
        if own is not None and self.seed < 0:
            raise _wrong("a seed from 0 upwards with nulls, which draw prompts and validate below", str(self.seed))
        longest = max(self.canvases.lengths) if own is None else own.front + own.nulls + own.body
        if shape.positions == "learned" and shape.max_positions < longest:
            raise _wrong(
                f"architecture.max_positions from {longest} upwards, learned ones for a whole canvas",
                str(shape.max_positions),
            )
        return self


class CorpusDocument(BaseModel):
    """A document, as ``corpus.json`` lists it."""

    model_config = ConfigDict(strict=True, extra="allow")

    title: str
    held_out: bool
    tokens: Count


class CorpusFile(BaseModel):
    """``corpus.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    files: dict[
        Annotated[str, Field(pattern=r"^(train\.bin|held-out\.bin|tokenizer/tokenizer(_config)?\.json)$")], Sha256
    ]
    vocabulary: Annotated[int, Field(ge=1, le=1 << 16)]
    documents: list[CorpusDocument] = []
