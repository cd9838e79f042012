"""What ``recipe.json`` and ``corpus.json`` may hold, checked when one is read."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=1 << 40)]


class RecipeFile(BaseModel):
    """``recipe.json``: the fields of `recipes.Recipe`, whose values are compared with those of the run, and what finished it."""

    model_config = ConfigDict(strict=True, extra="allow")

    name: str
    architecture: dict[str, Any] | None = None
    canvases: dict[str, Any] | None = None
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

    files: dict[Annotated[str, Field(pattern=r"^(train\.bin|held-out\.bin|tokenizer/tokenizer\.json)$")], Sha256]
    vocabulary: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    documents: list[CorpusDocument] = []
