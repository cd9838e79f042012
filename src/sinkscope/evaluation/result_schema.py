"""What the files of an evaluation may hold, checked when one is read."""

from math import isclose
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from sinkscope.evaluation.paired_tests import wilson_interval

Count = Annotated[int, Field(ge=0, le=1 << 40)]
Positive = Annotated[int, Field(ge=1, le=1 << 31)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Amount = Annotated[FiniteFloat, Field(ge=0)]
Removed = Annotated[FiniteFloat, Field(ge=0, le=1.001)]
"""A share of attention, whose columns are sums of rounded weights."""
Text = Annotated[str, Field(max_length=1 << 16)]


class SettingsFields(BaseModel):
    """The settings that every sampler means alike; others are its own."""

    model_config = ConfigDict(strict=True, extra="allow")

    length: Positive | None = None
    steps: Positive | None = None
    block: Positive | None = None
    batch: Positive | None = None
    shots: Count | None = None
    temperature: Amount | None = None


class ResultFields(BaseModel):
    """A result, see `results.Result`."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    model: Text
    task: Text
    hide: Annotated[str, Field(min_length=1, max_length=1 << 16)]
    n: Positive
    correct: Count
    accuracy: Share
    interval: Annotated[list[Share], Field(min_length=2, max_length=2)]
    settings: SettingsFields
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
    config_hash: Text = ""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.correct > self.n:
            raise ValueError(f"at most {self.n} correct answers of {self.n}, not {self.correct}")
        if not isclose(self.accuracy, self.correct / self.n, abs_tol=1e-6):
            raise ValueError(f"an accuracy of {self.correct}/{self.n}, not {self.accuracy}")
        expected = wilson_interval(self.correct, self.n)
        if not all(isclose(*ends, abs_tol=5e-3) for ends in zip(self.interval, expected, strict=True)):
            between = "Wilson's interval of {}/{}, {:.6g} to {:.6g}, not {:.6g} to {:.6g}"
            raise ValueError(between.format(self.correct, self.n, *expected, *self.interval))
        if self.hide == "none" and (removed := self.removed_share or self.removed_share_committed):
            raise ValueError(f"no attention removed where nothing is hidden, not {removed}")
        if self.hide == "none" and self.hit_rate is not None:
            raise ValueError(f"no hit rate where nothing is hidden, not {self.hit_rate}")
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
    config_hash: Text = ""
    dtype: Text


class RunFile(BaseModel):
    """``run.json``."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    model: ModelFields
    versions: dict[str, str]
    device: Text
    batch: Positive


class TaskFile(BaseModel):
    """``task.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    task: Text
    problems: Positive
    sampler: dict[str, Any]
    shots: Count | None = None
    chat: bool = False
    protocol: Text | None = None
    data: Text


class ComparedRow(BaseModel):
    """A row of ``caches.json``: what came of one policy on one task."""

    model_config = ConfigDict(strict=True, extra="allow")

    task: Text
    policy: Text
    n: Positive


class ComparisonFile(BaseModel):
    """``caches.json``."""

    model_config = ConfigDict(strict=True, extra="allow")

    rows: list[ComparedRow]
