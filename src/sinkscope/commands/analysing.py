"""`analyse`: every statistic of sinks, with intervals over prompts."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from sinkscope.commands.shown import Json, Unit, interval_words, opened, print_json
from sinkscope.errors import CallError

LAB_BATCHES = 100


def analyse(
    traces: Positional[tuple[Path, ...]],
    versus: tuple[Path, ...] = (),
    excess: float = 3.0,
    unit: Unit = "queries",
    sweep: bool = True,
    tolerance: int = 0,
    training_counts: str | None = None,
    choice: bool = True,
    as_json: Json = False,
) -> None:
    """Every statistic of sinks: movement, composition, who attends, concentration, norms.

    Args:
        traces: folders of traces, or of numbered traces, of one model; each trace is one prompt. (required)
        versus: a second set of traces; then each statistic is told as the second minus the first. (default: none)
        excess: at which the table is printed, in --unit; JSON has ε = 1, 2, 3, 5 and 8 in both units beside.
        unit: of the excess: queries' worth of attention, percent of all attention, or mean (share).
        sweep: leaves out all points but --excess and --unit.
        tolerance: steps without a sink that a track survives.
        training_counts: a JSON file {token id: count} of the training corpus; or lab, for the lab's own models. (default: none)
        choice: leaves out the model of which candidate is the main sink, the longest part.
    """
    from sinkscope.sinks import POINTS, Point, compare
    from sinkscope.sinks import analyse as run

    if not traces:
        raise CallError("expected at least one trace")
    asked = Point(excess, unit)
    points = (asked, *(point for point in POINTS if point != asked)) if sweep else (asked,)
    training = None if training_counts is None else _counts(training_counts, traces)

    def analysis(folders: tuple[Path, ...]) -> Any:
        found = (one for folder in folders for one in opened(folder))
        return run(found, points, tolerance=tolerance, training=training, choice=choice)

    first = analysis(traces)
    document, statistics = first.as_dict(), first.statistics
    if versus:
        second = analysis(versus)
        statistics = compare(first, second)
        document |= {"versus_prompts": second.prompts, "statistics": [one.as_dict() for one in statistics]}
    if as_json:
        print_json({"traces": [str(one) for one in traces], **({"versus": [str(one) for one in versus]} if versus else {}), **document})
    else:
        print(_heading(first, asked, versus))
        _print_table(statistics, asked)


def _counts(source: str, traces: tuple[Path, ...]) -> dict[int, int]:
    if source == "lab":
        return _lab_counts(opened(traces[0])[0])
    path = Path(source)
    try:
        return {int(token): int(count) for token, count in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CallError(f"--training-counts {path}: expected a JSON object of token ids and counts ({error})") from error


def _lab_counts(trace: Any) -> dict[int, int]:
    """The first batches of the stream that a model of the lab was trained on."""
    from sinkscope.lab.canvases import draw_canvases
    from sinkscope.lab.recipes import RECIPES
    from sinkscope.lab.vocabulary import build_tokenizer

    name = trace.manifest.get("model", {}).get("name")
    if name not in RECIPES:
        raise CallError(f"--training-counts lab: {trace.folder} is of {name}, expected a model of the lab ({', '.join(RECIPES)})")
    recipe, tokenizer = RECIPES[name], build_tokenizer()
    counts: Counter[int] = Counter()
    for update in range(LAB_BATCHES):
        counts.update(draw_canvases(recipe.canvases, tokenizer, recipe.seed, update).tokens.flatten().tolist())
    return dict(counts)


def _heading(found: Any, asked: Any, versus: tuple[Path, ...]) -> str:
    prompts = f"{found.prompts} prompt{'s' if found.prompts > 1 else ''}"
    what = "second minus first" if versus else "mean over prompts"
    enough = interval_words(found.prompts)
    return f"{prompts}, {found.layers} layers × {found.heads} heads; excess > {asked.excess:g} {asked.unit}; {what} ({enough})"


def _print_table(statistics: Any, asked: Any) -> None:
    """What holds at the point that was asked for; layers and the ε curve are in the JSON only."""
    last = ""
    for one in statistics:
        place = dict(one.place)
        point = place.pop("excess", asked.excess), place.pop("unit", asked.unit)
        if one.name.endswith("_in") or point != (asked.excess, asked.unit):
            continue
        part, _, short = one.name.partition(".")
        if part != last:
            print(f"\n{part}")
            last = part
        if "text" in place:
            place = {"token": repr(place["text"] if place["text"] is not None else place["token"])}
        if "positions" in place:
            place["positions"] = f"{place['positions']} positions"
        label = f"{short.replace('_', ' ')}{''.join(f', {value}' for value in place.values())}"
        interval = "" if one.low is None else f"[{one.low:.4g}, {one.high:.4g}]"
        p = "" if one.p is None else f"p {one.p:.3f}"
        value = "–" if one.value is None else f"{one.value:.4g}"
        print(f"  {label:<48}{value:>10}  {interval:<24}{one.definition.unit:<20}{p}".rstrip())
