"""What the file of a finished prompt may hold, checked when it is read. A schema knows the model, the prompt and the heads it is for.

A prompt has up to as many canvases as were asked for, and at least one; its file says how many, and has all their rows.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)

from sinkscope.roles.removal import MOST_HIDDEN
from sinkscope.roles.role_schema import Count

LARGEST = 3.5e38
"""Above every number of 32 bits, in which everything is measured."""
ROUNDED = 1e-3
"""How far a sum of attention may lie outside of 0 and 1."""
Amount = Annotated[FiniteFloat, Field(ge=0, le=LARGEST)]
Part = Annotated[FiniteFloat, Field(ge=-ROUNDED, le=1 + ROUNDED)]
TOGETHER = ("sink", "rowmass")
REMOVED = (*TOGETHER, "sink.zero", "rowmass.zero", "random", *(f"top.{many}" for many in MOST_HIDDEN))


def _ratio(value: float) -> float:
    """Return a ratio, which is NaN where the median is 0."""
    if not (math.isnan(value) or 0 <= value <= LARGEST):
        raise ValueError("a number from 0 upwards or NaN")
    return value


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


def _with_names(name: str, base: type[BaseModel], names: Sequence[str], optional: Sequence[str] = ()) -> Any:
    """Return a schema that has ``kl.NAME`` and ``kept.NAME`` for every name."""
    fields: dict[str, Any] = {}
    for kind, type_ in (("kl", Amount), ("kept", Part)):
        for one in names:
            alias = f"{kind}.{one}"
            fields[alias.replace(".", "_")] = (type_, Field(0.0 if one in optional else ..., alias=alias))
    return create_model(name, __base__=base, **fields)


class _Head(_Closed):
    """A head on a canvas, see `measurement.measure_heads`; what follows ``sink`` stands there where the head has one."""

    prompt: Count
    layer: Count
    head: Count
    sink: bool
    taken_sink: Part = Field(0.0, alias="taken.sink")
    taken_rowmass: Part = Field(0.0, alias="taken.rowmass")
    position: Count = 0
    token: Count = 0
    place: Part = 0.0
    share: Part = 0.0
    committed_share: Part = 0.0
    norm_ratio: Annotated[float, AfterValidator(_ratio)] = 0.0
    evenness: Part = 0.0
    to_substitutes: Part = 0.0
    to_itself: Part = 0.0
    to_text: Part = 0.0
    to_sink_token: Part = 0.0

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        always = {"prompt", "layer", "head", "sink"}
        measured = {
            name for name in type(self).model_fields if name not in always and "top_" not in name
        }  # a short canvas has fewer keys
        there = self.model_fields_set - always
        missing = measured - there if self.sink else set[str]()
        if missing:
            raise ValueError(
                f"all that is measured of a sink, {type(self).model_fields[min(missing)].alias or min(missing)} among it"
            )
        if there and not self.sink:
            raise ValueError("nothing measured of a head without a sink")
        return self


_HeadRow = _with_names("HeadRow", _Head, REMOVED, optional=REMOVED)
_TogetherRow = _with_names("TogetherRow", _Closed, TOGETHER)


def _file(least: int, most: int) -> type[_Closed]:
    """Return what every file holds beside its rows; `PromptStore.read` compares the first four."""

    class PromptFile(_Closed):
        run: str
        kind: str
        number: Count
        heads: list[list[Count]]
        canvases: Annotated[int, Field(ge=least, le=most)]
        checksum: str

    return PromptFile


def _check_count(rows: Sequence[Any], heads: int, info: ValidationInfo) -> None:
    """Raise an error unless there are rows of all canvases; where their number is wrong, another message says so."""
    canvases = info.data.get("canvases")
    if canvases is not None and len(rows) != canvases * heads:
        raise ValueError(f"{canvases * heads} rows, {heads} of each of {canvases} canvases")


def choose_fields(canvases: int, layers: int, heads: int) -> type[BaseModel]:
    """Return the schema of a prompt that chooses heads, see `measurement.sinks_by_head`."""
    a_layer = Annotated[list[bool], Field(min_length=heads, max_length=heads)]

    class Sinks(_Closed):
        sink: Annotated[list[a_layer], Field(min_length=layers, max_length=layers)]  # type: ignore[valid-type]

    class ChooseFile(_file(1, canvases)):  # type: ignore[misc]
        rows: Annotated[list[Sinks], Field(min_length=1, max_length=canvases)]

        @field_validator("rows")
        @classmethod
        def _all(cls, rows: list[Any], info: ValidationInfo) -> list[Any]:
            _check_count(rows, 1, info)
            return rows

    return ChooseFile


def judge_fields(canvases: int, prompt: int, heads: Sequence[tuple[int, int]], vocabulary: int) -> type[BaseModel]:
    """Return the schema of a prompt that judges heads, given as layer and head."""

    class JudgeFile(_file(1, canvases)):  # type: ignore[misc]
        rows: Annotated[list[_HeadRow], Field(max_length=canvases * len(heads))]  # type: ignore[valid-type]

        @field_validator("rows")
        @classmethod
        def _fits(cls, rows: list[Any], info: ValidationInfo) -> list[Any]:
            if [(row.layer, row.head) for row in rows] != [*heads] * (len(rows) // max(1, len(heads))) or (
                heads and not rows
            ):
                raise ValueError(f"one row a canvas for each of the {len(heads)} heads, in order")
            if any(row.prompt != prompt for row in rows):
                raise ValueError(f"rows of prompt {prompt}")
            if any(row.token >= vocabulary for row in rows):
                raise ValueError(f"tokens below {vocabulary}")
            _check_count(rows, len(heads), info)
            return rows

    return JudgeFile


def together_fields(canvases: int) -> type[BaseModel]:
    """Return the schema of a prompt on which several heads lose their sinks together, on exactly the canvases that judged."""

    class TogetherFile(_file(canvases, canvases)):  # type: ignore[misc]
        rows: Annotated[list[_TogetherRow], Field(min_length=1, max_length=canvases)]  # type: ignore[valid-type]

        @field_validator("rows")
        @classmethod
        def _all(cls, rows: list[Any], info: ValidationInfo) -> list[Any]:
            _check_count(rows, 1, info)
            return rows

    return TogetherFile
