"""The numbers of the page agree with the whole trace in memory."""

import json
from collections import Counter

import numpy as np
import pytest
from wandering import HEADS, LAYERS, MASK, STEPS

from sinkscope.figures import page_numbers
from sinkscope.sinks import find_sinks, is_sink, track


def test_summary_agrees_with_the_whole_trace_in_memory(wandering):
    numbers, sinks = page_numbers(wandering), find_sinks(wandering)
    tracks = track(sinks)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert (numbers["steps"], numbers["layers"], numbers["heads"]) == (STEPS, LAYERS, HEADS)
    assert numbers["sinks"] == len(sinks) == 3 * STEPS
    assert numbers["selected_share"] == pytest.approx(sinks.selected_share)
    assert numbers["sinks_in_percent_unit"] == is_sink(wandering.column_sums[:], 3.0, "percent").sum()
    assert numbers["tracks"] == tracks.kinds
    assert numbers["heads_with_sink"] == numbers["heads_with_main_sink"] == 3
    assert numbers["movement"]["moves_per_head"] == pytest.approx(np.mean([12, STEPS - 1, 0]))
    assert numbers["movement"]["drift_per_step"] == pytest.approx(
        np.mean([h.drift_per_step for h in tracks.heads if h.steps_with_sink])
    )
    null = numbers["movement"]["null_drift"]
    assert null["low"] <= null["mean"] <= null["high"]


def test_summary_counts_sink_tokens_beside_their_share_of_the_canvas(wandering):
    sinks, tokens = find_sinks(wandering), wandering.tokens[:]
    expected, canvas = Counter(sinks.token.tolist()), Counter(tokens.ravel().tolist())
    found = {row["token"]: row for row in page_numbers(wandering)["sink_tokens"]}
    assert {token: row["sinks"] for token, row in found.items()} == expected
    for token, row in found.items():
        assert row["share_of_canvas"] == pytest.approx(canvas[token] / tokens.size)
        assert row["share_of_sinks"] == pytest.approx(expected[token] / len(sinks))
        assert row["expected_share"] == pytest.approx((tokens[sinks.step] == token).mean())
        assert row["times_expected"] == pytest.approx(row["share_of_sinks"] / row["expected_share"])
    assert found[MASK]["text"] == "[M]"


def test_the_threshold_asked_for_is_used(wandering):
    assert page_numbers(wandering, excess=8.5)["sinks"] == len(find_sinks(wandering, excess=8.5)) == STEPS


def test_of_an_autoregressive_model_two_counts_of_heads_are_told_apart(causal):
    numbers = page_numbers(causal)
    assert (numbers["heads_with_sink"], numbers["heads_with_main_sink"]) == (3, 1)
