"""Bundles: a trace to share, with README.md (the model card in words), page.html (the explorer) and bundle.json (its
origin, and a checksum of each file). Values may be stored with 16 bits.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sinkscope.counts import counted
from sinkscope.errors import CallError, TraceError
from sinkscope.runs.files import (
    compare_checksum,
    compare_file,
    markdown_cell,
    read_json_object,
    sha256_of,
    with_checksum,
)
from sinkscope.runs.folder import new_folder
from sinkscope.traces.format import BUNDLE, MANIFEST, Part, hidden_rules, write_manifest, write_part, write_whole
from sinkscope.traces.reading import Trace, open_trace
from sinkscope.traces.stored_maps import MAP, stored_map

CARD, PAGE = "README.md", "page.html"
Precision = Literal["float32", "float16"]
_OF_A_TRACE = re.compile(r"(steps|map)-.*\.safetensors")
_GENERATED = ("tokens", "confidence")
"""Tensors that every level keeps, whose values no two prompts share."""
CHANGED = "the bundle was damaged or changed; ask for it again, or make one: `sinkscope bundle`"


def write_bundle(
    trace: Trace, out: str | Path, precision: Precision = "float32", page: str | None = None, command: str | None = None
) -> Path:
    """Write a complete trace as a bundle in a new or empty folder.

    Args:
        precision: of its values; float16 halves the size and rounds by at most 0.05 %, or 3e-8 where that is more.
        page: the explorer page; ``command`` is what made the bundle, for its provenance.

    Raises CallError for a trace that is incomplete or has values too large for float16, TraceError for a damaged one.
    """
    from importlib.metadata import version

    if not trace.complete:
        raise CallError(f"{trace.folder}: expected a complete trace, found one that was cut short; record it again")
    trace.verify()
    with new_folder(Path(out), TraceError, "the bundle", MANIFEST, BUNDLE) as place:
        # Of a bundle, the values were rounded already.
        errors = _read_about(trace.place)["largest_error"] if (trace.place / BUNDLE).exists() else {}
        rounding: dict[str, float] = {}
        entries = []
        for part, listed in zip(trace.parts, trace.manifest["parts"], strict=True):
            steps = [_step(trace, part, step, precision, rounding) for step in range(part.steps)]
            about = {"first_step": str(part.first_step), "steps": str(part.steps)}
            entries.append({**listed, "sha256": write_part(place / part.path.name, steps, about, trace.manifest)})
        errors = {name: errors.get(name, 0.0) + rounding.get(name, 0.0) for name in sorted(errors | rounding)}
        write_whole(place / CARD, _card(trace, precision, errors).encode())
        if page is not None:
            write_whole(place / PAGE, page.encode())
        for one in trace.manifest.get("maps") or ():
            stored_map(trace, *one)  # which compares it
            shutil.copy(trace.place / MAP.format(*one), place)
        write_manifest(place, {**trace.manifest, "parts": entries})
        about = {
            "bundle": 1,
            "precision": precision,
            "files": {one.name: sha256_of(one) for one in sorted(place.iterdir())},
            "made_of": sha256_of(trace.place / MANIFEST),
            "made_by": {"sinkscope": version("sinkscope"), "command": command},
            "largest_error": errors,
        }
        write_whole(place / BUNDLE, (json.dumps(with_checksum(about), indent=1) + "\n").encode())
    return Path(out)


def open_bundle(folder: str | Path) -> Trace:
    """Open the trace of a bundle, after every file was compared with its checksum; raise TraceError for a file that is
    missing, changed, or a part, map or page that is not listed.
    """
    folder = Path(folder)
    for name, sha256 in _read_about(folder)["files"].items():
        compare_file(folder / name, sha256, TraceError, BUNDLE, CHANGED)
    trace = open_trace(folder)
    if more := [one for one in unlisted_files(trace) if one in (MANIFEST, CARD, PAGE) or _OF_A_TRACE.fullmatch(one)]:
        raise TraceError(f"{folder}: expected the files that {BUNDLE} lists, found {more[0]} as well; {CHANGED}")
    return trace


def _read_about(folder: Path) -> dict[str, Any]:
    about = read_json_object(folder / BUNDLE, TraceError, CHANGED)
    compare_checksum(about, folder / BUNDLE, TraceError, CHANGED)
    if strange := [name for name in about["files"] if Path(name).name != name]:
        raise TraceError(f"{folder / BUNDLE}: files: expected names in its folder, found {strange[0]!r}")
    return about


def unlisted_files(bundle: Trace) -> list[str]:
    """Return the names in a bundle's folder that have no checksum, and were therefore not compared."""
    listed = _read_about(bundle.folder)["files"]
    return sorted({path.name for path in bundle.folder.iterdir()} - {BUNDLE, *listed})


