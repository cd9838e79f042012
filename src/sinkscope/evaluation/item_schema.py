"""What the item of a problem may hold, checked when it is read."""

from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationInfo, field_validator

from sinkscope.evaluation.result_schema import Count, Removed, Share

Seconds = Annotated[FiniteFloat, Field(ge=0, le=1 << 40)]
Operations = Annotated[int, Field(ge=0, le=1 << 80)]
Calls = Annotated[int, Field(ge=1, le=1 << 40)]


class _Item(BaseModel):
    """An item of any kind. Text and lists are as long as the file, which is bounded."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    run: str
    index: Count
    correct: bool
    reason: str
    text: str
    tokens: list[Count]
    seconds: Seconds


class EffectFields(BaseModel):
    """See `Effect.as_dict`."""

    model_config = ConfigDict(strict=True, extra="allow")

    removed_share: Removed | None = None
    removed_share_committed: Removed | None = None
    hit_rate: Share | None = None


class LikelihoodFields(BaseModel):
    """See `decoding.likelihood.Likelihood`; a standard error that is NaN is None, in older items NaN."""

    model_config = ConfigDict(strict=True, extra="forbid")

    total: float
    standard_error: float | None
    samples: Count
    tokens: Count
    greedy: bool | None
    method: str


class EvaluatedItem(_Item):
    """An item of `running.evaluate`."""

    beside: Count = 0
    prompt: str
    gold: str
    read: str | None
    not_enforced: list[str]
    measures: dict[str, bool] = {}
    effect: EffectFields | None = None
    steps: Count = 0
    likelihoods: list[LikelihoodFields] = []


def evaluated_fields(index: int) -> type[EvaluatedItem]:
    """Return the schema of an item of `running.evaluate`, the same for every problem."""
    return EvaluatedItem


class WorkFields(BaseModel):
    """See `decoding.work.Work`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    forwards: Calls
    rows: Calls
    projections: Operations
    attention: Operations
    mlp: Operations
    vocabulary: Operations
    total: Annotated[int, Field(ge=1, le=1 << 82)]

    @field_validator("total")
    @classmethod
    def _adds_up(cls, total: int, info: ValidationInfo) -> int:
        parts = [info.data.get(name, 0) for name in ("projections", "attention", "mlp", "vocabulary")]
        if total != sum(parts):
            raise ValueError(f"the sum of the multiply-adds, {sum(parts)}")
        return total


@cache
def compared_fields(prompt: int, vocabulary: int) -> type[_Item]:
    """Return the schema of an item of `cache_comparison.compare_caches` whose prompt has so many tokens."""

    class ComparedItem(_Item):
        beside: Count
        tokens: Annotated[list[Annotated[int, Field(ge=0, lt=vocabulary)]], Field(min_length=1)]
        canvas: Count
        work: WorkFields
        processor_seconds: Seconds
        on_cpu: bool = True
        peak_memory: Annotated[int, Field(ge=0, le=1 << 60)] | None

        @field_validator("canvas")
        @classmethod
        def _adds_up(cls, canvas: int, info: ValidationInfo) -> int:
            answer = len(info.data.get("tokens", ()))
            if canvas != prompt + answer:
                raise ValueError(f"{prompt} tokens of the prompt and {answer} of the answer")
            return canvas

    return ComparedItem
