"""What ``recipe.json`` and ``corpus.json`` may hold, checked when one is read."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from sinkscope.lab.canvases import CanvasMix
from sinkscope.lab.nulls import NullTask
from sinkscope.lab.recipes import Architecture, Recipe

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 40)]
Size = Annotated[int, Field(ge=1, le=1 << 12)]
Updates = Annotated[int, Field(ge=1, le=1 << 31)]


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
            raise ValueError("a hidden_size that is a whole and even number for each head, and heads that the kv_heads divide")
        return self


class CanvasFields(_Fields):
    """`canvases.CanvasMix`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    tokens: Annotated[int, Field(ge=1, le=1 << 24)] = CanvasMix.tokens
    lengths: Annotated[list[Annotated[int, Field(ge=2, le=1 << 20)]], Field(min_length=1)] = list(CanvasMix.lengths)
    weights: list[Annotated[FiniteFloat, Field(gt=0)]] = list(CanvasMix.weights)
    code_share: Annotated[FiniteFloat, Field(ge=0, le=1)] = CanvasMix.code_share
    templates: list[str] = []

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.weights) != len(self.lengths):
            raise ValueError("as many weights as lengths")
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
    whole_canvas_share: Annotated[FiniteFloat, Field(ge=0, le=1)] = Recipe.whole_canvas_share
    seed: Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)] = Recipe.seed
    sink_token: str = Recipe.sink_token
    start_from: str | None = None
    data: str | None = None
    text: bool = False
    nulls: NullFields | None = None
    first_token: Literal["bos", "text"] = Recipe.first_token
    snapshots: list[Annotated[int, Field(ge=0, le=1 << 31)]] = []
    command: str | None = None
    weights_sha256: Sha256 = "0" * 64


class CorpusDocument(BaseModel):
    """A document, as ``corpus.json`` lists it."""

    model_config = ConfigDict(strict=True, extra="allow")

    title: str
    held_out: bool
    tokens: Count


class CorpusFile(BaseModel):
    """``corpus.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    files: dict[Annotated[str, Field(pattern=r"^(train\.bin|held-out\.bin|tokenizer/tokenizer(_config)?\.json)$")], Sha256]
    vocabulary: Annotated[int, Field(ge=1, le=1 << 16)]
    documents: list[CorpusDocument] = []
