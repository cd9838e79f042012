"""One number, one definition: a number in two outputs is equal in both.

The outputs are `sinks`, `tracks` and `analyse` as JSON, statistics of the same prompt as JSON (counts, means over
prompts and by head), the rows of the figures, and the numbers of the page. Each is read into {(what, where …): value};
every name that two of them share is compared. Traces are planted, and recorded of the lab's models at both levels.
"""

import contextlib
import io
import json
import sys
from collections import Counter, defaultdict
from unittest.mock import patch

import numpy as np
import pytest
from test_statistics_figures import statistics_of

from sinkscope import cli
from sinkscope.figures import draw_figure, page_numbers
from sinkscope.sinks import find_sinks, track
from sinkscope.traces import open_trace

EXCESS, UNITS = 3.0, ("queries", "percent")
AT = {"excess": EXCESS, "unit": "queries"}


def said(*command):
    out = io.StringIO()
    with patch.object(sys, "argv", ["sinkscope", *map(str, command)]), contextlib.redirect_stdout(out):
        cli.main()
    return json.loads(out.getvalue())


def of_sinks(trace):
    found = said("sinks", trace.folder, "--json")
    percent = said("sinks", trace.folder, "--unit", "percent", "--json")
    numbers = {(name,): found[name] for name in ("steps", "layers", "heads")}
    columns, places = np.sum(~np.isnan(trace.column_sums[:])), found["steps"] * found["layers"] * found["heads"]
    for unit, document in (("queries", found), ("percent", percent)):
        numbers["sinks", unit], numbers["share of columns", unit] = len(document["sinks"]), document["selected_share"]
        numbers["sinks per head", unit] = len(document["sinks"]) / places
        numbers["share that are not sinks", unit, EXCESS] = 1 - len(document["sinks"]) / columns
    numbers["columns",] = columns
    strongest = defaultdict(dict)
    for row in found["sinks"]:
        place = strongest[row["layer"], row["head"]]
        place[row["step"]] = max((row["excess"], row["column_sum"]), place.get(row["step"], (0, 0)))
    numbers["heads with a sink",] = len(strongest)
    numbers["heads with a sink, over steps",] = sum(map(len, strongest.values()))
    numbers["share of heads with a sink",] = sum(map(len, strongest.values())) / places
    of_layers = defaultdict(list)
    for layer, head in np.ndindex(found["layers"], found["heads"]):
        sums = [column for _, column in strongest[layer, head].values()]
        of_layers[layer] += sums
        numbers["steps with a sink", layer, head] = len(sums)
        numbers["column sum of the main sink", layer, head] = mean_of(sums)
    numbers |= {("column sum of main sinks", layer): mean_of(sums) for layer, sums in of_layers.items()}
    numbers["column sum of main sinks",] = mean_of([one for sums in of_layers.values() for one in sums])
    for token, count in Counter(row["token"] for row in found["sinks"]).items():
        numbers["sinks of a token", token] = count
        numbers["share of sinks", token] = count / len(found["sinks"])
    return numbers


def mean_of(values):
    return np.mean(values) if values else None


def of_tracks(trace):
    """Also of its test of movement, which tells two numbers of the heads once more."""
    found = said("tracks", trace.folder, "--json")
    heads, null, counts = found["heads"], found["null"] or {}, found["kinds"]
    numbers = {(name,): sum(one[name] for one in heads) for name in ("moves", "swaps")}
    numbers |= {("drift", one["layer"], one["head"]): one["drift_per_step"] for one in heads}
    drifts = [one["drift_per_step"] for one in heads if one["drift_per_step"] is not None]
    assert bool(null) == bool(drifts)
    numbers["test of movement", "drift_per_step"] = mean_of(drifts)
    total = sum(counts.values())
    numbers |= {("tracks, share", kind): count / total if total else None for kind, count in counts.items()}
    numbers["steps of a track",] = mean_of([one["last_step"] - one["first_step"] + 1 for one in found["tracks"]])
    sinks = find_sinks(trace)
    followed = (trace.steps - track(sinks).uncounted) * len(heads)
    numbers["share of heads with a main sink",] = sum(one["steps_with_sink"] for one in heads) / followed
    if sinks.source == "column_sums" and not trace.causal:  # otherwise main sinks are followed in other columns
        numbers["share of heads with a sink",] = numbers["share of heads with a main sink",]
    return numbers, {("test of movement", name): null[name] for name in ("moves_per_head", "drift_per_step") if null}


