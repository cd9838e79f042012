"""What the files of an evaluation may hold, checked when one is read."""

from math import isclose
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Amount = Annotated[FiniteFloat, Field(ge=0)]
Removed = Annotated[FiniteFloat, Field(ge=0, le=1.001)]
"""A share of attention, whose columns are sums of rounded weights."""
Text = Annotated[str, Field(max_length=1 << 16)]


class ResultFields(BaseModel):
    """A result, see `results.Result`."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    model: Text
    task: Text
    hide: Annotated[str, Field(min_length=1, max_length=1 << 16)]
    n: Annotated[int, Field(ge=1, le=1 << 31)]
    correct: Count
    accuracy: Share
    interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    settings: dict[str, Any]
    weight_hash: Text
    versions: dict[str, str]
    device: Text
    dtype: Text
    protocol: Text | None = None
    measures: dict[str, FiniteFloat] = {}
    removed_share: Removed | None = None
    removed_share_committed: Removed | None = None
    hit_rate: Share | None = None
    data: Text = ""
    outcomes: Annotated[str, Field(pattern="^[01]*$")] = ""
    not_enforced: list[str] = []
    seconds: Amount = 0.0

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        low, high = self.interval
        if self.correct > self.n:
            raise ValueError(f"at most {self.n} correct answers of {self.n}, not {self.correct}")
        if not isclose(self.accuracy, self.correct / self.n, abs_tol=1e-6):
            raise ValueError(f"an accuracy of {self.correct}/{self.n}, not {self.accuracy}")
        if not low - 1e-6 <= self.accuracy <= high + 1e-6:
            raise ValueError(f"an interval around {self.accuracy}, not {low} to {high}")
        if self.hide == "none" and self.removed_share:
            raise ValueError(f"no attention removed where nothing is hidden, not {self.removed_share}")
        if self.outcomes and (len(self.outcomes), self.outcomes.count("1")) != (self.n, self.correct):
            raise ValueError(
                f"the outcomes of {self.n} problems, {self.correct} of them correct, "
                f"not of {len(self.outcomes)}, {self.outcomes.count('1')} of them correct"
            )
        return self


class ResultsFile(BaseModel):
    """``results.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    format: Literal[1]
    results: Annotated[list[ResultFields], Field(min_length=1, max_length=1 << 16)]


class ModelFields(BaseModel):
    """The model of an evaluation."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    name: Text
    weight_hash: Text
    dtype: Text


class RunFile(BaseModel):
    """``run.json``."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: ModelFields
    versions: dict[str, str]
    device: Text
    batch: Annotated[int, Field(ge=1, le=1 << 31)]


class TaskFile(BaseModel):
    """``task.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    task: Text
    problems: Annotated[int, Field(ge=1, le=1 << 31)]
    sampler: dict[str, Any]
    shots: Count | None = None
    chat: bool = False
    protocol: Text | None = None
    data: Text
