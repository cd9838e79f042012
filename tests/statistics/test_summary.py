"""Summaries of many prompts: the numbers of `analyse` from stored rows, counts against dense ones, merging."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import dense_uniform, extras, make_trace, random_columns

from sinkscope.errors import SinkscopeError
from sinkscope.sinks import find_sinks, is_sink, main_sinks, track
from sinkscope.sinks.definition import token_class
from sinkscope.statistics import EPSILONS, PromptSettings, Summary, analyse, document_of, summarise
from sinkscope.statistics.step import PER_LAYER, histogram_edges

LAYERS, HEADS, WIDTH = 2, 3, 40
ELSEWHERE = {f"agreement.prompts_{name}_over_other_heads" for name in ("place", "class")}
ELSEWHERE |= {"composition.token", "composition.token_on_canvas"}
"""What only `analyse` tells."""
POINT = (("excess", 3.0), ("unit", "queries"))
TEXTS = {2: "</s>", 3: "\n", 4: " ", 5: ".", 6: "7", 7: " the"}


def traces(causal=False, prompts=6):
    for seed in range(prompts):
        columns = random_columns(seed, steps=12 + seed, width=WIDTH, sharpness=0.2).astype(np.float32)
        columns[:, 0, 1] = 1  # a head without a sink
        columns[3, 1, 2, 5] = 90
        more = {"prompt_length": 14, "seed": seed, "order": "random", "commit_every": 1 + seed % 2}
        trace = make_trace(columns, **more, **extras(columns, seed=seed))
        trace.column_sums_prompt = (columns - trace.column_sums_masked) * np.float32(0.6)
        if causal:
            trace.causal, trace.last_query = True, (columns / np.float32(WIDTH)).astype(np.float32)
            del trace.column_sums_masked, trace.column_sums_prompt
        yield trace


def counted(trace):
    """A prompt as a recorder gives it, a step at a time."""
    feed = Summary.feed(PromptSettings.of(trace.causal, trace.manifest))
    names = [name for name in ("tokens", "masked", "written", *PER_LAYER) if hasattr(trace, name)]
    for step in range(trace.steps):
        feed.feed({name: getattr(trace, name)[step] for name in names})
    return Summary.of(feed.finish({int(token): text for token, text in trace.manifest["vocabulary"].items()}))


def merged(summaries):
    first, *others = summaries
    for one in others:
        first.merge(one)
    return first


def sinks_of(prompt, excess=3.0, unit="queries"):
    """Sinks among the columns and the followed ones, and what ranks each, by the rule that is the default."""
    columns = prompt.column_sums
    return (
        dense_uniform(prompt, excess, unit)
        if prompt.causal
        else (*[is_sink(columns, excess, unit)] * 2, *[columns] * 2)
    )


def strongest_of(prompt):
    top = sinks_of(prompt)[2].argmax(axis=-1)
    return np.take_along_axis(prompt.column_sums, top[..., None], axis=-1)[..., 0]


@pytest.fixture(scope="module", params=[False, True], ids=["diffusion", "autoregressive"])
def prompts(request):
    return list(traces(request.param))


@pytest.fixture(scope="module")
def parts(prompts):
    """A prompt's summary each, as files hold it."""
    return [counted(prompt).to_arrays() for prompt in prompts]


@pytest.fixture(scope="module")
def summary(parts):
    return merged(map(Summary.from_arrays, parts))


@pytest.fixture(scope="module")
def document(summary):
    return document_of(summary, TEXTS, mask_id=1)


def test_every_number_and_interval_is_that_of_the_analysis_of_whole_traces(prompts, summary, document):
    rows = {(row["name"], tuple(row["at"].items())): row for row in document["statistics"]}
    found = analyse(prompts, choice=False)
    for one in found.statistics:
        if one.name in ELSEWHERE:
            continue
        row, expected = rows.pop((one.name, tuple(one.place.items()))), one.as_dict()
        if one.name.startswith("agreement.prompts"):  # sums over prompts, not their rows
            expected |= {"low": None, "high": None}
        assert row.keys() == expected.keys()
        for name in row.keys() - {"name", "at"}:
            assert row[name] == (expected[name] and pytest.approx(expected[name], rel=1e-6, abs=1e-7)), one
    assert {name for name, _ in rows} == ({"triggers.share", "triggers.over_chance"} if summary.causal else set())


