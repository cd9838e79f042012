"""What the manifests of traces and of folders of statistics may hold, checked when one is read."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, le=1 << 31)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(max_length=4096)]
Heads = Annotated[int, Field(ge=1, le=1 << 16)]
MOST_LAYERS = 1 << 14


class _Open(BaseModel):
    """A document that may have more fields, those of later versions."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class PartEntry(_Open):
    """A part, as a manifest lists it."""

    file: Annotated[str, Field(pattern=r"^steps-\d{6}\.safetensors$")]
    first_step: Count
    steps: Annotated[int, Field(ge=1, le=1 << 20)]
    sha256: Sha256


class BundleFields(_Open):
    """What the bundle.json of a bundle may hold."""

    bundle: Literal[1]
    precision: Literal["float32", "float16"]
    files: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$")], Sha256]
    made_of: Sha256
    largest_error: dict[Name, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    checksum: Sha256


class ModelFields(_Open):
    """The model that made a trace; that of any torch module has its name only."""

    name: Name | None = None
    family: Name | None = None
    weight_hash: Name | None = None
    config_hash: str | None = None
    mask_id: Token | None = None


class SamplerFields(_Open):
    """The settings of a sampler that are read; others are ignored."""

    name: Name | None = None
    length: Count | None = None
    steps: Count | None = None
    block: Annotated[int, Field(ge=1, le=1 << 31)] | None = None


class About(_Open):
    """Fields that describe a run, in both kinds of manifests."""

    format: Literal[1]
    complete: bool
    model: ModelFields = ModelFields()
    sampler: SamplerFields | None = None
    mask_id: Token | None = None
    eos_id: Token | None = None
    special_ids: list[Token] | None = None
    kv_heads: Annotated[int, Field(ge=0, le=1 << 16)] | None = None
    hidden: list[dict[str, Any]] = []
    device: Name | None = None
    dtype: Name | None = None
    versions: dict[str, str] = {}


class TraceManifest(About):
    """The manifest of a trace."""

    causal: bool
    layers: Annotated[list[Name], Field(min_length=1, max_length=MOST_LAYERS)]
    heads: Heads
    parts: Annotated[list[PartEntry], Field(max_length=1 << 20)]
    level: Literal["columns", "top"] = "columns"
    steps: Count = 0
    command: str | None = None
    prompt: str | None = None
    text: str | None = None
    prompt_length: Count = 0
    prompts_asked: Count | None = None
    vocabulary: dict[Annotated[str, Field(pattern=r"^\d{1,10}$")], str] = {}
    maps: list[Annotated[list[Count], Field(min_length=3, max_length=3)]] = []
    axes: dict[str, list[str]] = {}
    units: dict[str, str] = {}
    stack: str | None = None
    attends_to: str | None = None
    attention: str | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.sampler is not None and self.sampler.name == "autoregressive" and not self.causal:
            raise ValueError("causal true beside the sampler autoregressive, not false")
        if None not in (self.model.mask_id, self.mask_id) and self.model.mask_id != self.mask_id:
            raise ValueError(f"mask_id {self.model.mask_id} as the model has it, not {self.mask_id}")
        return self


class StatisticsManifest(About):
    """The manifest of a folder of statistics."""

    level: Literal["statistics"]
    causal: bool | None = None
    followed: Literal["column_sums", "last_query", "newest_columns"] | None = None
    layers: Annotated[list[Name], Field(max_length=MOST_LAYERS)] | None = None
    heads: Heads | None = None
    prompts: Count
    expected: Count | None = None
    run: dict[str, Any] = {}
    tensors: Sha256 | None = None
