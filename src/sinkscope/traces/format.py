"""The format of a trace folder, and how its files get onto the disk whole.

manifest.json          written first, replaced after each part and at the end: what made the trace, axes, units, parts,
``complete`` steps-000000.safetensors …   parts of a few steps (see `writing`), written under another name and renamed
"""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import TraceError
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
ROOM = "make room or choose another folder"
PART = "steps-{:06d}.safetensors"
PART_GLOB = "steps-??????.safetensors"
DTYPES = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32), "F16": np.dtype(np.float16), "U8": np.dtype(np.uint8)}
"""The types of a part by their names in safetensors, in the order in which it stores them; F16, of bundles, is read as
F32.
"""


def attends_elsewhere(manifest: Mapping[str, Any]) -> bool:
    """Return whether the keys of a trace are the tokens of another stack: the cross-attention of a decoder."""
    return manifest.get("attends_to") != manifest.get("stack")


def block_of(manifest: Mapping[str, Any]) -> int | None:
    """Return the tokens of a block of the sampler; None without blocks. A sampler that has none may be given some by
    its cache.
    """
    sampler = manifest.get("sampler") or {}
    given = re.search(r"[:,]\s*block=([1-9]\d{0,8})\b", str(sampler.get("cache")))
    return sampler.get("block") or (int(given[1]) if given else None)


def hidden_rules(manifest: Mapping[str, Any]) -> list[str]:
    """Return the rules of hiding under which a trace or statistics were recorded, as Python writes them, without fields
    that are None.
    """
    found = []
    for one in manifest.get("hidden") or ():
        rules = one.get("rules", [one["rule"]] if "rule" in one else [one]) if isinstance(one, Mapping) else [one]
        found += [
            re.sub(r"\b\w+=None, |, \w+=None\b", "", str(rule))
            for rule in (rules if isinstance(rules, list | tuple) else [rules])
        ]
    return found


write_whole = partial(files.write_whole, failure=TraceError, advice=ROOM)
write_together = partial(files.write_together, failure=TraceError, advice=ROOM)
"""As in `runs.files`; they raise TraceError."""


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a trace."""
    write_whole(folder / MANIFEST, (json.dumps(with_checksum(manifest), indent=1, ensure_ascii=False) + "\n").encode())