def test_numbers_by_prompt_have_the_interval_of_their_rows(prompts, parts, document):
    alone = np.array([len(find_sinks(prompt)) / (LAYERS * HEADS * prompt.steps) for prompt in prompts])
    found = document["means"]["by_prompt"]
    assert found["sinks_per_head"]["mean"] == pytest.approx(alone.mean()) and found["sinks_per_head"]["prompts"] == 6
    low, high = found["sinks_per_head"]["interval"]
    assert alone.min() < low < alone.mean() < high < alone.max()
    few = document_of(merged(map(Summary.from_arrays, parts[:4])))
    assert few["means"]["by_prompt"]["sinks_per_head"]["interval"] is None
    strong = [strongest_of(prompt)[sinks_of(prompt)[0].any(-1)].mean() for prompt in prompts]
    assert found["main_sink_column_sum"]["mean"] == pytest.approx(np.mean(strong), rel=1e-6)
    gini = {row["value"] for row in document["statistics"] if row["name"] == "concentration.gini"}
    assert gini == {found["gini"]["mean"]}


def test_counts_are_those_of_whole_traces(prompts, summary, document):
    counts, edges = document["counts"], np.append(histogram_edges(), np.inf)
    columns = np.concatenate([prompt.column_sums.ravel() for prompt in prompts])
    assert (counts["prompts"], counts["steps"]) == (6, sum(prompt.steps for prompt in prompts))
    assert counts["sinks"] == sum(len(find_sinks(prompt)) for prompt in prompts) > 0
    assert counts["columns"] == columns.size and summary.positions == WIDTH
    assert counts["column_sums"] == np.histogram(columns, edges)[0].tolist() and (columns > 64).sum() == 6
    for unit in ("queries", "percent"):
        above = [sum(int(sinks_of(prompt, float(e), unit)[0].sum()) for prompt in prompts) for e in EPSILONS]
        assert counts["above_epsilon"][unit] == above
        curve = document["means"]["epsilon_curve"][f"not_sinks_{unit}"]
        assert curve == pytest.approx(1 - np.array(above) / columns.size)
    per_head = sum(np.bincount(sinks_of(p)[0][:, 0].sum(-1).ravel(), minlength=33) for p in prompts)
    assert counts["heads_by_number_of_sinks"][0] == per_head.tolist()


def test_moves_distances_and_drift_are_those_of_main_sinks(prompts, summary, document):
    heads = [np.array(track(find_sinks(prompt)).heads, object).reshape(LAYERS, HEADS) for prompt in prompts]
    drifts = [[one.drift_per_step for one in of_head] for of_head in zip(*(one.ravel() for one in heads), strict=True)]
    moves, swaps = (sum(getattr(one, name) for by_head in heads for one in by_head.flat) for name in ("moves", "swaps"))
    pairs = distance = 0
    for prompt in prompts:
        _, sink, _, ranked = sinks_of(prompt)
        main = main_sinks(ranked, sink)
        for step, layer, head in np.ndindex(*np.subtract(main.shape, (1, 0, 0))):
            before, after = main[step : step + 2, layer, head]
            pairs += before >= 0 and after >= 0
            if (
                before >= 0
                and after >= 0
                and not (sink[step, layer, head, after] and sink[step + 1, layer, head, before])
            ):
                distance += abs(after - before)
    counts, found = document["counts"], summary.by_head
    assert (counts["moves"], counts["swaps"], counts["steps_in_a_row_with_sink"]) == (moves, swaps, pairs)
    travelled = np.nansum(found["distance_per_move"] * summary.arrays["moves.moves"])
    assert travelled == pytest.approx(distance) and (moves > 0 or summary.causal)
    known = [[one for one in of_head if one is not None] for of_head in drifts]
    expected = [np.mean(one) if one else np.nan for one in known]
    np.testing.assert_allclose(found["drift_per_step"].ravel(), expected, atol=1e-9)


