"""Statistics that merge: every count against a dense one, and merging in any order and grouping."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import make_trace, random_columns

from sinkscope.errors import SinkscopeError
from sinkscope.sinks import find_sinks, is_sink, last_query_window, main_sinks, track
from sinkscope.sinks.token_classes import token_class
from sinkscope.statistics import EPSILONS, PromptSettings, Summary, document_of, summarise
from sinkscope.statistics.step import histogram_edges

LAYERS, HEADS, KV_HEADS, LENGTH, STEPS = 2, 4, 2, 27, 9
MASK = 50


class Prompt:
    """Random columns with planted sinks: `find_sinks` takes it for a trace."""

    def __init__(self, seed, causal=False, steps=STEPS):
        rng = np.random.default_rng(seed)
        self.causal, self.steps, length = causal, steps, LENGTH
        columns = rng.random((steps, LAYERS, HEADS, length)).astype(np.float32) * 0.5
        for step in range(steps):
            columns[step, 0, 0, 3] = 9
            columns[step, 0, 1, min(5 + step // 2, 11)] = 8
            columns[step, 1, 2, 7 if (step + seed) % 3 else 2] = 70 + 30 * (step == 2)
        lengths = np.full(steps, length)
        if causal:
            lengths = np.arange(length - steps, length) + 1
            columns[np.broadcast_to((np.arange(length) >= lengths[:, None])[:, None, None], columns.shape)] = np.nan
        self.lengths, self.column_sums = lengths, columns
        rows = rng.random(columns.shape).astype(np.float32) / length
        for step in range(steps):
            rows[step, 0, 1, 2 if step < 5 else 4] = 0.95
        self.last_query = np.where(np.isnan(columns), np.nan, rows)
        self.tokens = rng.integers(0, 12, (steps, length)).astype(np.int32)
        self.masked = (rng.random((steps, length)) < 0.5).astype(np.uint8)
        self.prompt_length = 9
        self.masked[:, : self.prompt_length] = 0
        parts = rng.dirichlet(np.ones(3), columns.shape).astype(np.float32)  # of masked, prompt and written queries
        self.column_sums_masked, self.column_sums_prompt = columns * parts[..., 0], columns * parts[..., 1]
        self.value_norms, self.key_norms = rng.random((2, steps, LAYERS, KV_HEADS, length)).astype(np.float32) + 1
        self.hidden_norms = rng.random((steps, LAYERS, length)).astype(np.float32) + 1

    def step(self, number):
        names = ["tokens", "masked", "column_sums", "value_norms", "key_norms", "hidden_norms"]
        names += ["last_query"] if self.causal else ["column_sums_masked", "column_sums_prompt"]
        return {name: getattr(self, name)[number][..., : self.lengths[number]] for name in names}

    def statistics(self):
        feed = Summary.feed(PromptSettings(self.causal, self.prompt_length))
        for number in range(self.steps):
            feed.feed(self.step(number))
        return Summary.of(feed.finish())


def whole(*prompts):
    first, *others = [prompt.statistics() for prompt in prompts]
    for one in others:
        first.merge(one)
    return first


@pytest.fixture(scope="module", params=[False, True], ids=["diffusion", "autoregressive"])
def prompts(request):
    return [Prompt(seed, request.param, steps) for seed, steps in ((0, 9), (1, 7), (2, 12))]


@pytest.fixture(scope="module")
def merged(prompts):
    return whole(*prompts)


def columns_of(prompts):
    """[layer, column] of all steps and heads, without what is not there."""
    return [
        np.concatenate([p.column_sums[:, layer][~np.isnan(p.column_sums[:, layer])] for p in prompts])
        for layer in range(LAYERS)
    ]


def test_counts_are_those_of_find_sinks(prompts, merged):
    counts = document_of(merged)["counts"]
    assert counts["prompts"] == 3
    assert counts["steps"] == 28
    assert counts["sinks"] == sum(len(find_sinks(prompt)) for prompt in prompts) > 0
    assert counts["columns"] == sum((~np.isnan(prompt.column_sums)).sum() for prompt in prompts)


def test_epsilon_curves_are_eq_3_at_every_threshold_and_in_both_units(prompts, merged):
    above = document_of(merged)["counts"]["above_epsilon"]
    for unit in ("queries", "percent"):
        dense = [sum(int(is_sink(prompt.column_sums, float(e), unit).sum()) for prompt in prompts) for e in EPSILONS]
        assert above[unit] == dense
    curve = document_of(merged)["means"]["epsilon_curve"]
    assert curve["epsilon"][12] == 3
    assert curve["not_sinks_queries"][12] == pytest.approx(
        1 - above["queries"][12] / document_of(merged)["counts"]["columns"]
    )


def test_the_histogram_counts_every_column_once_in_its_bin(prompts, merged):
    edges = np.append(histogram_edges(), np.inf)
    for layer, columns in enumerate(columns_of(prompts)):
        np.testing.assert_array_equal(merged.arrays["histogram.columns"][layer], np.histogram(columns, edges)[0])
    assert merged.arrays["histogram.columns"][1, 256:].sum() == sum(
        prompt.steps for prompt in prompts
    )  # those of 70 and 100


def test_moves_and_drift_are_those_of_the_tracks(prompts, merged):
    expected = [track(find_sinks(prompt)).heads for prompt in prompts]
    moves, swaps = (
        np.array([[getattr(head, name) for head in heads] for heads in expected]).reshape(3, LAYERS, HEADS)
        for name in ("moves", "swaps")
    )
    np.testing.assert_array_equal(merged.arrays["moves.moves"], moves.sum(axis=0))
    np.testing.assert_array_equal(merged.arrays["moves.swaps"], swaps.sum(axis=0))
    assert (moves + swaps).sum() > 0
    for layer in range(LAYERS):
        for head in range(HEADS):
            drifts = [heads[layer * HEADS + head].drift_per_step for heads in expected]
            drifts = [drift for drift in drifts if drift is not None]
            assert merged.arrays["moves.drifts"][layer, head] == len(drifts)
            assert merged.arrays["moves.drift"][layer, head] == pytest.approx(sum(drifts), abs=1e-9)


def main_of(prompt):
    columns = last_query_window(prompt.last_query) if prompt.causal else prompt.column_sums
    return main_sinks(columns, is_sink(columns))


def test_distances_of_moves(prompts, merged):
    signed = absolute = pairs = moves = swaps = 0
    for prompt in prompts:
        columns = last_query_window(prompt.last_query) if prompt.causal else prompt.column_sums
        sink = is_sink(columns)
        main = main_sinks(columns, sink)
        for step, layer, head in np.ndindex(*np.subtract(main.shape, (1, 0, 0))):
            before, after = main[step, layer, head], main[step + 1, layer, head]
            pairs += before >= 0 and after >= 0
            if before < 0 or after < 0 or before == after:
                continue
            if sink[step, layer, head, after] and sink[step + 1, layer, head, before]:
                swaps += 1
            else:
                moves, signed, absolute = moves + 1, signed + after - before, absolute + abs(after - before)
    names = ("pairs", "moves", "swaps", "distance", "absolute_distance")
    assert tuple(merged.arrays[f"moves.{name}"].sum() for name in names) == (pairs, moves, swaps, signed, absolute)
    counts = document_of(merged)["counts"]
    assert (counts["moves"], counts["swaps"]) == (moves, swaps)


def test_tokens_are_tallied_as_sinks_and_on_the_canvas(prompts, merged):
    found = merged.token_tallies()
    for token, sinks, main, canvas in zip(*(values.tolist() for values in found.values()), strict=True):
        assert sinks == sum(int((find_sinks(prompt).token == token).sum()) for prompt in prompts)
        here = [[prompt.tokens[step][: prompt.lengths[step]] for step in range(prompt.steps)] for prompt in prompts]
        assert canvas == LAYERS * HEADS * sum(int((tokens == token).sum()) for steps in here for tokens in steps)
        stood = [
            prompt.tokens[step, at]
            for prompt in prompts
            for step, *_, at in np.argwhere(main_of(prompt)[..., None] == np.arange(LENGTH))
        ]
        assert main == sum(int(one == token) for one in stood)
    assert (np.diff(found["sinks"]) <= 0).all()


def test_classes_add_up_to_all_sinks(prompts, merged):
    texts = {0: "\n", 1: " ", 2: "7", 3: ".", 4: " Tom", 5: "<|im_start|>"}
    counts = document_of(merged, texts, mask_id=6, special=(7,))["counts"]
    assert sum(one["sinks"] for one in counts["classes"].values()) == counts["sinks"]
    by_token = dict(zip(*(merged.token_tallies()[name].tolist() for name in ("token", "sinks")), strict=True))
    expected = {
        "newline": [0],
        "white space": [1],
        "digit": [2],
        "punctuation": [3],
        "special": [5, 7],
        "mask": [6],
        "word": [4, 8, 9, 10, 11],
    }
    assert {name: one["sinks"] for name, one in counts["classes"].items()} == {
        name: sum(by_token[token] for token in tokens) for name, tokens in expected.items()
    }


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("\n\n", "newline"),
        ("  ", "white space"),
        (" 12", "digit"),
        (" +", "punctuation"),
        (" a1", "word"),
        ("<|endoftext|>", "special"),
        (None, "word"),
        ("", "word"),
    ],
)
def test_classes_of_tokens(text, kind):
    assert token_class(text, False, False) == kind
    assert token_class(text, True, True) == "mask"
    assert token_class(text, False, True) == "special"


def test_strengths_and_concentration_of_every_head(prompts, merged):
    found = merged.by_head
    for layer in range(LAYERS):
        for head in range(HEADS):
            rows = [
                p.column_sums[step, layer, head, : p.lengths[step]].astype(float)
                for p in prompts
                for step in range(p.steps)
            ]
            sinks = [is_sink(row[None, None].astype(np.float32))[0, 0] for row in rows]
            shares = [row / row.sum() for row in rows]
            gini = [np.abs(row[:, None] - row).sum() / (2 * len(row) * row.sum()) for row in rows]
            expected = {
                "sinks": np.mean([one.sum() for one in sinks]),
                "largest": np.mean([row.max() for row in rows]),
                "sink_share": np.mean([share[one].sum() for share, one in zip(shares, sinks, strict=True)]),
                "entropy": np.mean([-(share * np.log(share)).sum() / np.log(len(share)) for share in shares]),
                "gini": np.mean(gini),
                "steps_with_sink": np.mean([one.any() for one in sinks]),
            }
            for name, value in expected.items():
                assert found[name][layer, head] == pytest.approx(value, rel=2e-5, abs=1e-6), name
            counts = np.bincount([one.sum() for one in sinks], minlength=33)
            if (layer, head) == (0, 3):
                assert counts[0] == len(rows)
    per_head = sum(np.bincount(is_sink(p.column_sums[:, 0]).sum(-1).ravel(), minlength=33) for p in prompts)
    np.testing.assert_array_equal(merged.arrays["strength.per_head"][0], per_head)


def test_norms_of_sinks_and_of_others(prompts, merged):
    found = document_of(merged)["means"]["norms_by_layer"]
    for layer in range(LAYERS):
        numbers = {kind: ([], []) for kind in ("value", "key", "hidden", "contribution")}
        for prompt in prompts:
            for step in range(prompt.steps):
                for head in range(HEADS):
                    for position in range(prompt.lengths[step]):
                        column = prompt.column_sums[step, layer, head]
                        other = not is_sink(column[None, None])[0, 0, position]
                        value = prompt.value_norms[step, layer, head // 2, position]
                        numbers["value"][other].append(value)
                        numbers["key"][other].append(prompt.key_norms[step, layer, head // 2, position])
                        numbers["hidden"][other].append(prompt.hidden_norms[step, layer, position])
                        numbers["contribution"][other].append(value * column[position])
        for kind, (sinks, others) in numbers.items():
            assert found[f"{kind}_sinks"][layer] == pytest.approx(np.mean(sinks), rel=1e-5)
            assert found[f"{kind}_others"][layer] == pytest.approx(np.mean(others), rel=1e-5)
            pooled = (len(sinks) * np.var(sinks) + len(others) * np.var(others)) / (len(sinks) + len(others))
            assert found[f"{kind}_effect_size"][layer] == pytest.approx(
                (np.mean(sinks) - np.mean(others)) / pooled**0.5, rel=1e-3
            )


def test_groups_split_where_their_strongest_keys_differ():
    prompt = Prompt(4)
    prompt.masked[:] = 0
    for step, masks in enumerate(
        (7, 8, 9, 11, 12)
    ):  # of 18 that are not the prompt's: too few, then too few written ones
        prompt.masked[step, LENGTH - masks :] = 1
    compared, split = dict.fromkeys(("", "_prompt", "_written"), 0), dict.fromkeys(("", "_prompt", "_written"), 0)
    for step in range(STEPS):
        masks, masked, of_prompt = (
            prompt.masked[step].sum(),
            prompt.column_sums_masked[step],
            prompt.column_sums_prompt[step],
        )
        unmasked = prompt.column_sums[step] - masked
        others = {
            "": (LENGTH - masks, unmasked),
            "_prompt": (9, of_prompt),
            "_written": (LENGTH - masks - 9, unmasked - of_prompt),
        }
        for name, (queries, columns) in others.items():
            if masks >= 8 and queries >= 8:
                compared[name] += 1
                split[name] += masked.argmax(-1) != columns.argmax(-1)
    arrays = prompt.statistics().arrays
    assert compared == {"": 4, "_prompt": 4, "_written": 2}
    for name in compared:
        assert (arrays[f"groups.compared{name}"] == compared[name]).all()
        np.testing.assert_array_equal(arrays[f"groups.split{name}"], split[name])


def test_prompts_are_the_unit_of_the_intervals(prompts, merged):
    from scipy.stats import t

    assert document_of(merged)["means"]["by_prompt"]["sinks_per_head"]["interval"] is None  # three prompts
    prompts = [*prompts, *(Prompt(seed, merged.causal) for seed in (11, 12, 13))]
    alone = np.array([len(find_sinks(prompt)) / (LAYERS * HEADS * prompt.steps) for prompt in prompts])
    found = document_of(whole(*prompts))["means"]["by_prompt"]["sinks_per_head"]
    half = t.ppf(0.975, 5) * alone.std(ddof=1) / np.sqrt(6)
    assert found["mean"] == pytest.approx(alone.mean())
    assert found["interval"] == pytest.approx([alone.mean() - half, alone.mean() + half], abs=1e-9)
    assert found["prompts"] == 6


# Merging


def assert_same(one, other, exact=False):
    mine, theirs = one.to_arrays(), other.to_arrays()
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        assert array.dtype == theirs[name].dtype
        if exact or array.dtype.kind == "i":
            np.testing.assert_array_equal(array, theirs[name], err_msg=name)
        else:
            np.testing.assert_allclose(array, theirs[name], rtol=1e-12, atol=1e-9, err_msg=name)


@settings(max_examples=12, deadline=None)
@given(seeds=st.lists(st.integers(0, 6), min_size=3, max_size=5), data=st.data())
@pytest.mark.slow
def test_merging_is_commutative_and_associative(seeds, data):
    order = data.draw(st.permutations(range(len(seeds))))
    cut = data.draw(st.integers(1, len(seeds) - 1))
    forward = whole(*(Prompt(seed, steps=4) for seed in seeds))
    shuffled = [Prompt(seeds[at], steps=4) for at in order]
    grouped = whole(*shuffled[:cut])
    grouped.merge(whole(*shuffled[cut:]))
    assert_same(forward, grouped)


@settings(max_examples=8, deadline=None)
@given(one=st.integers(0, 9), other=st.integers(0, 9))
def test_two_prompts_merge_the_same_to_the_bit_in_either_order(one, other):
    assert_same(
        whole(Prompt(one, steps=3), Prompt(other, steps=3)),
        whole(Prompt(other, steps=3), Prompt(one, steps=3)),
        exact=True,
    )


def test_merging_with_nothing_changes_nothing(merged, prompts):
    for pair in (
        (Summary(LAYERS, HEADS, causal=merged.causal), merged),
        (whole(*prompts), Summary(LAYERS, HEADS, causal=merged.causal)),
    ):
        empty_first, added = pair
        empty_first.merge(added)
        assert_same(empty_first, whole(*prompts), exact=True)


def test_arrays_give_the_same_back(merged):
    again = Summary.from_arrays(merged.to_arrays())
    assert_same(again, merged, exact=True)
    assert (again.excess, again.causal) == (3.0, merged.causal)
    assert document_of(again) == document_of(merged)


def test_under_ten_megabytes_with_every_token_of_an_8b_vocabulary():
    feed = Summary.feed(PromptSettings())
    step = {"column_sums": np.ones((32, 32, 2)), "tokens": np.zeros(2, np.int64)}
    feed.feed(step)
    large, vocabulary = Summary.of(feed.finish()), 126_464
    large.arrays["tokens.ids"], large.arrays["tokens.counts"] = (
        np.arange(vocabulary, dtype=np.int32),
        np.ones((vocabulary, 3), np.int64),
    )
    assert sum(array.nbytes for array in large.to_arrays().values()) < 7e6


def test_arrays_of_another_version_are_refused(merged):
    """Such as those from before moves and swaps were told apart."""
    for lacking in ("moves.swaps", "profiles.keys"):
        arrays = {name: array for name, array in merged.to_arrays().items() if name != lacking}
        with pytest.raises(SinkscopeError, match="expected statistics of this version, found others"):
            Summary.from_arrays(arrays)


def test_a_statistic_that_only_some_prompts_have_is_merged_by_its_name(prompts):
    one, other = prompts[0].statistics(), prompts[1].statistics()
    alone = dict(zip(one.keys, one.values, strict=True))
    extra = ("new.number", (("layer", 1),))
    other.keys, other.values = (*other.keys, extra), np.concatenate([other.values, [[1, 2.5, 6.25]]])
    one.merge(other)
    found = dict(zip(one.keys, one.values, strict=True))
    assert found[extra].tolist() == [1, 2.5, 6.25]
    key = ("concentration.entropy", ())
    np.testing.assert_array_equal(found[key], alone[key] + dict(zip(other.keys, other.values, strict=True))[key])


def test_an_empty_one_has_no_means():
    found = document_of(Summary(LAYERS, HEADS))
    assert found["counts"]["sinks"] == 0
    assert found["means"]["by_prompt"]["entropy"] == {"mean": None, "interval": None, "prompts": 0}


def test_another_shape_or_threshold_is_refused(merged):
    with pytest.raises(SinkscopeError, match="expected statistics with the same layers, heads, excess, causal"):
        merged.merge(Summary(LAYERS, HEADS, excess=2, causal=merged.causal))


def test_another_tolerance_or_training_corpus_is_refused():
    trace = make_trace(random_columns(0))
    plain = Summary.of(summarise(trace, Summary.thresholds()))
    for more, numbers in (
        ({"tolerance": 5}, r"5, 0\)"),
        ({"training": {7: 3}}, r"0, [1-9]\d*\)"),
        ({"training": {7: 4}}, r"0, [1-9]\d*\)"),
    ):
        other = Summary.of(summarise(trace, Summary.thresholds(), **more))
        for one in (other, Summary.from_arrays(other.to_arrays())):
            with pytest.raises(SinkscopeError, match=rf"expected .* tolerance, corpus .* found \(.*{numbers}"):
                plain.merge(one)
        other.merge(Summary.from_arrays(other.to_arrays()))
    assert plain.prompts == 1 and plain.to_arrays()["settings"].shape == (4,)  # as in files of earlier versions


def test_arrays_of_a_summary_are_copies(merged):
    columns = merged.columns
    for array in merged.to_arrays().values():
        array[...] = 0
    assert merged.columns == columns > 0 and merged.values.any()


def test_other_arrays_are_refused():
    with pytest.raises(SinkscopeError, match="expected statistics of this version, found others"):
        Summary.from_arrays({"settings": np.array([2.0, 4, 3, 0])})
