"""What ``roles.json`` may hold, checked when it is read."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from sinkscope.roles.verdict import Role

Count = Annotated[int, Field(ge=0, le=1 << 31)]
Share = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Closed(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class EstimateFields(_Closed):
    """See `verdict.Estimate`."""

    mean: FiniteFloat | None
    low: FiniteFloat | None
    high: FiniteFloat | None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"an interval, not {self.low} to {self.high}")
        return self


class HeadFields(_Closed):
    """See `head_roles.HeadRole`."""

    layer: Count
    head: Count
    role: Role
    reason: str
    lasting: Share
    place: Share | None
    token: str | None
    measured: dict[str, EstimateFields]
    substitutes: Count | None
    substitutes_at_least: Count
    removable: bool | None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.substitutes is not None and self.substitutes < self.substitutes_at_least:
            raise ValueError(f"at least {self.substitutes_at_least} substitutes, not {self.substitutes}")
        return self


class TogetherFields(_Closed):
    """See `head_roles.Together`."""

    heads: list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
    measured: dict[str, EstimateFields]


class RuleFields(_Closed):
    """See `verdict.Rules`."""

    changed: FiniteFloat = 0.0
    small: FiniteFloat = 0.0
    even: FiniteFloat = 0.0
    lasting: FiniteFloat = 0.0
    excess: FiniteFloat = 0.0
    faint: FiniteFloat = 0.0


class RolesFile(_Closed):
    """See `head_roles.Roles`."""

    model: str
    weight_hash: str
    layers: Annotated[int, Field(ge=1, le=1 << 14)]
    heads_in_layer: Annotated[int, Field(ge=1, le=1 << 16)]
    rules: RuleFields
    prompts: Count
    judged: Count
    failed: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], str]
    settings: dict[str, str | int | FiniteFloat | bool | None] = {}
    source: dict[str, str | int] = {}
    canvas_tokens: (
        Annotated[list[Annotated[int, Field(ge=1, le=1 << 31)]], Field(min_length=2, max_length=2)] | None
    ) = None
    heads: list[HeadFields]
    together: TogetherFields | None = None
    config_hash: str = ""
    checksum: str = ""