def test_tokens_are_tallied_as_sinks_and_on_the_canvas(prompts, summary, document):
    counts = document["counts"]
    tokens = np.concatenate([prompt.tokens.ravel() for prompt in prompts])
    sinks = np.concatenate([find_sinks(prompt).token for prompt in prompts])
    assert [row["sinks"] for row in counts["tokens"]] == sorted(row["sinks"] for row in counts["tokens"])[::-1]
    for row in counts["tokens"]:
        assert row["sinks"] == (sinks == row["token"]).sum() > 0
        assert row["canvas"] == LAYERS * HEADS * (tokens == row["token"]).sum()
        assert row["class"] == token_class(TEXTS.get(row["token"]), row["token"] == 1, False)
        assert counts["classes"]["mask"]["sinks"] == (sinks == 1).sum()
    assert sum(one["sinks"] for one in counts["classes"].values()) == counts["sinks"]
    main = summary.arrays["strength.steps_with_sink"].sum()
    assert summary.causal or sum(one["main_sinks"] for one in counts["classes"].values()) == main


def test_strengths_and_norms_of_heads_are_those_of_all_columns(prompts, summary, document):
    columns = np.concatenate([prompt.column_sums for prompt in prompts])
    sinks, found = np.concatenate([sinks_of(prompt)[0] for prompt in prompts]), summary.by_head
    largest = np.concatenate([strongest_of(prompt) for prompt in prompts])
    share = columns / columns.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(share * np.log(share), axis=-1) / np.log(WIDTH)
        strongest = np.where(sinks.any(-1), largest, 0).sum(0) / sinks.any(-1).sum(0)
    expected = {
        "sinks": sinks.sum(-1).mean(0),
        "largest": largest.mean(0),
        "sink_share": (share * sinks).sum(-1).mean(0),
        "entropy": entropy.mean(0),
        "steps_with_sink": sinks.any(-1).mean(0),
        "main_sink_column_sum": strongest,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    norms = document["means"]["norms_by_layer"]
    for kind in ("value", "key", "hidden"):
        values = np.concatenate([getattr(prompt, f"{kind}_norms") for prompt in prompts])
        values = np.broadcast_to(values[:, :, None] if values.ndim == 3 else values, columns.shape)
        for layer in range(LAYERS):
            mine, others = values[:, layer][sinks[:, layer]], values[:, layer][~sinks[:, layer]]
            pooled = (len(mine) * mine.var() + len(others) * others.var()) / (len(mine) + len(others))
            effect = (mine.mean() - others.mean()) / pooled**0.5
            told = [norms[f"{kind}_{name}"][layer] for name in ("sinks", "others", "effect_size")]
            assert told == pytest.approx([mine.mean(), others.mean(), effect], rel=1e-3)


@settings(max_examples=2, deadline=None)
@given(order=st.permutations(range(6)), cut=st.integers(1, 5))
def test_counts_merge_in_any_order_and_all_else_in_any_grouping(parts, order, cut):
    forward = merged(map(Summary.from_arrays, parts)).to_arrays()
    halves = [merged(map(Summary.from_arrays, half)) for half in (parts[:cut], parts[cut:])]
    shuffled = merged(Summary.from_arrays(parts[at]) for at in order).to_arrays()
    for name, array in merged(halves).to_arrays().items():
        np.testing.assert_allclose(array, forward[name], rtol=1e-12, atol=1e-9, err_msg=name)
        if not name.startswith("rows"):
            np.testing.assert_allclose(shuffled[name], forward[name], rtol=1e-12, atol=1e-9, err_msg=name)


def test_rows_are_merged_by_name(parts):
    one, other = map(Summary.from_arrays, parts[:2])
    extra = ("new.number", (("layer", 1),))
    other.rows.columns[extra], other.rows.rows[0] = len(other.rows.columns), np.append(other.rows.rows[0], 2.5)
    one.merge(other)
    keys, values = Summary.from_arrays(one.to_arrays()).rows.whole()
    assert values[1, keys.index(extra)] == 2.5 and np.isnan(values[0, keys.index(extra)])


def test_what_may_not_be_pooled_is_refused():
    trace = next(traces())
    plain = counted(trace)
    for more in ({"tolerance": 5}, {"training": {7: 3}}):
        with pytest.raises(SinkscopeError, match="expected statistics with the same layers, heads, excess"):
            plain.merge(Summary.of(summarise(trace, Summary.thresholds(), **more)))
    with pytest.raises(SinkscopeError, match="expected statistics with the same"):
        plain.merge(Summary.of(summarise(trace, Summary.thresholds(2.5)), 2.5))
