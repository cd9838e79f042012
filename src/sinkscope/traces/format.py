"""The format of a trace folder, and how its files get onto the disk whole.

manifest.json          written first, replaced at the end: what made the trace, axes, units, parts, ``complete``
steps-000000.safetensors …   parts of a few steps (see `writing`), written under another name and renamed
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import TraceError

FORMAT = 1
MANIFEST = "manifest.json"
PART = "steps-{:06d}.safetensors"
PART_GLOB = "steps-??????.safetensors"
UNFINISHED = ".writing"
DTYPES = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32), "U8": np.dtype(np.uint8)}
"""The types a part may hold, as safetensors names them and in the order in which it stores them."""


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Writes a file, whole or in pieces, so that a reader sees all of it or nothing.

    Raises:
        TraceError: no permission, no space.
    """
    beside = path.with_name(path.name + UNFINISHED)
    try:
        with beside.open("wb") as file:
            for piece in [content] if isinstance(content, bytes) else content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise TraceError(f"{path} cannot be written ({error.strerror or error}); make room or choose another folder") from error


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replaces the manifest of a trace."""
    write_whole(folder / MANIFEST, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def checksum(content: bytes) -> str:
    """What a manifest says of a part: sha256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()
