"""One truth per number: a number of one prompt is the same in all outputs.

One prompt is written once as a trace and once as statistics; `analyse`, `sinks` and `tracks` are run on the trace and
`sinks` on the statistics, as a person types them. Every number that more than one of them tells is listed here with all
who tell it.
"""

import json
from collections import Counter

import numpy as np
import pytest

import sinkscope

SETTINGS = {"lab-diffusion": ("--length", 24, "--steps", 24, "--block", 12), "lab-autoregressive": ("--length", 24)}
AT = {"excess": 3.0, "unit": "queries"}


class Outputs:
    """The documents that the commands print about one prompt.

    Attributes:
        analysis: of ``analyse``, {(name, place): value}; rows: of statistics, the same.
        sinks, percent: of ``sinks`` in both units; tracks: of ``tracks``; statistics: of ``sinks`` on statistics.
    """

    def __init__(self, run, folder):
        def document(*arguments):
            status, out, error = run(*arguments, "--json")
            assert status == 0, error
            return json.loads(out)

        self.trace = sinkscope.open_trace(folder / "columns")
        self.analysis = self._rows(document("analyse", folder / "columns"))
        self.sinks, self.percent = (
            document("sinks", folder / "columns", "--unit", unit) for unit in ("queries", "percent")
        )
        self.tracks = document("tracks", folder / "columns")
        self.statistics = document("sinks", folder / "statistics")
        self.rows = self._rows(self.statistics)
        self.counts, self.means = self.statistics["counts"], self.statistics["means"]

    @staticmethod
    def _rows(document):
        return {(row["name"], frozenset(row["at"].items())): row["value"] for row in document["statistics"]}

    def of(self, name, **place):
        """A number of ``analyse`` at ε = 3 queries' worth, or without a threshold; NaN where it has none."""
        for at in ({**AT, **place}, place):
            if (key := (name, frozenset(at.items()))) in self.analysis:
                return np.nan if self.analysis[key] is None else self.analysis[key]
        raise AssertionError(f"analyse does not tell {name} at {place}")

    def mean(self, name):
        """A number of the level of statistics, of its one prompt."""
        found = self.means["by_prompt"][name]["mean"]
        return np.nan if found is None else found


@pytest.fixture(scope="module", params=list(SETTINGS))
def folder(request, tmp_path_factory):
    from sinkscope.cli import main

    out = tmp_path_factory.mktemp("truth")
    for level in ("columns", "statistics"):
        arguments = ("trace", request.param, "--problem", 0, *SETTINGS[request.param], "--keep", level)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["sinkscope", *map(str, (*arguments, "--out", out / level))])
            main()
    return out


@pytest.fixture
def outputs(run, folder):
    return Outputs(run, folder)


def same(*values):
    """All are equal, to seven digits; NaN is equal to NaN."""
    first, *others = values
    for other in others:
        assert other == pytest.approx(first, rel=1e-6, abs=1e-9, nan_ok=True)


def test_every_statistic_that_both_levels_keep(outputs):
    both = outputs.analysis.keys() & outputs.rows.keys()
    assert len(both) > 1500
    for key in both:
        assert outputs.rows[key] == (
            None if outputs.analysis[key] is None else pytest.approx(outputs.analysis[key], rel=1e-6, abs=1e-7)
        ), key


def test_how_many_sinks_there_are(outputs):
    shape = outputs.trace.column_sums.shape
    heads, columns = shape[0] * shape[1] * shape[2], (~np.isnan(outputs.trace.column_sums[:])).sum()
    at = 12  # ε = 3 on a grid of quarters
    for unit, found in (("queries", outputs.sinks), ("percent", outputs.percent)):
        place = {"positions": "any", "unit": unit, "excess": 3.0}
        count = len(found["sinks"])
        same(count, outputs.counts["above_epsilon"][unit][at])
        same(
            count / columns,
            found["selected_share"],
            1 - outputs.analysis["epsilon.not_sinks", frozenset(place.items())],
        )
        same(1 - count / columns, outputs.means["epsilon_curve"][f"not_sinks_{unit}"][at])
        per_head = outputs.analysis["concentration.sinks_per_head", frozenset({"excess": 3.0, "unit": unit}.items())]
        same(count / heads, per_head)
    same(
        len(outputs.sinks["sinks"]),
        outputs.counts["sinks"],
        sum(one["sinks"] for one in outputs.counts["classes"].values()),
    )
    same(columns, outputs.counts["columns"], sum(outputs.counts["column_sums"]))
    same(
        len(outputs.sinks["sinks"]) / heads,
        outputs.mean("sinks_per_head"),
        np.mean(outputs.means["by_layer_and_head"]["sinks"]),
    )
    same(outputs.sinks["selected_share"], outputs.mean("share_of_tokens_that_are_sinks"))