def copies_share(trace: Trace) -> set[str]:
    """Return checksums: copies of a trace, its bundles, and its generation recorded again share one at least."""
    found = {sha256_of(trace.place / MANIFEST)}
    if (trace.place / BUNDLE).exists():
        found.add(_read_about(trace.place)["made_of"])
    parts = [entry["sha256"] for entry in trace.manifest["parts"]]
    if {*_GENERATED} <= {*trace.tensors}:
        found.add(hashlib.sha256(b"".join(getattr(trace, name)[:].tobytes() for name in _GENERATED)).hexdigest())
    return found | ({" ".join(parts)} if parts else set())


def _step(
    trace: Trace, part: Part, step: int, precision: Precision, rounding: dict[str, float]
) -> dict[str, np.ndarray]:
    """Return the tensors of a step of a part; ``rounding`` keeps the largest error of each."""
    arrays = {name: np.asarray(part.read(name, (step,))) for name in trace.tensors}
    for name, array in arrays.items():
        if precision == "float32" or array.dtype != np.float32:
            continue
        with np.errstate(over="ignore"):
            arrays[name] = array.astype(np.float16)
        if np.isinf(arrays[name]).any():
            value = f"{name} of step {part.first_step + step} holds {np.nanmax(np.abs(array)):.4g}"
            raise CallError(f"{trace.folder}: {value}, too large for float16; use --precision float32")
        error = np.abs(arrays[name].astype(np.float32) - array)
        rounding[name] = max(rounding.get(name, 0.0), float(np.nan_to_num(error).max(initial=0.0)))
    return arrays


def _card(trace: Trace, precision: Precision, errors: Mapping[str, float]) -> str:
    """Return the model card and the provenance in words, as Markdown."""
    manifest, model = trace.manifest, trace.manifest.get("model", {})
    facts: dict[str, Any] = {
        "model": model.get("name"),
        "family": model.get("family"),
        "sha256 of its weights": model.get("weight_hash"),
        "shape": f"{counted(len(trace.layers), 'layer')} × {counted(trace.heads, 'head')}",
        "sampler": ", ".join(f"{key} {value}" for key, value in (manifest.get("sampler") or {}).items()),
        "steps": trace.steps,
        "hidden": ", ".join(hidden_rules(manifest)) or "nothing",
        "made on": f"{manifest.get('device')}, {manifest.get('dtype')}",
        "versions": ", ".join(f"{key} {value}" for key, value in (manifest.get("versions") or {}).items()),
        "command": manifest.get("command"),
        "values": precision if not errors else f"{precision}, rounded by at most {max(errors.values()):.2g}",
    }
    rows = [f"| {key} | {markdown_cell(' '.join(str(value).split()))} |" for key, value in facts.items() if value]
    return CARD_TEXT.format(rows="\n".join(rows))


CARD_TEXT = """# A recorded generation

Attention of a language model while it writes: column sums of every layer and head in every step.

| | |
|---|---|
{rows}

`page.html`, where it is there, shows it in any browser, without network. `pip install sinkscope` reads the rest:

    import sinkscope
    trace = sinkscope.traces.open_bundle("this folder")     # refuses a file that was changed
    sinks = sinkscope.find_sinks(trace)

Every command that takes a trace takes this folder (`sinkscope sinks FOLDER`). The files are safetensors; their names,
axes and units are in `manifest.json`, their checksums in `bundle.json`.
"""
