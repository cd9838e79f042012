"""The format of a trace folder, and how its files get onto the disk whole.

manifest.json          written first, replaced after each part and at the end: what made the trace, axes, units, parts, ``complete``
steps-000000.safetensors …   parts of a few steps (see `writing`), written under another name and renamed
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope import work_items
from sinkscope.checksums import with_checksum
from sinkscope.errors import TraceError
from sinkscope.locks import names_in

FORMAT = 1
NAMELESS = "a model without a name"
MANIFEST = "manifest.json"
BUNDLE = "bundle.json"
"""What makes a trace a bundle, see `bundles`."""
DRIFT = "drift.json"
"""What ``--keep drift`` writes instead of a trace."""
ASIDE = f".replaced{work_items.UNFINISHED}"
"""Where a trace waits that is to be replaced, until the new one begins."""
MOVING = f".replaced.moving{work_items.UNFINISHED}"
"""The same folder while a trace is moved there or back; the rest of the trace is beside it."""
PART = "steps-{:06d}.safetensors"
PART_GLOB = "steps-??????.safetensors"
_FILES = r"manifest\.json|steps-\d+\.safetensors|map-[-\d]+\.safetensors|statistics\.safetensors|drift\.json|drift-by-layer\.(png|pdf|csv)"
RECORDED = re.compile(rf"({_FILES})(\.\d+\.writing)?|\.lock")
"""Names of the files that a recording writes."""
LEFT_BEHIND = re.compile(rf"({_FILES})\.\d+\.writing|\.lock")
"""Those of them that a killed process leaves before it has recorded anything."""
DTYPES = {"F32": np.dtype(np.float32), "I32": np.dtype(np.int32), "F16": np.dtype(np.float16), "U8": np.dtype(np.uint8)}
"""The types a part may hold, as safetensors names them and in the order in which it stores them; F16, of bundles, is read as F32."""


def attends_elsewhere(manifest: Mapping[str, Any]) -> bool:
    """Return whether the keys of a trace are the tokens of another stack: the cross-attention of a decoder."""
    return manifest.get("attends_to") != manifest.get("stack")


def block_of(manifest: Mapping[str, Any]) -> int | None:
    """Return the tokens of a block of the sampler; None without blocks. A sampler that has none may be given some by its cache."""
    sampler = manifest.get("sampler") or {}
    given = re.search(r"[:,]\s*block=([1-9]\d{0,8})\b", str(sampler.get("cache")))
    return sampler.get("block") or (int(given[1]) if given else None)


def hidden_rules(manifest: Mapping[str, Any]) -> list[str]:
    """Return the rules of hiding under which a trace or statistics were recorded, as Python writes them, without fields that are None."""
    found = []
    for one in manifest.get("hidden") or ():
        rules = one.get("rules", [one["rule"]] if "rule" in one else [one]) if isinstance(one, Mapping) else [one]
        found += [
            re.sub(r"\b\w+=None, |, \w+=None\b", "", str(rule))
            for rule in (rules if isinstance(rules, list | tuple) else [rules])
        ]
    return found


def only_left_behind(folder: Path, deep: bool = True) -> bool:
    """Return whether a folder holds nothing but what a recording leaves that was killed at its very beginning."""
    for path in (folder / name for name in names_in(folder)):
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or LEFT_BEHIND.fullmatch(path.name) is None:
                return False
        elif not (deep and re.fullmatch("[0-9]{6}|items", path.name) and only_left_behind(path, deep=False)):
            return False
    return True


def write_whole(path: Path, content: bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file, whole or in pieces, so that a reader sees all of it or nothing.

    Raises:
        TraceError: no permission, no space.
    """
    work_items.write_whole(path, content, TraceError, "make room or choose another folder")


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files, all of them or none.

    Raises:
        TraceError: no permission, no space.
    """
    work_items.write_together(contents, TraceError, "make room or choose another folder")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Replaces the manifest of a trace."""
    write_whole(folder / MANIFEST, (json.dumps(with_checksum(manifest), indent=1, ensure_ascii=False) + "\n").encode())
