"""How models and tokens are called in figures and pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sinkscope.traces import Trace

_SHOWN = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def model_label(manifest: Mapping[str, Any]) -> str:
    """The model's name in a manifest; of a local path its last part only."""
    name = str(manifest["model"]["name"])
    return Path(name).name if Path(name).is_absolute() or name.startswith(".") else name


def model_labels(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label for every manifest, numbered where a model comes more than once."""
    names = [model_label(one) for one in manifests]
    return [f"{name} ({names[: at + 1].count(name)})" if names.count(name) > 1 else name for at, name in enumerate(names)]


def token_label(trace: Trace, token: int) -> str:
    """A token as it can be told from others: ↵ for a newline, ␣ for a space in front, [M] for the mask."""
    if token < 0:
        return ""
    if token == trace.manifest.get("mask_id"):
        return "[M]"
    text = trace.token_text(token)
    bare = text.lstrip(" ")
    text = "␣" * (len(text) - len(bare)) + bare
    return "".join(_SHOWN.get(character, character if character.isprintable() else "�") for character in text)


def tick_label(trace: Trace, token: int, longest: int = 9) -> str:
    """The same, short enough for an axis: without the space in front, cut where it is long."""
    text = token_label(trace, token)
    text = text.lstrip("␣") or text
    return text if len(text) <= longest else text[: longest - 1] + "…"
