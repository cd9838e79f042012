import numpy as np
import pytest
import tokenizers
from planted import DOT, END, MASK, NEWLINE, SEVEN, SPACE, THE, make_trace, random_columns, values_at
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from sinkscope.sinks import find_sinks
from sinkscope.sinks.definition import CLASSES, class_of, text_of
from sinkscope.statistics import Threshold, summarise
from sinkscope.statistics.composition import Composition, TokenShares, leading_tokens

THRESHOLDS = [Threshold(3.0), Threshold(5.0, "percent")]


READS = {
    "newline": ("\n", " \n\n", "Ċ"),
    "white space": (" ", "\t", "▁▁"),
    "punctuation": (".", " ,", "####", "<"),
    "special": ("<|endoftext|>", "</s>", "[CLS]"),
    "digit": (" 42",),
    "word": ("Ġthe", "isn't", "a1"),
}


def test_classes_by_how_a_token_reads_and_by_its_id():
    for expected, texts in READS.items():
        assert {class_of(text) for text in texts} == {expected}


def test_characters_are_characters_and_bytes_of_half_a_character_are_bytes():
    letters = bytes_to_unicode()
    names = ["".join(letters[byte] for byte in read) for read in (" 漢".encode(), "😀".encode()[:2], b"a\xbc", b"\n")]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: at for at, name in enumerate(names)}))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert [text_of(tokenizer, at) for at in range(5)] == [" 漢", "<0xF0><0x9F>", "a<0xBC>", "\n", ""]
    trace = make_trace(random_columns(0))
    trace.tokens[0, :8] = MASK, END, NEWLINE, SPACE, DOT, SEVEN, THE, 77
    canvas = summarise(trace, THRESHOLDS).canvas
    found = canvas.token_classes[canvas.token_indices[0, :8]]
    expected = ["mask", "special", "newline", "white space", "punctuation", "digit", "word", "word"]
    assert [CLASSES[one] for one in found] == expected


@pytest.mark.parametrize("number", [0, 1])
def test_shares_by_class_and_token_are_those_of_a_count(number):
    trace = make_trace(random_columns(1, steps=20))
    point = THRESHOLDS[number]
    training = {NEWLINE: 50, SPACE: 30, DOT: 15, SEVEN: 5, 99: 100}
    profile = summarise(trace, THRESHOLDS, training=training)
    values = values_at(Composition(), profile, point)
    sinks = find_sinks(trace, point.excess, point.unit).token
    canvas = trace.tokens.ravel()
    beside = trace.tokens[find_sinks(trace, point.excess, point.unit).step].ravel()  # a canvas for each sink
    classes = {"mask": MASK, "newline": NEWLINE, "white space": SPACE, "punctuation": DOT, "digit": SEVEN}
    for name, token in classes.items():
        at = (("class", name),)
        of_sinks, of_canvas = (sinks == token).mean(), (canvas == token).mean()
        assert values["composition.share_of_sinks", at] == pytest.approx(of_sinks)
        assert values["composition.share_of_canvas", at] == pytest.approx(of_canvas)
        assert values["composition.times_expected", at] == pytest.approx(of_sinks / (beside == token).mean())
        if token in training:
            assert values["composition.times_training", at] == pytest.approx(of_sinks / (training[token] / 200))
        shares = leading_tokens([TokenShares.of(profile)], number)[token]
        assert [one.item() for one in shares] == pytest.approx((of_sinks, of_canvas))
    assert np.isnan(values["composition.times_training", (("class", "mask"),)])  # no training text holds a mask
    np.testing.assert_array_equal(profile.canvas.token_ids[profile.canvas.token_indices], trace.tokens)
    assert profile.canvas.token_counts.sum() == trace.tokens.size


def test_what_lies_beyond_the_canvas_is_no_token():
    trace = make_trace(random_columns(2))
    trace.tokens[:, 25:], trace.lengths, trace.column_sums[..., 25:] = -1, np.full(trace.steps, 25), np.nan
    trace.tokens[0, 24], trace.lengths[0], trace.column_sums[0, ..., 24] = -1, 24, np.nan
    canvas = summarise(trace, THRESHOLDS).canvas
    assert canvas.token_ids.min() > 0
    assert canvas.token_counts.sum() == 25 * trace.steps - 1
    assert (canvas.token_indices[:, 24:] == -1).sum() == 1


def test_sinks_in_the_steps_with_most_masks_are_not_therefore_sinks_on_masks():
    """Anywhere on the canvas, but only in the first third of the steps, when masks are many."""
    ratios, naive, at = [], [], (("class", "mask"),)
    for seed in range(16):
        columns = random_columns(seed, steps=18, layers=1)
        columns[6:] = 1.0
        values = values_at(Composition(), summarise(make_trace(columns, seed=seed), THRESHOLDS[:1]), THRESHOLDS[0])
        ratios.append(values["composition.times_expected", at])
        naive.append(values["composition.share_of_sinks", at] / values["composition.share_of_canvas", at])
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.std(ratios) / np.sqrt(16)) and np.mean(naive) > 1.3


def test_a_rate_that_follows_training_frequency_correlates_with_it():
    from scipy.stats import spearmanr

    trace = make_trace(random_columns(3, steps=20))
    canvas, sinks = summarise(trace, THRESHOLDS).canvas, find_sinks(trace).token
    sinks = (sinks[:, None] == canvas.token_ids).sum(axis=0) / canvas.token_counts
    known = canvas.token_ids != MASK

    def correlation(training):
        values = values_at(Composition(), summarise(trace, THRESHOLDS, training=training), THRESHOLDS[0])
        return values["composition.frequency_correlation", ()]

    order = np.argsort(np.argsort(sinks))
    training = {int(token): int(10 + rank) for token, rank in zip(canvas.token_ids, order, strict=True)}
    assert correlation(training) == pytest.approx(1)
    other = {int(token): int(token) ** 2 % 7 for token in canvas.token_ids}
    expected = spearmanr(sinks[known], [other[int(token)] for token in canvas.token_ids[known]]).statistic
    assert correlation(other) == pytest.approx(expected)
    flat = dict.fromkeys(training, 3)
    assert np.isnan(correlation(flat))


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
