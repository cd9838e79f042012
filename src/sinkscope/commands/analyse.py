"""`analyse`: every statistic of sinks, with intervals over prompts."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sinkscope.commands.command import Command, Json, RolesFile, Switch, Traces, Unit, default_is
from sinkscope.commands.output import describe_interval, open_and_check, print_json
from sinkscope.errors import CallError

LAB_BATCHES = 100
"""How many batches of its training stream stand for the corpus of a model of the lab."""


@dataclass(frozen=True, kw_only=True)
class Analyse(Command):
    """Every statistic of sinks: movement, composition, who attends, concentration, norms.

    Attributes:
        traces: folders of traces, or of numbered traces, of one model; each trace is one prompt.
        versus: a second set of traces; every statistic is then the second set minus the first.
        excess: threshold of the printed table, in --unit; the JSON also has ε = 1, 2, 3, 5 and 8 in queries and percent.
        sweep: leaves out all thresholds but that of --excess and --unit.
        tolerance: steps below the threshold that do not end a track.
        training_counts: a JSON file {token id: count} of the training corpus; or lab, for the lab's own models.
        choice: leaves out the model that predicts which candidate is the main sink, the slowest part.
    """

    traces: Traces
    versus: Annotated[tuple[Path, ...], default_is("none")] = ()
    excess: float = 3.0
    unit: Unit = "queries"
    sweep: Switch = True
    tolerance: int = 0
    training_counts: Annotated[str | None, default_is("none")] = None
    choice: Switch = True
    roles: RolesFile = None
    json: Json = False

    def run(self) -> None:
        from sinkscope.roles import read_roles, roles_for
        from sinkscope.statistics import THRESHOLDS, Threshold, analyse, compare
        from sinkscope.traces import open_traces

        if not self.traces:
            raise CallError("expected at least one trace")
        asked = Threshold(self.excess, self.unit)
        thresholds = (asked, *(one for one in THRESHOLDS if one != asked)) if self.sweep else (asked,)
        training = None if self.training_counts is None else _training_counts(self.training_counts, self.traces)

        def analysis(folders: tuple[Path, ...]) -> Any:
            traces = (trace for folder in folders for trace in open_and_check(folder))
            return analyse(traces, thresholds, tolerance=self.tolerance, training=training, choice=self.choice)

        given = None if self.roles is None else read_roles(self.roles)
        first = analysis(self.traces)
        roles = roles_for(open_traces(self.traces[0])[0].manifest.get("model", {}).get("weight_hash"), given)
        document, statistics = first.as_dict(), first.statistics
        folders = {"traces": [str(one) for one in self.traces]}
        if self.versus:
            second = analysis(self.versus)
            statistics = compare(first, second)
            folders["versus"] = [str(one) for one in self.versus]
            document |= {"versus_prompts": second.prompts, "statistics": [one.as_dict() for one in statistics]}
        if self.json:
            print_json({**folders, **document, "roles": None if roles is None else roles.by_head()})
        else:
            print(_heading(first, asked, "second minus first" if self.versus else "mean over prompts"))
            _print_table(statistics, asked)
            if roles is not None:
                print("\nwhat the sinks do (sinkscope roles)\n" + roles.in_lines())


def _training_counts(source: str, traces: tuple[Path, ...]) -> dict[int, int]:
    """Return how often each token stands in the training corpus, as ``--training-counts`` says."""
    if source == "lab":
        return _lab_counts(open_and_check(traces[0])[0])
    path = Path(source)
    try:
        return {int(token): int(count) for token, count in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CallError(f"--training-counts {path}: expected a JSON object of token ids and counts ({error})") from error


def _lab_counts(trace: Any) -> dict[int, int]:
    """Return the token counts of the first batches that a model of the lab was trained on."""
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


def _heading(analysis: Any, asked: Any, what: str) -> str:
    prompts = f"{analysis.prompts} prompt{'s' if analysis.prompts > 1 else ''}"
    shape = f"{analysis.layers} layers × {analysis.heads} heads"
    return f"{prompts}, {shape}; excess > {asked.excess:g} {asked.unit}; {what} ({describe_interval(analysis.prompts)})"


def _print_table(statistics: Any, asked: Any) -> None:
    """Print what holds at the threshold that was asked for; single layers and the curve over ε are in the JSON only."""
    last = ""
    for one in statistics:
        place = dict(one.place)
        threshold = place.pop("excess", asked.excess), place.pop("unit", asked.unit)
        if one.name.endswith("_in") or threshold != (asked.excess, asked.unit):
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
