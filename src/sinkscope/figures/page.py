"""`write_page` writes texts, numbers and figures into one HTML file that loads nothing else."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.counts import counted
from sinkscope.errors import CallError
from sinkscope.figures.drawing import make_folder
from sinkscope.figures.page_numbers import numbers_of
from sinkscope.figures.style import model_labels, model_name, token_label
from sinkscope.figures.subject import Subject, subject_of
from sinkscope.roles.head_roles import Roles
from sinkscope.sinks.followed_columns import Followed
from sinkscope.traces import Trace
from sinkscope.traces.format import write_whole

REPORT = "report.html"
"""Name of the page in a folder."""


@dataclass(frozen=True)
class Table:
    """A table for the page; its cells are shown as they are.

    Attributes:
        caption: explains what the table shows and what it does not show.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


def write_page(
    traces: Sequence[Trace],
    out: str | Path,
    *,
    figures: Sequence[str | Path] = (),
    tables: Sequence[Table] = (),
    excess: float = 3.0,
    roles: Roles | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
) -> Path:
    """Write a self-contained page about traces.

    Args:
        out: an ``.html`` file, or a folder, which gets a `REPORT`.
        figures: what `draw_figures` returned; the PNG files among them are embedded with their captions.
        tables: further tables, before the figures.
        excess: ε of Eq. 3, in queries' worth.
        roles: what the sinks of the model do (`find_roles`).
        notes: lines below the figures, such as what `draw_figures` said of those that it could not draw.
        command: the command that made it, for the footer.

    Returns:
        The file.

    Raises:
        CallError: no traces, or a threshold that no column can exceed.
        TraceError: a file that cannot be written or read.
    """
    import jinja2

    if not traces:
        raise CallError("expected at least one trace for the page, found none")
    shown = [Path(one) for one in figures if Path(one).suffix == ".png"]
    path = Path(out) if Path(out).suffix == ".html" else Path(out) / REPORT
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(thousands="{:,}".format, percent=_percent, decimals=_decimals, interval=_interval)
    template = environment.from_string((files("sinkscope.figures") / "page.html").read_text(encoding="utf-8"))
    models = [
        _model(trace, label, excess, roles, command)
        for trace, label in zip(traces, model_labels([trace.manifest for trace in traces]), strict=True)
    ]
    html = template.render(
        models=models,
        lead=_lead(models, excess),
        excess=f"{excess:g}",
        tables=tables,
        notes=notes,
        figures=[_figure(path) for path in shown],
    )
    make_folder(path.parent)
    write_whole(path, html.encode(errors="replace"))
    return path


def _model(trace: Trace, label: str, excess: float, roles: Roles | None, command: str | None) -> dict[str, Any]:
    one = subject_of(trace, excess, label, roles=roles) if trace.steps else None
    sampler = trace.manifest.get("sampler") or {}
    name = sampler.get("name")
    return {
        "label": label,
        "kind": ", ".join(
            str(part) for part in (Followed.of(trace).kind, trace.manifest["model"].get("family")) if part
        ),
        "complete": trace.complete,
        "steps": trace.steps,
        "prompt": _prompt(trace, one),
        "prompt_length": trace.manifest.get("prompt_length", 0),
        "text": _text(trace, one),
        "summary": None if one is None else numbers_of(one),
        "roles": None if one is None else one.roles,
        "canvas": [] if one is None else _canvas(one),
        "provenance": _provenance(trace, name, sampler, command),
    }


def _lead(models: Sequence[dict[str, Any]], excess: float) -> str:
    """Return the first sentence of the page: what was done."""
    who = " and ".join(f"{model['label']} ({counted(model['steps'], 'step')})" for model in models)
    each = " each" if len(models) > 1 else ""
    return (
        f"{who} wrote one answer{each}. At every step we recorded how much attention each token received in every "
        f"layer and head. A token is called a sink where it received over {excess:g} queries’ worth more than the "
        "other tokens did on average."
    )


def _prompt(trace: Trace, one: Subject | None) -> str:
    if trace.manifest.get("prompt") is not None:
        return str(trace.manifest["prompt"])
    return "" if one is None else _read(trace, one.last_canvas[: one.prompt_length])


def _text(trace: Trace, one: Subject | None) -> str:
    if trace.manifest.get("text") is not None:
        return str(trace.manifest["text"])
    return "" if one is None else _read(trace, one.last_canvas[one.prompt_length :])


def _read(trace: Trace, tokens: np.ndarray) -> str:
    mask = trace.manifest.get("mask_id")
    return "".join("[M]" if token == mask else trace.token_text(token) for token in tokens.tolist() if token >= 0)


def _canvas(one: Subject) -> list[dict[str, Any]]:
    """Return the tokens of the last canvas, each with its share of the main sinks of all steps, layers and heads."""
    main = one.main
    stood = np.bincount(main[main >= 0], minlength=len(one.last_canvas))
    shades = np.sqrt(stood / max(1, stood.max(initial=0)))
    when = {position: step for step, position, _ in one.written.tolist()}
    tokens = []
    for position, token in enumerate(one.last_canvas.tolist()):
        title = f"position {position}: main sink in {stood[position] / main.size:.2%} of steps × heads"
        title += f"; written in step {when[position]}" if position in when else ""
        text = "↵\n" if token_label(one.trace, token) == "↵" else _read(one.trace, np.array([token]))
        tokens.append(
            {
                "text": text,
                "prompt": position < one.prompt_length,
                "shade": f"{shades[position]:.2f}" if stood[position] else "",
                "title": title,
            }
        )
    return tokens


def _provenance(trace: Trace, sampler_name: Any, sampler: dict[str, Any], command: str | None) -> list[tuple[str, str]]:
    manifest = trace.manifest
    card = manifest["model"]
    settings = ", ".join(f"{key} {value}" for key, value in sampler.items() if key != "name")
    versions = ", ".join(f"{key} {value}" for key, value in (manifest.get("versions") or {}).items())
    rows = [
        ("Model", model_name(trace.manifest)),
        ("Weights, sha256", card.get("weight_hash")),
        ("Parameters", f"{card['parameters']:,}" if card.get("parameters") else None),
        ("Computed in", " on ".join(str(manifest[key]) for key in ("dtype", "device") if manifest.get(key)) or None),
        ("Sampler", f"{sampler_name}: {settings}" if sampler_name else settings or None),
        ("Versions", versions or None),
        (
            "Trace",
            f"{trace.folder.name}, {counted(trace.steps, 'step')}, {'complete' if trace.complete else 'incomplete'}",
        ),
        ("Command", command or manifest.get("command")),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _figure(path: Path) -> dict[str, Any]:
    """Return a PNG with the title and the caption in its metadata."""
    from PIL import Image

    content = path.read_bytes()
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        texts = dict(image.info)
        natural = 100 / float(texts.get("dpi", (200, 200))[0])  # 100 CSS pixels an inch
        width, height = (round(size * natural) for size in image.size)
    return {
        "data": base64.b64encode(content).decode(),
        "width": width,
        "height": height,
        "title": str(texts.get("Title", path.stem)),
        "caption": str(texts.get("Description", "")),
        "file": path.name,
    }


def _percent(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}%}"


def _decimals(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _interval(value: dict[str, float]) -> str:
    return f"{_decimals(value['mean'])} ({_decimals(value['low'])} … {_decimals(value['high'])})"
