"""`map`: one attention map of a recorded step."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from sinkscope.commands.shown import Json, note, print_json
from sinkscope.errors import CallError, ModelError

if TYPE_CHECKING:
    import numpy as np

KINDS = (".npy", ".csv", ".png", ".pdf")


def attention_map(
    trace: Positional[Path],
    step: int,
    layer: int,
    head: int,
    out: Path | None = None,
    model: str | None = None,
    device: str = "cpu",
    as_json: Json = False,
) -> None:
    """One attention map: the stored one, or recomputed from the stored canvas with the same weights.

    Args:
        trace: folder of one trace.
        step: from 0; negative numbers count from the end.
        layer: from 0, next to the embedding.
        head: query head, from 0.
        out: a file: .npy (float32 [query, key]), .csv (query, key, attention), .png or .pdf. (default: none is written)
        model: the model that wrote the trace, where it has moved; other weights are refused. (default: the name in the trace)
        device: cpu, cuda …
    """
    from sinkscope.recorder.maps import check_place
    from sinkscope.traces import open_trace
    from sinkscope.traces.maps import kept_map

    if out is not None and out.suffix not in KINDS:
        raise CallError(f"--out {out}: expected a file that ends in {', '.join(KINDS)}")
    opened = open_trace(trace)
    if not opened.complete:
        note(f"{opened.folder}: incomplete, {opened.steps} whole steps")
    step, layer, head = check_place(opened, step, layer, head)
    attention, difference = kept_map(opened, step, layer, head), None
    if attention is None:
        from sinkscope.recorder.maps import recompute_map

        found = recompute_map(model_of(opened, model, device), opened, step, layer, head)
        attention, difference = found.attention, found.largest_difference
    if out is not None:
        _write(opened, attention, (step, layer, head), out)
    document = {
        "trace": str(opened.folder),
        "step": step,
        "layer": layer,
        "head": head,
        "queries": attention.shape[0],
        "keys": attention.shape[1],
        "source": "stored" if difference is None else "recomputed",
        "largest_difference": difference,
    }
    if as_json:
        print_json({**document, "map": [[round(value, 7) for value in row] for row in attention.astype(float).tolist()]})
    else:
        _print(opened, attention, document, out)


def model_of(trace: Any, name: str | None = None, device: str = "cpu") -> Any:
    """The model that wrote a trace, loaded by the name in its manifest, in the dtype it computed in.

    Raises:
        CallError: it is not where it was; ``--model`` names another place.
    """
    import sinkscope

    written_by = str(trace.manifest.get("model", {}).get("name", ""))
    try:
        return sinkscope.load(name or written_by, dtype=trace.manifest.get("dtype"), device=device)
    except (CallError, ModelError) as error:
        if name is not None:
            raise
        raise CallError(f"the model that wrote {trace.folder} cannot be loaded: {error}. Pass --model") from error


def maps_of(name: str | None = None, device: str = "cpu") -> Callable[[Any, int, int, int], "np.ndarray"]:
    """A function that gives maps of traces, stored or recomputed; models are loaded once, when first needed."""
    from sinkscope.recorder.maps import recompute_map
    from sinkscope.traces.maps import kept_map

    models: dict[Any, Any] = {}

    def give(trace: Any, step: int, layer: int, head: int) -> "np.ndarray":
        found = kept_map(trace, step, layer, head)
        if found is not None:
            return found
        key = (trace.manifest.get("model", {}).get("name"), trace.manifest.get("dtype"))
        if key not in models:
            models[key] = model_of(trace, name, device)
        return recompute_map(models[key], trace, step, layer, head).attention

    return give


def write_maps(model: Any, folders: list[Path], places: list[tuple[int, int, int]]) -> None:
    """Stores single maps with the traces that were just written."""
    from sinkscope.recorder.maps import check_place, recompute_map
    from sinkscope.traces import open_trace
    from sinkscope.traces.maps import keep_map

    for folder in folders:
        trace = open_trace(folder)
        for place in places:
            if place[0] >= trace.steps:  # an autoregressive answer may end before
                note(f"{folder}: no map of step {place[0]}, the trace has {trace.steps} steps")
                continue
            step, layer, head = check_place(trace, *place)
            keep_map(trace, step, layer, head, recompute_map(model, trace, step, layer, head).attention)


def read_places(text: str, layers: int, heads: int) -> list[tuple[int, int, int]]:
    """``step:layer:head,…`` as numbers.

    Raises:
        CallError: anything else, or a layer or head that the model does not have.
    """
    places = []
    for part in text.split(","):
        try:
            step, layer, head = (int(number) for number in part.split(":"))
        except ValueError as error:
            raise CallError(f"--keep-maps: expected step:layer:head, separated by commas, found {part!r}") from error
        if step < 0 or not 0 <= layer < layers or not 0 <= head < heads:
            raise CallError(f"--keep-maps {part}: expected a step from 0, a layer below {layers} and a head below {heads}")
        places.append((step, layer, head))
    return places


def _write(trace: Any, attention: "np.ndarray", place: tuple[int, int, int], out: Path) -> None:
    import io

    import numpy as np

    from sinkscope.figures import make_folder
    from sinkscope.traces.format import write_whole

    content = io.BytesIO()
    if out.suffix == ".npy":
        np.save(content, attention)
    elif out.suffix == ".csv":
        query, key = np.indices(attention.shape)
        lines = (f"{i},{j},{value:.9g}" for i, j, value in zip(query.flat, key.flat, attention.astype(float).flat, strict=True))
        content.write(("query,key,attention\n" + "\n".join(lines) + "\n").encode())
    else:
        from sinkscope.figures import single_map

        single_map(trace, attention, *place).savefig(content, format=out.suffix[1:])
    make_folder(out.parent)
    write_whole(out, content.getvalue())


def _print(trace: Any, attention: "np.ndarray", document: dict[str, Any], out: Path | None) -> None:
    import numpy as np

    difference = document["largest_difference"]
    how = "stored" if difference is None else f"recomputed; its columns are within {difference:.2g} queries' worth of those recorded"
    print(f"{trace.folder}: step {document['step']}, layer {document['layer']}, head {document['head']}, {how}")
    columns = attention.sum(axis=0)
    print(f"\n{'key':>8}  {'token':<14}{'column sum':>12}{'on itself':>12}")
    for key in np.argsort(-columns, kind="stable")[:8].tolist():
        token = int(trace.tokens[document["step"], key])
        print(f"{key:>8}  {trace.token_text(token)!r:<14}{columns[key]:>12.2f}{attention[key, key]:>12.3f}")
    if out is not None:
        print(f"\n{out}")
