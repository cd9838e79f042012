"""Writing in a given order: in its own order a model writes what it wrote, hidden or not."""

import pytest

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation.commit_order import order_of, write_in_order


@pytest.mark.parametrize("rule", ["none", "top:2"])
def test_in_its_own_order_a_run_repeats_itself(diffusion, question, tmp_path, rule):
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.parse_rule(rule)(diffusion):
        expected = sinkscope.generate(diffusion, question, length=12, block=4, steps=6)
    order = order_of(sinkscope.open_trace(tmp_path / "t").written[:])
    assert [len(places) for places in order] == [2] * 6
    with sinkscope.parse_rule(rule)(diffusion) as running:
        found = write_in_order(diffusion, question, order)
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert (found.text, found.steps, found.prompt_length) == (expected.text, expected.steps, expected.prompt_length)
    assert (running.effect.removed_share > 0) == (rule != "none")


def test_the_order_is_kept(diffusion, question, tmp_path):
    first = len(diffusion.encode(question))
    order = [[first + 3], [first, first + 2], [first + 1]]
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        write_in_order(diffusion, question, order)
    assert order_of(sinkscope.open_trace(tmp_path / "t").written[:]) == order


def test_a_bad_order_is_refused(diffusion, autoregressive, question):
    first = len(diffusion.encode(question))
    for order in ([[first], [first]], [[first + 1]], [[0], [first]]):
        with pytest.raises(CallError, match=rf"order: expected every position from {first} \(behind the prompt\) on once"):
            write_in_order(diffusion, question, order)
    with pytest.raises(CallError, match="has no mask token; it writes from left to right"):
        write_in_order(autoregressive, question, [[first]])
