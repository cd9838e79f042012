"""What items of problems may hold: each change of a field is refused with its name, what was expected and what was found."""

import copy
import math

import pytest

from sinkscope.documents import check_fields
from sinkscope.errors import EvaluationError
from sinkscope.evaluation.item_schema import compared_fields, evaluated_fields
from sinkscope.evaluation.results import _check_measures
from sinkscope.evaluation.results_folder import ResultItems

WORK = {"forwards": 4, "rows": 36, "projections": 5, "attention": 3, "mlp": 2, "vocabulary": 1, "total": 11}
ANY = {"run": "f0", "index": 0, "correct": True, "reason": "", "text": "7", "tokens": [5, 6], "seconds": 0.5}
COMPARED = {
    **ANY,
    "beside": 1,
    "canvas": 9,
    "work": WORK,
    "processor_seconds": 0.4,
    "on_cpu": True,
    "peak_memory": None,
}
LIKELY = {"total": -1.5, "standard_error": math.nan, "samples": 1, "tokens": 2, "greedy": None, "method": "monte_carlo"}
EFFECT = {"removed_share": 0.1, "removed_share_committed": None, "hit_rate": None, "keys_per_head": 1.0}
EVALUATED = {
    **ANY,
    **{
        "prompt": "a",
        "gold": "7",
        "read": None,
        "not_enforced": [],
        "measures": {"acc": True},
        "effect": EFFECT,
        "likelihoods": [LIKELY],
    },
}


def check(document, schema):
    check_fields(document, schema, "000000.json", EvaluationError)


@pytest.mark.parametrize("error", [None, math.nan, 0.25])
def test_a_standard_error_may_be_unknown(error):
    check({**EVALUATED, "likelihoods": [{**LIKELY, "standard_error": error}]}, evaluated_fields(0))


def test_whole_items_fit():
    check(COMPARED, compared_fields(7, 100))
    check(EVALUATED, evaluated_fields(0))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("correct",), 1, "correct: expected true or false, found 1"),
        (("tokens",), [], "tokens: expected at least 1 values, found a list of 0"),
        (("tokens",), [5], "canvas: expected 7 tokens of the prompt and 1 of the answer, found 9"),
        (("tokens", 1), 100, "tokens[1]: expected a number below 100, found 100"),
        (("tokens", 0), [], "tokens[0]: expected a whole number, found a list of 0"),
        (("canvas",), 10**40, "canvas: expected a number up to"),
        (("work", "rows"), 0, "work.rows: expected a number from 1 upwards, found 0"),
        (("work", "mlp"), 3, "work.total: expected the sum of the multiply-adds, 12, found 11"),
        (("work", "rows"), None, "work.rows: expected a whole number, found null"),
        (("seconds",), math.nan, "seconds: expected a finite number, found nan"),
        (("seconds",), 1e300, "seconds: expected a number up to 1099511627776"),
        (("processor_seconds",), -1, "processor_seconds: expected a number from 0.0 upwards, found -1"),
        (("peak_memory",), "x", "peak_memory: expected a whole number, found 'x'"),
        (("more",), 1, "more: expected no such field, found 1"),
        (("work",), ..., "work: expected a value, found none"),
    ],
)
def test_a_changed_item_of_a_comparison_is_refused(path, value, says):
    with pytest.raises(EvaluationError) as error:
        check(changed(COMPARED, path, value), compared_fields(7, 100))
    assert str(error.value).startswith("000000.json: ") and says in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("measures", "acc"), 2, "measures.acc: expected true or false, found 2"),
        (("effect", "hit_rate"), 2.0, "effect.hit_rate: expected a number up to 1"),
        (("effect", "removed_share"), 7.0, "effect.removed_share: expected a number up to 1.001, found 7"),
        (("effect", "removed_share"), math.inf, "effect.removed_share: expected a finite number, found inf"),
        (("not_enforced",), "x", "not_enforced: expected a list, found 'x'"),
        (("likelihoods", 0, "total"), [], "likelihoods[0].total: expected a number, found a list of 0"),
        (("seconds",), ..., "seconds: expected a value, found none"),
    ],
)
def test_a_changed_item_of_an_evaluation_is_refused(path, value, says):
    with pytest.raises(EvaluationError) as error:
        check(changed(EVALUATED, path, value), evaluated_fields(0))
    assert says in str(error.value)


def test_items_of_other_measures_are_refused(tmp_path):
    stored = ResultItems(tmp_path, "piqa", "none", "h", schema=evaluated_fields)
    with pytest.raises(EvaluationError) as error:
        _check_measures(stored, [EVALUATED, {**EVALUATED, "index": 1, "measures": {}}])
    expected = "expected ['acc'], as the first problem has, found []; remove the file that is wrong, and run the same command again"
    assert str(error.value) == f"{stored.path(1)}: measures: {expected}"


def changed(document, path, value):
    copied = copy.deepcopy(document)
    at = copied
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return copied
