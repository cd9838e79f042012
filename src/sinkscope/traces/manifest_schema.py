"""The fields that manifests of traces, statistics and bundles must have; a checksum guards all others."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Open(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class PartEntry(_Open):
    """A part, as a manifest lists it."""

    file: Annotated[str, Field(pattern=r"^steps-\d{6}\.safetensors$")]
    first_step: Annotated[int, Field(ge=0)]
    steps: Annotated[int, Field(ge=1)]
    sha256: Sha256


class TraceManifest(_Open):
    """The fields that every trace has; a checksum guards the others."""

    format: Literal[1]
    complete: bool
    causal: bool
    layers: Annotated[list[str], Field(min_length=1)]
    heads: Annotated[int, Field(ge=1)]
    parts: list[PartEntry]
    level: Literal["columns", "top"] = "columns"
    model: dict[str, Any] = {}


class StatisticsManifest(_Open):
    """The fields that the manifest of every folder of statistics has."""

    format: Literal[1]
    level: Literal["statistics"]
    run: dict[str, Any]
    expected: int | None


class BundleFields(_Open):
    """The bundle.json of a bundle."""

    bundle: Literal[1]
    precision: Literal["float32", "float16"]
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")], Sha256]
    made_of: Sha256
    largest_error: dict[str, float] = {}
    checksum: Sha256
