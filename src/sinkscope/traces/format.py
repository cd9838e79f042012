"""The format of a trace folder, and how its files get onto the disk whole.

manifest.json                   written first, replaced after each part and at the end: model, axes, units, parts
steps-000000.safetensors …      parts of a few steps (see `writing`), written under another name and renamed
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import SinkscopeError, TraceError
from sinkscope.runs import files
from sinkscope.runs.files import with_checksum

FORMAT = 1
NAMELESS = "a model without a name"
MANIFEST = "manifest.json"
BUNDLE = "bundle.json"
"""Makes a trace a bundle, see `bundles`."""
DRIFT = "drift.json"
"""What ``--keep drift`` writes instead of a trace."""
ASIDE = ".replaced.writing"
"""Where a trace waits that is to be replaced, until something is recorded in its place."""
DAMAGED = "the trace is damaged"
ROOM = "make room or choose another folder"
PART = "steps-{:06d}.safetensors"
PART_GLOB = "steps-??????.safetensors"
DTYPES = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32), "F16": np.dtype(np.float16), "U8": np.dtype(np.uint8)}
"""The types of a part, in the order in which safetensors stores them; F16, of bundles, is read as F32."""
TRACE_FIELDS = {"format": int, "complete": bool, "causal": bool, "layers": list, "heads": int, "parts": list}
PART_FIELDS = {"file": str, "first_step": int, "steps": int, "sha256": str}

write_whole = partial(files.write_whole, failure=TraceError, advice=ROOM)
write_together = partial(files.write_together, failure=TraceError, advice=ROOM)


def check_fields(
    document: Any, fields: Mapping[str, type], where: Path | str, failure: type[SinkscopeError] = TraceError
) -> None:
    """Raise ``failure`` where an object lacks a field or has one of another type; a checksum guards their values."""
    for name, kind in fields.items():
        if type(found := document.get(name)) is not kind:
            raise failure(f"{where}: {name}: expected {kind.__name__}, found {files.shown(found)}")


def attends_elsewhere(manifest: Mapping[str, Any]) -> bool:
    """Return whether the keys of a trace are the tokens of another stack: the cross-attention of a decoder."""
    return manifest.get("attends_to") != manifest.get("stack")


def block_of(manifest: Mapping[str, Any]) -> int | None:
    """Return the tokens of a block of the sampler, or of its cache; None without blocks."""
    sampler = manifest.get("sampler") or {}
    given = re.search(r"[:,]\s*block=([1-9]\d{0,8})\b", str(sampler.get("cache")))
    return sampler.get("block") or (int(given[1]) if given else None)


def hidden_rules(manifest: Mapping[str, Any]) -> list[str]:
    """Return the rules of hiding under which a trace or statistics were recorded, without fields that are None."""
    found = []
    for one in manifest.get("hidden") or ():
        rules = one.get("rules", [one["rule"]] if "rule" in one else [one]) if isinstance(one, Mapping) else [one]
        found += [re.sub(r"\b\w+=None, |, \w+=None\b", "", str(rule)) for rule in rules]
    return found


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a trace."""
    write_whole(folder / MANIFEST, (json.dumps(with_checksum(manifest), indent=1, ensure_ascii=False) + "\n").encode())