NAMED = [("composition.token", 3, "share of sinks"), ("composition.token_on_canvas", 3, "share of the canvas")]
NAMED += [("composition.share_of_sinks", 2, "share of sinks, class"), ("movement.tracks", 2, "tracks, share")]
NAMED += [("composition.share_of_canvas", 2, "share of the canvas, class")]
NAMED += [("concentration.strength_in", 2, "column sum of main sinks")]


def of_analyse(trace):
    found = said("analyse", trace.folder, "--no-choice", "--json")
    numbers = {(name,): found[name] for name in ("layers", "heads", "prompts")}
    numbers |= {("statistic", row["name"], *row["at"].items()): row["value"] for row in found["statistics"]}
    at = {
        (row["name"], *(value for key, value in row["at"].items() if (key, value) not in AT.items())): row["value"]
        for row in found["statistics"]
    }
    for name, length, ours in NAMED:
        numbers |= {(ours, key[1]): at[key] for key in some(at, name, length)}
    numbers["share of steps × heads above 0.3",] = at["concentration.gu_rate",]
    numbers["share of steps × heads above 0.3, first token",] = at["concentration.gu_rate_first",]
    for unit, place in (("queries", ()), ("percent", ("percent",))):
        numbers["sinks per head", unit] = at["concentration.sinks_per_head", *place]
    numbers["share of heads with a main sink",] = at["movement.steps_with_sink",]
    numbers["steps of a track",] = at.get(("movement.track_steps",))
    for name in ("share_on_sinks", "entropy", "gini"):
        numbers["concentration", name] = at[f"concentration.{name}",]
    for name in ("moves_per_head", "swaps_per_head", "drift_median", "drift_right"):
        numbers["test of movement", name] = at[f"movement.{name}",]
    numbers["test of movement", "drift_per_step"] = at["movement.drift",]
    for row in found["statistics"]:
        if row["name"] == "epsilon.not_sinks" and row["at"]["positions"] == "any":
            numbers["share that are not sinks", row["at"]["unit"], row["at"]["excess"]] = row["value"]
    for kind in ("value", "key", "hidden"):
        for name, ours in (("of_sinks", "sinks"), ("of_others", "others"), ("effect", "effect")):
            numbers |= {
                ("norms", kind, ours, layer): at[one, layer]
                for one, layer in some(at, f"norms.{kind}_norm_{name}_in", 2)
                if ours == "effect" or at[one, layer] is not None  # statistics tell the others where there is no sink
            }
    return numbers


def some(at, name, length):
    return [key for key in at if key[0] == name and len(key) == length]


def of_counts(found):
    counts, classes = found["counts"], found["counts"]["classes"]
    numbers = {(name,): counts[name] for name in ("prompts", "steps", "moves", "swaps")}
    numbers["columns",] = sum(counts["column_sums"])
    numbers["heads with a sink, over steps",] = counts["heads_with_sink"]
    numbers |= {("sinks", unit): counts["above_epsilon"][unit][int(4 * EXCESS)] for unit in UNITS}
    assert counts["sinks"] == sum(one["sinks"] for one in classes.values())
    if pairs := counts["steps_in_a_row_with_sink"]:
        numbers["moves per step",] = counts["moves"] / pairs
    for name, ours in (("sinks", "share of sinks, class"), ("canvas", "share of the canvas, class")):
        total = sum(one[name] for one in classes.values())
        numbers |= {(ours, kind): one[name] / total if total else None for kind, one in classes.items()}
    return numbers


def of_means(found):
    by_prompt, by_head = (
        {name: one["mean"] for name, one in found["means"]["by_prompt"].items()},
        found["means"]["by_layer_and_head"],
    )
    numbers = {
        ("sinks per head", "queries"): by_prompt["sinks_per_head"],
        ("share of heads with a sink",): by_prompt["share_of_heads_with_a_sink"],
        ("column sum of main sinks",): by_prompt["main_sink_column_sum"],
        ("concentration", "share_on_sinks"): by_prompt["share_of_attention_on_sinks"],
        ("test of movement", "drift_per_step"): by_prompt["drift_per_step"],
        ("moves per step",): by_prompt["moves_per_step"],
    }
    numbers |= {("concentration", name): by_prompt[name] for name in ("entropy", "gini")}
    means = {("concentration", name): np.mean(by_head[name]) for name in ("entropy", "gini")}
    means["share of heads with a sink",] = np.mean(by_head["steps_with_sink"])
    means["sinks per head", "queries"] = np.mean(by_head["sinks"])
    for (layer, head), drift in np.ndenumerate(np.array(by_head["drift_per_step"], dtype=object)):
        means["drift", layer, head] = drift
    return numbers, means


