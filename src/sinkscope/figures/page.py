"""`write_page` writes texts, numbers and figures into one HTML file that loads nothing else."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.figures.style import model_labels, provenance, token_label
from sinkscope.figures.subject import Subject, subject_of
from sinkscope.roles.head_roles import Roles
from sinkscope.runs.files import json_text
from sinkscope.sinks import movement_test
from sinkscope.sinks.drift import KINDS
from sinkscope.sinks.followed_columns import Followed
from sinkscope.statistics import Threshold
from sinkscope.statistics.composition import expected_shares
from sinkscope.statistics.concentration import Evenness
from sinkscope.statistics.intervals import mean
from sinkscope.statistics.movement import track_kinds
from sinkscope.traces import Trace
from sinkscope.traces.format import write_whole

REPORT, EXPLORER = "report.html", "explorer.html"
SINK_TOKENS = 8


def write_page(
    traces: Sequence[Trace],
    out: str | Path,
    *,
    figures: Sequence[str | Path] = (),
    tables: Sequence[Mapping[str, Any]] = (),
    excess: float = 3.0,
    roles: Roles | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
) -> Path:
    """Write a self-contained page about traces, and return its file.

    Args:
        out: an ``.html`` file, or a folder, which gets a `REPORT`; an `EXPLORER` beside it is linked.
        figures: files of `draw_figures`; the PNG files among them are embedded with their captions.
        tables: each with title, columns, rows and caption.
        excess: ε of Eq. 3, in queries' worth.
        notes: lines below the figures, such as those that `draw_figures` said.
        command: the command that made it, for the footer.
    """
    import jinja2

    path = Path(out) if Path(out).suffix == ".html" else Path(out) / REPORT
    style: dict[str, Any] = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(autoescape=True, **style)
    environment.filters |= {"thousands": "{:,}".format, "percent": lambda value, digits=2: f"{value:.{digits}%}"}
    environment.filters |= {"decimals": _decimals, "interval": _interval}
    template = environment.from_string((files("sinkscope.figures") / "page.html").read_text(encoding="utf-8"))
    named = list(zip(traces, model_labels([trace.manifest for trace in traces]), strict=True))
    html = template.render(
        models=[_model(trace, label, excess, roles, command) for trace, label in named],
        explorer=EXPLORER if (path.parent / EXPLORER).exists() else "",
        excess=f"{excess:g}",
        tables=tables,
        notes=notes,
        figures=[_figure(Path(one)) for one in figures if Path(one).suffix == ".png"],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, html.encode(errors="replace"))
    return path


def _model(trace: Trace, label: str, excess: float, roles: Roles | None, command: str | None) -> dict[str, Any]:
    one = subject_of(trace, excess, label, roles=roles) if trace.steps else None
    prompt, answer = ("", "") if one is None else np.split(one.last_canvas, [one.prompt_length])
    kind = (Followed.of(trace).kind, trace.manifest["model"].get("family"))
    return {
        "label": label,
        "kind": ", ".join(str(part) for part in kind if part),
        "complete": trace.complete,
        "steps": trace.steps,
        "prompt": trace.manifest.get("prompt") or _read(trace, prompt),
        "prompt_length": trace.manifest.get("prompt_length", 0),
        "text": trace.manifest.get("text") or _read(trace, answer),
        "summary": None if one is None else _numbers(one),
        "top": "" if one is None else one.headline.partition(";")[0],
        "moving": 0 if one is None else len(one.moving),
        "roles": None if one is None else one.roles,
        "provenance": provenance(trace, command),
    }


def _read(trace: Trace, tokens: Any) -> str:
    mask = trace.manifest.get("mask_id")
    return "".join("[M]" if token == mask else trace.token_text(token) for token in map(int, tokens) if token >= 0)


def _figure(path: Path) -> dict[str, Any]:
    from PIL import Image

    content = path.read_bytes()
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        texts = dict(image.info)
        natural = 100 / float(texts.get("dpi", (200, 200))[0])  # 100 CSS pixels an inch
        width, height = (round(size * natural) for size in image.size)
    title, caption = str(texts.get("Title", path.stem)), str(texts.get("Description", ""))
    about = {"width": width, "height": height, "title": title, "caption": caption, "file": path.name}
    return about | {"data": base64.b64encode(content).decode()}


def _decimals(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _interval(value: dict[str, float]) -> str:
    return f"{_decimals(value['mean'])} ({_decimals(value['low'])} … {_decimals(value['high'])})"


def page_numbers(trace: Trace, excess: float = 3.0) -> dict[str, Any]:
    """Return sinks, tracks, moves and most frequent tokens of a trace at ε, as plain values, None without."""
    return _numbers(subject_of(trace, excess))


def _numbers(subject: Subject) -> dict[str, Any]:
    manifest, prompt, summary, threshold = subject.manifest, subject.prompt, subject.summary, subject.threshold
    in_percent = prompt.sinks(Threshold(threshold.excess, "percent")) if threshold.excess < 100 else 0
    tracks = track_kinds(replace(prompt, thresholds=(threshold,)))["tracks"][0].sum(axis=0).tolist()
    found, movement = movement_test(subject.main, prompt.is_sink_at(threshold), uncounted=prompt.uncounted), None
    if found.heads and summary.steps > 1:  # some head has a main sink in two steps
        movement = asdict(found)
        for null in ("null_moves", "null_drift"):
            movement[null] = dict(zip(("mean", "low", "high"), movement[null], strict=True))
    document = {
        "model": subject.label,
        "family": manifest["model"].get("family"),
        "weight_hash": manifest["model"].get("weight_hash"),
        "complete": subject.trace.complete,
        "causal": summary.causal,
        "steps": summary.steps,
        "layers": summary.layers,
        "heads": summary.heads,
        "prompt_length": subject.prompt_length,
        "canvas_length": subject.positions,
        "excess": threshold.excess,
        "unit": threshold.unit,
        "threshold_column_sum": subject.threshold_column_sum,
        "newest": subject.followed.queries_text,
        "sinks": summary.sinks,
        "selected_share": summary.sinks / summary.columns,
        "sinks_in_percent_unit": in_percent,
        "selected_share_in_percent_unit": in_percent / summary.columns,
        "sink_rate_over_0.3": mean(prompt.kept(Evenness).over_third),
        "sink_rate_of_first_token": mean(prompt.kept(Evenness).first_over_third),
        "followed": subject.followed.source,
        "newest_queries_only": subject.followed.newest,
        "heads_with_sink": int(prompt.has_sink(threshold).any(axis=0).sum()),
        "heads_with_main_sink": int((prompt.main_at(threshold) >= 0).any(axis=0).sum()),
        "tracks": dict(zip(KINDS, tracks, strict=False)),
        "movement": movement,
        "sink_tokens": _sink_tokens(subject),
        "text": manifest.get("text"),
    }
    return json.loads(json_text(document))  # where a number does not exist, None


def _sink_tokens(subject: Subject) -> list[dict[str, Any]]:
    """Return the most frequent sink tokens, each with its share by chance: a frequent token is often a sink."""
    canvas = subject.prompt.canvas
    sinks = subject.prompt.sinks_by_token(subject.threshold)
    expected = expected_shares(subject.prompt, subject.threshold)
    shares, of_canvas = sinks / max(1, sinks.sum()), canvas.token_counts / canvas.token_counts.sum()
    return [
        {
            "token": int(canvas.token_ids[at]),
            "text": token_label(subject.trace, int(canvas.token_ids[at])),
            "sinks": int(sinks[at]),
            "share_of_sinks": float(shares[at]),
            "share_of_canvas": float(of_canvas[at]),
            "expected_share": float(expected[at]),
            "times_expected": float(shares[at] / expected[at]),
        }
        for at in np.argsort(-sinks, kind="stable")[:SINK_TOKENS].tolist()
        if sinks[at]
    ]
