"""What the manifest of a watched training may hold, checked when it is read."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT = "sinkscope emergence 1"
Count = Annotated[int, Field(ge=1, le=1 << 20)]


class WatchFile(BaseModel):
    """What decides the numbers of a watched training."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Literal["sinkscope emergence 1"]
    name: str
    causal: bool
    layers: Count
    heads: Count
    canvases: Count
    canvases_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    checksum: str | None = None