def of_statistics(found):
    counts, means = found["counts"], found["means"]
    numbers = {("steps",): counts["steps"], ("columns",): counts["columns"], ("sinks", "queries"): counts["sinks"]}
    numbers["prompts",] = found["prompts"]
    numbers |= {("statistic", row["name"], *row["at"].items()): row["value"] for row in found["statistics"]}
    numbers |= {("sinks of a token", row["token"]): row["sinks"] for row in counts["tokens"]}
    numbers["share of columns", "queries"] = means["by_prompt"]["share_of_tokens_that_are_sinks"]["mean"]
    by_head = means["by_layer_and_head"]
    for layer, heads in enumerate(by_head["main_sink_column_sum"]):
        for head, value in enumerate(heads):
            numbers["column sum of the main sink", layer, head] = value
            numbers["steps with a sink", layer, head] = round(by_head["steps_with_sink"][layer][head] * counts["steps"])
    for unit in UNITS:
        for epsilon, share in zip(
            means["epsilon_curve"]["epsilon"], means["epsilon_curve"][f"not_sinks_{unit}"], strict=True
        ):
            numbers["share that are not sinks", unit, epsilon] = share
    for name, by_layer in means["norms_by_layer"].items():
        kind, _, what = name.partition("_")
        numbers |= {
            ("norms", kind, what.replace("effect_size", "effect"), layer): value for layer, value in enumerate(by_layer)
        }
    for number, columns in enumerate(counts["column_sums"][:256]):
        numbers["columns in a bin", number / 4, number / 4 + 0.25] = columns
    return numbers


def of_figures(trace):
    def rows(name):
        drawn = draw_figure(name, trace)
        return [dict(zip(drawn.header, (number_of(str(cell)) for cell in row), strict=True)) for row in drawn.rows]

    numbers = {}
    for row in rows("3"):
        numbers["columns in a bin", row["column_sum_from"], row["column_sum_to"]] = row["columns"]
        numbers["threshold of a column sum",] = row["threshold_column_sum"]
    for row in rows("5"):
        numbers["column sum of the main sink", row["layer"], row["head"]] = row["mean_main_sink_column_sum"]
        numbers["steps with a sink", row["layer"], row["head"]] = row["steps_with_main_sink"]
        numbers["steps",] = row["steps"]
    numbers["heads with a sink",] = sum(row["steps_with_main_sink"] > 0 for row in rows("5"))
    by_layer = Counter()
    for row in rows("9"):
        by_layer[row["column_sum_from"], row["column_sum_to"]] += row["columns"]
    numbers |= {("columns in a bin, by layer", *edges): count for edges, count in by_layer.items()}
    for row in rows("10"):
        numbers["share that are not sinks", row["unit"], row["epsilon"]] = row["share_not_sinks"]
        numbers["columns",] = row["columns"]
        if row["epsilon"] == EXCESS:
            numbers["share of columns", row["unit"]] = 1 - row["share_not_sinks"]
    for row in rows("norms") if "value_norms" in trace.tensors else []:
        numbers["norms", row["kind"], row["tokens"], row["layer"]] = row["mean"]
        numbers["norms", row["kind"], "effect", row["layer"]] = row["effect_size"]
    for edges, count in by_layer.items():  # Figure 9 is Figure 3 by layer
        assert numbers["columns in a bin", *edges] == count
    return numbers


def number_of(text):
    """A cell as a number where it is one, None where it is empty."""
    if not text:
        return None
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


