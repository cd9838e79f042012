"""The keys that receive least attention are hidden."""

import pytest

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import parse_rule
from sinkscope.interventions.bottom_keys import HideBottomKeys


def written(model, rule, question, settings):
    with parse_rule(rule)(model) as hiding:
        sinkscope.generate(model, question, **settings)
    return hiding.effect


def test_it_hides_so_many_keys_that_hold_little(model, question, settings):
    bottom, top = (written(model, rule, question, settings) for rule in ("bottom:2", "top:2"))
    assert bottom.keys_per_head == top.keys_per_head == 2
    assert 0 < bottom.removed_share < top.removed_share


def test_more_keys_than_there_are_is_no_error(model, question, settings):
    assert written(model, "bottom:9999", question, settings).removed_share >= 0


def test_what_makes_no_sense_is_refused():
    for wrong in ({"k": -1}, {"k": 1, "observe": "next"}):
        with pytest.raises(CallError, match=r"expected a whole number from 0 upwards|expected previous or current"):
            HideBottomKeys(**wrong)
