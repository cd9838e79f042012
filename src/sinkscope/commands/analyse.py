"""`analyse`: every statistic of sinks, with intervals over prompts."""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from sinkscope.commands import output
from sinkscope.commands.command import Command, Json, RolesFile, Rule, Switch, Traces, default_is
from sinkscope.counts import counted
from sinkscope.errors import CallError

LAB_BATCHES = 100  # number of training batches that represent the training corpus of a lab model


@dataclass(frozen=True, kw_only=True)
class Analyse(Command):
    """Compute every statistic of sinks: movement, composition, query groups, concentration, norms.

    Attributes:
        traces: folders of traces, or of numbered traces, of one model; each trace is one prompt.
        versus: a second set of traces; each statistic is then the second set minus the first.
        excess: threshold of the printed table, in --unit; the JSON also has ε = 1, 2, 3, 5 and 8, in queries and
            percent.
        unit: of --excess: queries' worth of attention, or percent of all attention.
        sweep: computes no other thresholds than --excess and --unit.
        tolerance: how many steps in a row a sink may be below the threshold without ending its track.
        training_counts: a JSON file {token id: count} of the training corpus; or lab, for the lab's own models.
        choice: does not fit the model that predicts which candidate is the main sink, the slowest part.
        all: prints every statistic, not the eight that say most.
        definitions: prints each statistic, its unit and the claim it tests, and reads no traces.
    """

    traces: Traces
    versus: Annotated[tuple[Path, ...], default_is("none")] = ()
    excess: float = 3.0
    unit: Literal["queries", "percent"] = "queries"
    sweep: Switch = True
    tolerance: int = 0
    rule: Rule = None
    training_counts: Annotated[str | None, default_is("none")] = None
    choice: Switch = True
    roles: RolesFile = None
    all: Switch = False
    definitions: Switch = False
    json: Json = False

    def run(self) -> None:
        from sinkscope.sinks.definition import RULE_TEXTS
        from sinkscope.statistics import THRESHOLDS, Threshold, all_definitions, analyse, compare
        from sinkscope.traces.statistics_folder import is_statistics

        if self.definitions:
            found = all_definitions()
            rows = [(name, f"{one.text} ({one.unit}); the claim: {one.claim}") for name, one in found.items()]
            if self.json:
                return output.print_json({"definitions": {name: asdict(one) for name, one in found.items()}})
            return output.print_table(("statistic", "meaning"), rows, ("statistic", "meaning"))
        if not self.traces:
            raise CallError("expected at least one folder of traces, found none")
        if is_statistics(self.traces[0]):
            self.refuse("versus excess unit sweep tolerance rule training_counts choice roles", "for statistics")
            return show_statistics(self.traces[0], self.json, self.all)
        asked = Threshold(self.excess, self.unit)
        thresholds = (asked, *(one for one in THRESHOLDS if one != asked)) if self.sweep and self.json else (asked,)
        traces, others = output.open_and_check(*self.traces), output.open_and_check(*self.versus)
        training = None if self.training_counts is None else _training_counts(self.training_counts, traces[0])
        roles = output.roles_for_traces(self.roles, traces)
        how = {"tolerance": self.tolerance, "training": training, "rule": self.rule}
        how["choice"] = self.choice and (self.all or self.json)
        first = analyse(traces, thresholds, **how)
        document: dict[str, Any] = {"traces": [*map(str, self.traces)]}
        statistics, what = first.statistics, "mean over prompts"
        if self.versus:
            second, what = analyse(others, thresholds, **how), "second minus first"
            statistics = compare(first, second)
            document |= {"versus": [*map(str, self.versus)], "versus_prompts": second.prompts}
        rows = [one.as_dict() for one in statistics]
        if self.json:
            by_head = None if roles is None else roles.by_head()
            return output.print_json({**document, **first.as_dict(), "statistics": rows, "roles": by_head})
        of = f"{counted(first.prompts, 'prompt')}, {counted(first.layers, 'layer')} × {counted(first.heads, 'head')}"
        for analysis in (first, *([second] if self.versus else [])):
            _print_places(analysis)
        over = f"excess over {RULE_TEXTS[first.rule]} > {asked.excess:g} {asked.unit}"
        output.say_wrapped(f"{of}; {over}; {what} ({output.describe_interval(first.prompts)})\n")
        if self.versus and first.followed != second.followed:
            both = f"{first.followed}, {second.followed}"
            output.say_wrapped(f"movement: not comparable ({both}); see `sinkscope tracks`")
        nulls = [] if self.all or self.versus else self._nulls(traces, first)
        output.print_statistics(rows + nulls, asked.excess, asked.unit, self.all)
        if roles is not None:
            output.say_wrapped(f"\nwhat the sinks do (sinkscope roles)\n{roles.in_lines()}")

    def _nulls(self, traces: list[Any], analysis: Any) -> list[dict[str, Any]]:
        """Return the share of the main place, moves with the steps shuffled, and at an equal share of attention."""
        import numpy as np

        from sinkscope.sinks import averaged_moves, find_sinks, movement_test, track
        from sinkscope.sinks.followed_columns import WINDOW
        from sinkscope.statistics.intervals import known, mean

        found, queries = list[tuple[Any, ...]](), set[int]()
        for trace, (place, _) in zip(traces, analysis.places, strict=True):
            tracks = track(find_sinks(trace, self.excess, self.unit, self.rule), self.tolerance)
            test = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted)
            averaged = averaged_moves(trace)
            same = ([one for one in averaged if one.queries <= WINDOW] or averaged[:1])[-1]
            found.append((place and place.share, test.null_moves[0] if test.heads else None, same.moves_per_head))
            queries.add(same.queries)
        of = f"moves, of {'–'.join(map(str, sorted({min(queries), max(queries)})))} queries"
        units = {"main_sink.share": "share", "movement.shuffled": "moves", "equal_share.moves": of}
        means = map(mean, np.array(found, float).T)
        return [{"name": name, "at": {}, "value": known(next(means)), "unit": unit} for name, unit in units.items()]