def of_page(trace):
    found = page_numbers(trace)
    numbers = {(name,): found[name] for name in ("steps", "layers", "heads")}
    numbers |= {("sinks", "queries"): found["sinks"], ("sinks", "percent"): found["sinks_in_percent_unit"]}
    numbers |= {
        ("share of columns", "queries"): found["selected_share"],
        ("share of columns", "percent"): found["selected_share_in_percent_unit"],
        ("share of steps × heads above 0.3",): found["sink_rate_over_0.3"],
        ("share of steps × heads above 0.3, first token",): found["sink_rate_of_first_token"],
        ("heads with a sink",): found["heads_with_sink"],
        ("heads with a main sink",): found["heads_with_main_sink"],
        ("threshold of a column sum",): found["threshold_column_sum"],
    }
    numbers |= {("tracks", kind): count for kind, count in found["tracks"].items()}
    total = sum(found["tracks"].values())
    numbers |= {("tracks, share", kind): count / total for kind, count in found["tracks"].items()}
    for name, value in found["movement"].items():
        parts = {f"{name}, {part}": one for part, one in value.items()} if isinstance(value, dict) else {name: value}
        numbers |= {("test of movement", part): one for part, one in parts.items()}
    for row in found["sink_tokens"]:
        numbers["sinks of a token", row["token"]] = row["sinks"]
        numbers["share of sinks", row["token"]] = row["share_of_sinks"]
        numbers["share of the canvas", row["token"]] = row["share_of_canvas"]
    return numbers


def differences(outputs):
    """[(name, {output: value})] of names that two outputs share and do not agree on; and {pair of outputs: names
    shared}.
    """
    found, shared = [], Counter()
    for name in {name for numbers in outputs.values() for name in numbers}:
        values = {output: numbers[name] for output, numbers in outputs.items() if name in numbers}
        for first in values:
            shared.update((first, second) for second in values if first < second)
        known = [np.nan if value is None else value for value in values.values()]
        rounded = "figures" in values or "column sum" in name[0]  # rows have four decimals
        rtol, atol = (2e-5, 1e-7) if rounded else (1e-6, 1e-7 if name[0] == "statistic" else 1e-9)
        if not np.allclose(known, known[0], rtol=rtol, atol=atol, equal_nan=True):
            found.append((name, values))
    return found, shared


LAB = {"lab-diffusion": ("--length", 24, "--steps", 24, "--block", 12), "lab-autoregressive": ("--length", 24)}


@pytest.fixture(scope="module", params=["sudden", "causal", "blocks", *LAB])
def outputs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    if request.param in LAB:
        for level in ("columns", "statistics"):
            flags = ("--problem", 0, *LAB[request.param], "--keep", level, "--out", folder / level, "--json")
            said("trace", request.param, *flags)
        trace = open_trace(folder / "columns")
    else:
        trace = request.getfixturevalue(request.param)
        statistics_of(folder / "statistics", trace)
    found, tracks = said("sinks", folder / "statistics", "--json"), of_tracks(trace)
    return {
        "sinks": of_sinks(trace),
        "tracks": tracks[0],
        "test of tracks": tracks[1],
        "analyse": of_analyse(trace),
        "statistics": of_statistics(found),
        "counts": of_counts(found),
        **dict(zip(("means", "means by head"), of_means(found), strict=True)),
        "figures": of_figures(trace),
        "page": of_page(trace),
    }


def test_what_stands_in_two_outputs_is_equal(outputs):
    different, shared = differences(outputs)
    assert different == []
    counted = 1500 if outputs["analyse"]["layers",] == 6 else 500  # of the lab's models
    least = {("analyse", "statistics"): counted, ("figures", "statistics"): 100, ("analyse", "figures"): 40}
    least |= {("figures", "sinks"): 15, ("page", "sinks"): 10, ("sinks", "statistics"): 15, ("figures", "page"): 5}
    least |= {("page", "statistics"): 5, ("counts", "sinks"): 5, ("analyse", "means"): 5, ("analyse", "tracks"): 5}
    least |= {("means by head", "tracks"): 6, ("counts", "tracks"): 2, ("analyse", "sinks"): 4}
    assert {pair: shared[pair] for pair, number in least.items() if shared[pair] < number} == {}


def test_a_number_that_differs_is_seen(outputs):
    wrong = {**outputs, "page": {**outputs["page"], ("heads with a sink",): outputs["page"]["heads with a sink",] + 1}}
    assert [name for name, _ in differences(wrong)[0]] == [("heads with a sink",)]
    wrong = {**outputs, "page": {**outputs["page"], ("steps",): None}}
    assert [name for name, _ in differences(wrong)[0]] == [("steps",)]
