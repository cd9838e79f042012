"""The manifests of traces, statistics and bundles as `pydantic` models; fields of later versions are allowed."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sinkscope.errors import SinkscopeError

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Open(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class PartEntry(_Open):
    """A part, as a manifest lists it."""

    file: Annotated[str, Field(pattern=r"^steps-\d{6}\.safetensors$")]
    first_step: Count
    steps: Positive
    sha256: Sha256


class ModelFields(_Open):
    """The model that made a trace; that of any torch module has its name only."""

    name: str | None = None
    family: str | None = None
    weight_hash: str | None = None
    config_hash: str | None = None
    mask_id: Count | None = None


class SamplerFields(_Open):
    """The settings of a sampler that are read."""

    name: str | None = None
    length: Count | None = None
    steps: Count | None = None
    block: Positive | None = None


class About(_Open):
    """Fields of both kinds of manifests."""

    format: Literal[1]
    complete: bool
    model: ModelFields = ModelFields()
    sampler: SamplerFields | None = None
    mask_id: Count | None = None
    eos_id: Count | None = None
    special_ids: list[Count] | None = None
    kv_heads: Count | None = None
    hidden: list[dict[str, Any]] = []
    device: str | None = None
    dtype: str | None = None
    versions: dict[str, str] = {}


class TraceManifest(About):
    """The manifest of a trace."""

    causal: bool
    layers: Annotated[list[str], Field(min_length=1)]
    heads: Positive
    parts: list[PartEntry]
    level: Literal["columns", "top"] = "columns"
    steps: Count = 0
    command: str | None = None
    prompt: str | None = None
    text: str | None = None
    prompt_length: Count = 0
    prompts_asked: Count | None = None
    vocabulary: dict[str, str] = {}
    maps: list[Annotated[list[Count], Field(min_length=3, max_length=3)]] = []
    axes: dict[str, list[str]] = {}
    units: dict[str, str] = {}
    stack: str | None = None
    attends_to: str | None = None
    attention: str | None = None


class StatisticsManifest(About):
    """The manifest of a folder of statistics."""

    level: Literal["statistics"]
    causal: bool | None = None
    followed: Literal["column_sums", "last_query", "newest_columns"] | None = None
    layers: list[str] | None = None
    heads: Positive | None = None
    prompts: Count
    expected: Count | None = None
    run: dict[str, Any] = {}
    tensors: Sha256 | None = None


class BundleFields(_Open):
    """The bundle.json of a bundle."""

    bundle: Literal[1]
    precision: Literal["float32", "float16"]
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")], Sha256]
    made_of: Sha256
    largest_error: dict[str, float] = {}
    checksum: Sha256


def validate(document: Any, model: type[BaseModel], where: Any, failure: type[SinkscopeError]) -> None:
    """Validate a document.

    Raises:
        failure: a field is missing, of another type or out of bounds.
    """
    try:
        model.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise failure(f"{where}: {field}: {first['msg']}, found {first['input']!r:.80}") from error