def test_where_there_is_a_sink(outputs):
    steps, layers, heads, _ = outputs.trace.column_sums.shape
    with_sink = {(one["step"], one["layer"], one["head"]) for one in outputs.sinks["sinks"]}
    share = len(with_sink) / (steps * layers * heads)
    same(
        share,
        outputs.mean("share_of_heads_with_a_sink"),
        np.mean(outputs.means["by_layer_and_head"]["steps_with_sink"]),
    )
    same(len(with_sink), outputs.counts["heads_with_sink"])
    steps -= sinkscope.track(sinkscope.find_sinks(outputs.trace)).uncounted
    followed = sum(one["steps_with_sink"] for one in outputs.tracks["heads"]) / (steps * layers * heads)
    same(followed, outputs.of("movement.steps_with_sink"))
    if not outputs.trace.causal:  # for autoregressive models main sinks are followed in other columns
        same(followed, share)


def test_how_strong_they_are(outputs):
    strongest = {}
    for one in outputs.sinks["sinks"]:
        place = (one["step"], one["layer"], one["head"])
        strongest[place] = max(strongest.get(place, (0, 0)), (one["excess"], one["column_sum"]))
    assert outputs.mean("main_sink_column_sum") == pytest.approx(
        np.mean([column for _, column in strongest.values()]), abs=1e-4
    )  # rows have four decimals
    by_head = outputs.means["by_layer_and_head"]["main_sink_column_sum"]
    for layer, row in enumerate(by_head):
        having = {head for _, at, head in strongest if at == layer}
        assert {head for head, value in enumerate(row) if value is not None} == having
        own = [column for (_, at, _), (_, column) in strongest.items() if at == layer]
        assert outputs.of("concentration.strength_in", layer=layer) == pytest.approx(
            np.mean(own) if own else np.nan, abs=1e-4, nan_ok=True
        )
    same(outputs.of("concentration.share_on_sinks"), outputs.mean("share_of_attention_on_sinks"))
    for name in ("entropy", "gini"):
        same(outputs.of(f"concentration.{name}"), outputs.mean(name), np.mean(outputs.means["by_layer_and_head"][name]))


def test_how_they_move(outputs):
    heads, null = outputs.tracks["heads"], outputs.tracks["null"]
    drifts = [one["drift_per_step"] for one in heads if one["drift_per_step"] is not None]
    assert (null is None) == (not drifts)
    if null is not None:
        same(null["moves_per_head"], outputs.of("movement.moves_per_head"))
        same(null["drift_per_step"], np.mean(drifts))
    same(np.mean(drifts) if drifts else np.nan, outputs.of("movement.drift"), outputs.mean("drift_per_step"))
    for name in ("moves", "swaps"):
        same(sum(one[name] for one in heads), outputs.counts[name])
    if pairs := outputs.counts["steps_in_a_row_with_sink"]:
        same(outputs.mean("moves_per_step"), outputs.counts["moves"] / pairs)
    by_head = outputs.means["by_layer_and_head"]
    for one in heads:
        drift = by_head["drift_per_step"][one["layer"]][one["head"]]
        same(np.nan if one["drift_per_step"] is None else one["drift_per_step"], np.nan if drift is None else drift)
    kinds = outputs.tracks["kinds"]
    for kind, count in kinds.items():
        same(count / sum(kinds.values()) if any(kinds.values()) else np.nan, outputs.of("movement.tracks", kind=kind))
    lived = [one["last_step"] - one["first_step"] + 1 for one in outputs.tracks["tracks"]]
    same(np.mean(lived) if lived else np.nan, outputs.of("movement.track_steps"))


def test_which_tokens_they_are(outputs):
    counted = Counter(one["token"] for one in outputs.sinks["sinks"])
    assert {row["token"]: row["sinks"] for row in outputs.counts["tokens"]} == dict(counted)
    shares = {
        key: value
        for key, value in outputs.analysis.items()
        if key[0] == "composition.token" and {*AT.items()} <= key[1]
    }
    for (_, place), share in shares.items():
        same(share, counted[dict(place)["token"]] / counted.total())
    for kind, row in outputs.counts["classes"].items():
        same(row["sinks"] / counted.total(), outputs.of("composition.share_of_sinks", **{"class": kind}))
        canvas = sum(one["canvas"] for one in outputs.counts["classes"].values())
        same(row["canvas"] / canvas, outputs.of("composition.share_of_canvas", **{"class": kind}))


def test_how_large_their_norms_are(outputs):
    by_layer = outputs.means["norms_by_layer"]
    for kind in ("value", "key", "hidden"):
        for layer in range(len(by_layer["value_sinks"])):
            for name, other in (("of_sinks_in", "sinks"), ("of_others_in", "others"), ("effect_in", "effect_size")):
                told = by_layer[f"{kind}_{other}"][layer]
                if np.isnan(mine := outputs.of(f"norms.{kind}_norm_{name}", layer=layer)):
                    assert by_layer[f"{kind}_effect_size"][layer] is None
                else:
                    same(mine, told)


def test_the_number_of_prompts_and_steps(outputs):
    assert outputs.statistics["prompts"] == outputs.counts["prompts"] == 1
    assert outputs.counts["steps"] == outputs.sinks["steps"] == outputs.trace.steps
