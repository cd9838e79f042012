import numpy as np
import pytest
from planted import DOT, END, MASK, NEWLINE, SEVEN, SPACE, THE, make_trace, random_columns, sink_at

from sinkscope.sinks import Point, find_sinks, profile_of
from sinkscope.sinks.composition import (
    TokenShares,
    canvas_tally,
    classes_of,
    composition_values,
    leading_tokens,
    token_shares,
)
from sinkscope.sinks.layers import canvas_of
from sinkscope.sinks.token_classes import CLASSES, class_of

POINTS = [Point(3.0), Point(5.0, "percent")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n", "newline"),
        (" \n\n", "newline"),
        ("Ċ", "newline"),
        (" ", "white space"),
        ("\t", "white space"),
        ("▁▁", "white space"),
        (".", "punctuation"),
        (" ,", "punctuation"),
        ("####", "punctuation"),
        ("<", "punctuation"),
        ("<|endoftext|>", "special"),
        ("<|eot_id|>", "special"),
        ("</s>", "special"),
        ("[CLS]", "special"),
        (" 42", "digit"),
        ("Ġthe", "word"),
        ("isn't", "word"),
        ("a1", "word"),
    ],
)
def test_classes_by_how_a_token_reads(text, expected):
    assert class_of(text) == expected


def test_masks_and_special_tokens_are_known_by_their_ids():
    canvas = canvas_of(make_trace(random_columns(0)))
    found = classes_of(canvas, np.array([MASK, END, NEWLINE, SPACE, DOT, SEVEN, THE, 77]))
    assert [CLASSES[one] for one in found] == ["mask", "special", "newline", "white space", "punctuation", "digit", "word", "word"]


@pytest.mark.parametrize("number", [0, 1])
def test_shares_by_class_and_token_are_those_of_a_count(number):
    trace = make_trace(random_columns(1, steps=20))
    point = POINTS[number]
    training = {NEWLINE: 50, SPACE: 30, DOT: 15, SEVEN: 5, 99: 100}
    profile = profile_of(trace, POINTS)
    values = composition_values(profile, point, training)
    sinks = find_sinks(trace, point.excess, point.unit).token
    canvas = trace.tokens.ravel()
    beside = trace.tokens[find_sinks(trace, point.excess, point.unit).step].ravel()  # a canvas for each sink
    for name, token in (("mask", MASK), ("newline", NEWLINE), ("white space", SPACE), ("punctuation", DOT), ("digit", SEVEN)):
        at = (("class", name),)
        of_sinks, of_canvas = (sinks == token).mean(), (canvas == token).mean()
        assert values["composition.share_of_sinks", at] == pytest.approx(of_sinks)
        assert values["composition.share_of_canvas", at] == pytest.approx(of_canvas)
        assert values["composition.times_expected", at] == pytest.approx(of_sinks / (beside == token).mean())
        if token in training:
            assert values["composition.times_training", at] == pytest.approx(of_sinks / (training[token] / 200))
        shares = leading_tokens([token_shares(profile)], number)[token]
        assert [one.item() for one in shares] == pytest.approx((of_sinks, of_canvas))
    assert np.isnan(values["composition.times_training", (("class", "mask"),)])  # no training text holds a mask
    ids, counts, indices = canvas_tally(profile.canvas)
    np.testing.assert_array_equal(ids[indices], trace.tokens)
    assert counts.sum() == trace.tokens.size


def test_what_lies_beyond_the_canvas_is_no_token():
    trace = make_trace(random_columns(2))
    trace.tokens[:, 25:] = -1
    ids, counts, indices = canvas_tally(canvas_of(trace))
    assert ids.min() > 0
    assert counts.sum() == 25 * trace.steps
    assert (indices[:, 25:] == -1).all()


def test_planted_newline_sinks_are_found_against_their_share_of_the_canvas():
    tokens = np.full(30, THE)
    tokens[[4, 8]] = NEWLINE
    trace = make_trace(sink_at(np.full(10, 4)), tokens=tokens)
    values = composition_values(profile_of(trace, POINTS), POINTS[0])
    assert values["composition.share_of_sinks", (("class", "newline"),)] == 1
    assert values["composition.times_expected", (("class", "newline"),)] == pytest.approx(15)
    assert values["composition.times_expected", (("class", "mask"),)] == 0


def test_without_structure_every_class_gets_its_share():
    ratios = []
    for seed in range(40):
        trace = make_trace(random_columns(seed, steps=20, layers=1), seed=seed)
        ratios.append(composition_values(profile_of(trace, POINTS), POINTS[0])["composition.times_expected", (("class", "mask"),)])
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.std(ratios) / np.sqrt(40))


def test_sinks_in_the_steps_with_most_masks_are_not_therefore_sinks_on_masks():
    """Anywhere on the canvas, but only in the first third of the steps, when masks are many."""
    ratios, naive = [], []
    for seed in range(60):
        columns = random_columns(seed, steps=18, layers=1)
        columns[6:] = 1.0
        values = composition_values(profile_of(make_trace(columns, seed=seed), POINTS), POINTS[0])
        at = (("class", "mask"),)
        ratios.append(values["composition.times_expected", at])
        naive.append(values["composition.share_of_sinks", at] / values["composition.share_of_canvas", at])
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.std(ratios) / np.sqrt(60))
    assert np.mean(naive) > 1.3


def test_a_rate_that_follows_training_frequency_correlates_with_it():
    from scipy.stats import spearmanr

    trace = make_trace(random_columns(3, steps=20))
    profile = profile_of(trace, POINTS)
    sinks = profile.composition.tally[0].sum(axis=0) / profile.token_counts
    known = profile.token_ids != MASK
    order = np.argsort(np.argsort(sinks))
    training = {int(token): int(10 + rank) for token, rank in zip(profile.token_ids, order, strict=True)}
    assert composition_values(profile, POINTS[0], training)["composition.frequency_correlation", ()] == pytest.approx(1)
    other = {int(token): int(token) ** 2 % 7 for token in profile.token_ids}
    expected = spearmanr(sinks[known], [other[int(token)] for token in profile.token_ids[known]]).statistic
    assert composition_values(profile, POINTS[0], other)["composition.frequency_correlation", ()] == pytest.approx(expected)
    flat = dict.fromkeys(training, 3)
    assert np.isnan(composition_values(profile, POINTS[0], flat)["composition.frequency_correlation", ()])


def test_without_sinks_there_are_no_shares_of_them():
    profile = profile_of(make_trace(np.ones((4, 2, 3, 30))), POINTS)
    values = composition_values(profile, POINTS[0])
    assert np.isnan(values["composition.share_of_sinks", (("class", "mask"),)])
    assert values["composition.share_of_canvas", (("class", "mask"),)] > 0
    assert leading_tokens([token_shares(profile)], 0) == {}


def test_the_leading_tokens_are_those_of_the_mean_over_prompts():
    shares = [
        TokenShares(np.array([3, 5, 9]), np.array([[0.5, 0.5, 0.0]]), np.array([0.2, 0.2, 0.6])),
        TokenShares(np.array([3, 7]), np.array([[0.2, 0.8]]), np.array([0.9, 0.1])),
        TokenShares(np.array([3, 7]), np.zeros((1, 2)), np.array([0.9, 0.1])),  # no sink
    ]
    found = leading_tokens(shares, 0)
    assert list(found) == [7, 3, 5]
    np.testing.assert_allclose(found[7], [[0, 0.8, np.nan], [0, 0.1, np.nan]])
    np.testing.assert_allclose(found[3], [[0.5, 0.2, np.nan], [0.2, 0.9, np.nan]])
