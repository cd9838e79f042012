"""What is longer than anything can be is refused before it is walked: no call takes time or memory for it."""

import itertools
import time

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.emergence import hold_out
from sinkscope.errors import CallError
from sinkscope.interventions import HidePositions
from sinkscope.lab.corpus import make_corpus
from sinkscope.models import bundled_folder

MIDDLE, LONG, ENDLESS = range(5, 10**6 * 3), range(5, 10**9), range(5, 10**30)
TOO_MANY = 10**7
CALLS = {
    "positions": (
        lambda model: HidePositions(LONG),
        "positions: expected numbers below 16,777,216, found 999999999 among them",
    ),
    "layers": (
        lambda model: sinkscope.HideTopSinks(1, layers=LONG),
        "layers: expected numbers below 16,777,216, found 999999999",
    ),
    "steps": (lambda model: sinkscope.HideTopSinks(1, steps=ENDLESS), "expected numbers"),
    "a rule": (
        lambda model: sinkscope.parse_rule("top:1@heads=" + "+".join(["1.1"] * 10**6)),
        "expected at most 1,048,576 characters",
    ),
    "a prompt": (
        lambda model: sinkscope.generate(model, MIDDLE, length=4),
        "a list of either, at most 1,048,576, found more",
    ),
    "prompts": (
        lambda model: sinkscope.generate(model, [LONG, ENDLESS], length=4),
        r"at most 1,048,576, found range\(5, 1000000000\)",
    ),
    "a generator": (
        lambda model: sinkscope.generate(model, itertools.count(3), length=4),
        "at most 1,048,576, found more",
    ),
    "an array": (
        lambda model: sinkscope.generate(model, np.full(TOO_MANY, 7), length=4),
        "at most 1,048,576, found 10,000,000",
    ),
    "a tensor": (lambda model: model.encode(torch.full((TOO_MANY,), 7)), "at most 1,048,576, found 10,000,000"),
    "a list": (lambda model: model.decode([7] * TOO_MANY), "at most 1,048,576, found 10,000,000"),
    "a text": (
        lambda model: sinkscope.generate(model, "2 " * TOO_MANY, length=4),
        "at most 1,048,576 characters, found 20,000,000",
    ),
    "a likelihood": (
        lambda model: sinkscope.log_likelihood(model, [7], ENDLESS),
        "continuation as text or as 1-D token ids, at most",
    ),
    "a canvas": (lambda model: hold_out([LONG], mask_id=2), "canvas 0: expected a row of at most 1,048,576 token ids"),
    "predictable": (lambda model: hold_out([[5, 6]], [LONG], mask_id=2), "predictable 0: expected 2 truth values"),
    "canvases": (
        lambda model: hold_out(ENDLESS, mask_id=2),
        r"tokens: expected at most 4,194,304 numbers, found range\(5, 10",
    ),
    "traces": (lambda model: sinkscope.analyse(MIDDLE), "expected an open trace or the path of one, found int"),
    "a list of numbers": (
        lambda model: sinkscope.analyse(ENDLESS),
        r"traces: expected at most 4,194,304 numbers, found range\(5, 10",
    ),
    "tasks": (
        lambda model: sinkscope.evaluation.evaluate(model, tasks=ENDLESS, out="out"),
        "tasks: expected .*, found range",
    ),
    "positions of an array": (
        lambda model: HidePositions(np.zeros(2 * TOO_MANY, int)),
        "positions: expected at most 16,777,216 numbers",
    ),
    "columns": (lambda model: sinkscope.sinks.is_sink([LONG]), r"columns: expected .*, found object \[\]"),
    "an array of canvases": (
        lambda model: hold_out(np.zeros(TOO_MANY, int), mask_id=2),
        "tokens: expected at most 4,194,304 items",
    ),
    "a name": (lambda model: bundled_folder("x" * 10**8), "name: expected one of lab-diffusion"),
    "roles": (
        lambda model: sinkscope.find_roles(model, MIDDLE),
        "expected a prompt as text or as 1-D token ids, found 5",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_too_long_is_refused_before_it_is_walked(diffusion, name):
    call, message = CALLS[name]
    began = time.process_time()
    with pytest.raises(CallError, match=message):
        call(diffusion)
    assert time.process_time() - began < 10


def test_a_corpus_is_not_made_of_numbers(tmp_path):
    with pytest.raises(CallError, match=r"texts: expected LongText\(title, text\), found 5"):
        make_corpus(MIDDLE, tmp_path / "corpus")