def _print_places(analysis: Any) -> None:
    found = Counter((one.position, text) for one, text in analysis.places if one is not None)
    if not found:
        return output.say("no head has a main sink")
    place, many = found.most_common(1)[0]
    same = [one for one, text in analysis.places if one is not None and (one.position, text) == place]
    heads, share = (sum(getattr(one, name) for one in same) / len(same) for name in ("heads", "share"))
    mean = replace(same[0], heads=round(heads), share=share)
    prompts = "" if len(analysis.places) == 1 else f" (in {many} of {counted(len(analysis.places), 'prompt')})"
    output.say_wrapped(mean.text(place[1], analysis.followed) + prompts, "bold")


def show_statistics(folder: Path, as_json: bool, every: bool = False) -> None:
    """Print the document of a folder of statistics, or its main sink, statistics and tokens."""
    from sinkscope.sinks.definition import RULE_TEXTS
    from sinkscope.statistics import Summary, document_of
    from sinkscope.traces import read_statistics

    manifest, arrays, texts = read_statistics(folder)
    summary, prompts = Summary.from_arrays(arrays), manifest["prompts"]
    document = document_of(summary, texts, manifest.get("mask_id"), (manifest.get("eos_id", -1),))
    if not manifest["complete"]:
        output.note(f"{folder}: incomplete, {counted(prompts, 'prompt')}")
    if as_json:
        about = {"level": "statistics", "trace": str(folder), "complete": manifest["complete"], "prompts": prompts}
        about |= {"excess": summary.excess, "unit": "queries", "rule": summary.rule}
        return output.print_json({**about, **document})
    counts, rows = document["counts"], []
    of = {name: sum(row[name] for row in counts["classes"].values()) for name in ("main_sinks", "sinks", "canvas")}
    for row in sorted(counts["tokens"], key=lambda row: -row["main_sinks"]):  # no row without a sink
        text = output.cut(f"<{row['token']}>" if row["text"] is None else repr(row["text"]), 24)
        rows.append((text, row["class"], *(f"{row[name] / max(1, total):.1%}" for name, total in of.items())))
    main = f"{rows[0][0]} is {rows[0][2]} of the main sinks of heads and steps" if of["main_sinks"] else None
    output.say_wrapped(f"{folder}: {main or 'no head has a main sink'}", "bold")
    over = f"excess over {RULE_TEXTS[summary.rule]} > {summary.excess:g} queries; {output.describe_interval(prompts)}"
    total = f"{counted(prompts, 'prompt')}, {counted(counts['steps'], 'step')}, {counted(counts['sinks'], 'sink')}"
    output.say_wrapped(f"{total} ({counts['sinks'] / counts['columns']:.2%} of the columns); {over}\n")
    output.print_statistics(document["statistics"], summary.excess, "queries", every)
    output.say()
    output.print_table(("token", "class", "of main sinks", "of sinks", "of canvas"), rows[:12], ("token", "class"))


def _training_counts(source: str, trace: Any) -> dict[int, int]:
    """Return the token counts in a file, or of the first batches that a model of the lab was trained on."""
    from pydantic import NonNegativeInt, TypeAdapter

    if source != "lab":
        try:
            return TypeAdapter(dict[int, NonNegativeInt]).validate_json(Path(source).read_bytes())
        except ValueError as error:
            raise CallError(f"--training-counts {source}: expected JSON {{token id: count}}; {error}") from error
    from sinkscope.lab.canvases import draw_canvases
    from sinkscope.lab.prompts import build_tokenizer
    from sinkscope.lab.recipes import RECIPES

    name = trace.manifest.get("model", {}).get("name")
    if name not in RECIPES:
        raise CallError(f"--training-counts lab: expected a trace of {', '.join(RECIPES)}, found one of {name}")
    recipe, tokenizer = RECIPES[name], build_tokenizer()
    counts: Counter[int] = Counter()
    for update in range(LAB_BATCHES):
        counts.update(draw_canvases(recipe.canvases, tokenizer, recipe.seed, update).tokens.flatten().tolist())
    return dict(counts)
