"""`map`: shows one attention map of a recorded step. `map_reader` gives maps to `figures`."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

import sinkscope
from sinkscope import figures
from sinkscope.commands.command import Command, Device, Json, default_is
from sinkscope.commands.output import note, print_json, say
from sinkscope.counts import counted
from sinkscope.errors import CallError, ModelError, TraceError
from sinkscope.runs.folder import claimed_file

if TYPE_CHECKING:
    import numpy as np

SUFFIXES = (".npy", ".csv", ".png", ".pdf", ".svg")
LARGEST = 8


@dataclass(frozen=True, kw_only=True)
class Map(Command):
    """Show one attention map of a recorded step: the stored one, or one recomputed with the same weights.

    Attributes:
        trace: folder of one trace.
        step: from 0; negative numbers count from the end.
        layer: from 0, next to the embedding; negative numbers count from the end.
        head: query head, from 0 or from the end.
        out: a file: .npy (float32 [query, key]), .csv (query, key, attention), .png, .pdf or .svg.
        model: the model that wrote the trace, if it has moved; other weights are refused.
    """

    trace: Positional[Path]
    step: int
    layer: int
    head: int
    out: Annotated[Path | None, default_is("none is written")] = None
    model: Annotated[str | None, default_is("the name in the trace")] = None
    device: Device = "cpu"
    json: Json = False

    def run(self) -> None:
        from sinkscope.traces.stored_maps import check_place, stored_map

        if self.out is not None and self.out.suffix not in SUFFIXES:
            raise CallError(f"--out {self.out}: expected a file that ends in {', '.join(SUFFIXES)}")
        trace = sinkscope.open_trace(self.trace)
        if not trace.complete:
            note(f"{trace.folder}: incomplete, {counted(trace.steps, 'whole step')}")
        step, layer, head = place = check_place(trace, self.step, self.layer, self.head)
        with nullcontext() if self.out is None else claimed_file(self.out, TraceError):
            attention, difference, how = stored_map(trace, *place), None, "stored"
            if attention is None:
                from sinkscope.recorder.attention_map import recompute_map

                found = recompute_map(model_of(trace, self.model, self.device), trace, *place)
                attention, difference = found.attention, found.largest_difference
                how = f"recomputed; its columns are within {difference:.2g} queries' worth of those recorded"
            if self.out is not None:
                _write(trace, attention, place, self.out)
        if self.json:
            about = {"trace": str(trace.folder), "step": step, "layer": layer, "head": head}
            about |= {"queries": attention.shape[0], "keys": attention.shape[1]}
            about |= {"source": "stored" if difference is None else "recomputed", "largest_difference": difference}
            rows = [[round(value, 7) for value in row] for row in attention.astype(float).tolist()]
            return print_json({**about, "map": rows})
        say(f"{trace.folder}: step {step}, layer {layer}, head {head}, {how}")
        columns = attention.sum(axis=0)
        say(f"\n{'key':>8}  {'token':<14}{'column sum':>12}{'on itself':>12}")
        for key in (-columns).argsort(kind="stable")[:LARGEST].tolist():
            token = trace.token_text(int(trace.tokens[step, key]))
            say(f"{key:>8}  {token!r:<14}{columns[key]:>12.2f}{attention[key, key]:>12.3f}")
        if self.out is not None:
            say(f"\n{self.out}")


def model_of(trace: Any, name: str | None = None, device: str = "cpu") -> Any:
    """Load the model that wrote a trace, from its place in the manifest or another, in the dtype it computed in."""
    card = trace.manifest.get("model", {})
    try:
        return sinkscope.load(name or str(card.get("name", "")), dtype=trace.manifest.get("dtype"), device=device)
    except (CallError, ModelError) as error:
        if name is not None:
            raise
        raise CallError(f"the model that wrote {trace.folder} cannot be loaded: {error}. Pass --model") from error


def map_reader(name: str | None = None, device: str = "cpu") -> Callable[[Any, int, int, int], "np.ndarray"]:
    """Return a function from (trace, step, layer, head) to a map, stored or recomputed; it loads each model once."""
    from sinkscope.traces.stored_maps import stored_map

    models: dict[Any, Any] = {}

    def read(trace: Any, *place: int) -> "np.ndarray":
        if (found := stored_map(trace, *place)) is not None:
            return found
        from sinkscope.recorder.attention_map import recompute_map

        key = (trace.manifest.get("model", {}).get("name"), trace.manifest.get("dtype"))
        if key not in models:
            models[key] = model_of(trace, name, device)
        return recompute_map(models[key], trace, *place).attention

    return read


def _write(trace: Any, attention: "np.ndarray", place: tuple[int, int, int], out: Path) -> None:
    import io

    import numpy as np

    from sinkscope.figures.style import figure_style
    from sinkscope.traces.format import write_whole

    content = io.BytesIO()
    if out.suffix == ".npy":
        np.save(content, attention)
    elif out.suffix == ".csv":
        rows = ((i, j, value) for (i, j), value in np.ndenumerate(attention.astype(float)))
        np.savetxt(content, [*rows], "%d,%d,%.9g", header="query,key,attention", comments="")
    else:
        with figure_style():
            written_by = {"Software" if out.suffix == ".png" else "Creator": "sinkscope"}
            sheet = figures.attention_map(trace, *place, attention)
            sheet.savefig(content, format=out.suffix[1:], metadata=written_by)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_whole(out, content.getvalue())
