"""Rules that can match nothing on any canvas of a model are refused when they are put into force; those that may match
are not.
"""

import math

import numpy as np
import pytest

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import HidePositions, HideSinksAbove, HideTopSinks, compose, parse_rule
from sinkscope.statistics import Threshold, analyse
from sinkscope.traces import open_trace


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (HideTopSinks(1, keys=[5000, 6000]), "keys: expected positions from 0 to 1023, .*, found 5000"),
        (HideTopSinks(1, queries=[1024]), "queries: expected positions from 0 to 1023, .*, found 1024"),
        (parse_rule("top:1@keys=5000"), "keys: expected positions from 0 to 1023"),
        (HidePositions([3], keys=[5000]), "keys: expected positions from 0 to 1023"),
        (
            HideSinksAbove(1e300),
            r"excess 1e\+300 in queries can never hold on this model, whose longest canvas has 1024",
        ),
        (compose(HideTopSinks(1), HideSinksAbove(1024.0)), "excess 1024 in queries can never hold"),
    ],
    ids=repr,
)
def test_a_rule_that_can_match_nothing_is_refused(lab_diffusion, rule, message):
    assert lab_diffusion.card.max_positions == 1024
    with pytest.raises(CallError, match=message), rule(lab_diffusion):
        pass


@pytest.mark.parametrize(
    "rule",
    [
        HidePositions([3, 5000]),
        HidePositions([5000]),
        HideTopSinks(1, keys=range(10, 10**5)),
        HideTopSinks(1, queries=[1023]),
        HideTopSinks(1, steps=[100]),
        HideTopSinks(1, keys=[]),
        HideSinksAbove(1023.0),
        HideSinksAbove(math.inf),
        compose(HideTopSinks(0, keys=[5000]), HideTopSinks(1)),
    ],
    ids=repr,
)
def test_a_rule_that_may_match_or_hides_nothing_on_purpose_is_taken(lab_diffusion, rule):
    with rule(lab_diffusion):
        pass


def test_numbers_that_can_never_hold_are_refused_when_a_rule_or_a_threshold_is_made():
    with pytest.raises(CallError, match="excess 100 in percent can never hold, as all attention is 100"):
        HideSinksAbove(100.0, unit="percent")
    with pytest.raises(CallError, match="excess 100 in percent can never hold, as all attention is 100"):
        Threshold(100.0, "percent")


def test_a_threshold_that_no_column_of_a_trace_can_exceed_is_refused(lab_diffusion, tmp_path):
    with sinkscope.recording(lab_diffusion, out=tmp_path / "trace"):
        sinkscope.generate(lab_diffusion, [4, 5, 6], length=2, steps=2, block=2)
    trace = open_trace(tmp_path / "trace")
    with pytest.raises(CallError, match="excess: 10 in queries can never hold: all steps have 10 queries"):
        analyse(trace, [Threshold(10.0)], choice=False)
    for excess in (8.0, 9.5):
        assert np.isfinite(analyse(trace, [Threshold(excess)], choice=False).prompts)
