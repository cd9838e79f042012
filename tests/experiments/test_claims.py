"""Verdicts follow from intervals by the stated rule, and stored results are of the claims as they stand."""

import json

import _claims
import _lab_runs
import claims
import claims_page
import numpy as np
import pytest
from _claims import MAIN, Claim, Number, Part, judge, measure, read_part, store, verdict_of, verdict_over

from sinkscope.statistics import Analysis, Threshold


def test_where_an_interval_lies():
    for (low, high), above, below in (
        ((1.1, 2.0), "holds", "does not hold"),
        ((0.9, 2.0), "undecided", "undecided"),
        ((0.2, 0.9), "does not hold", "holds"),
        ((np.nan, np.nan), "undecided", "undecided"),
    ):
        assert (judge(low, high, "above", 1.0), judge(low, high, "below", 1.0)) == (above, below)
    assert judge(1.0, 1.0, "above", 1.0) == "does not hold"


HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"


def test_verdicts_over_lengths_and_thresholds_are_those_of_all_pairs():
    """Every pair of cells that share a threshold, or a number of shots, compared one by one."""
    rng, seen = np.random.default_rng(0), set()
    points = ("3 queries", "1 queries", "5 percent")
    for _ in range(400):
        cells = {
            (shots, point): str(rng.choice([HOLDS, FAILS, OPEN], p=[0.6, 0.15, 0.25]))
            for shots in (0, 1, 5)
            for point in points
        }
        pairs = [(one, other) for one in cells for other in cells if {cells[one], cells[other]} == {HOLDS, FAILS}]
        on = {name for name, axis in (("shots", 1), ("ε", 0)) if any(one[axis] == other[axis] for one, other in pairs)}
        main = {cells[shots, "3 queries"] for shots in (0, 1, 5)}
        expected = main.pop() if len(main) == 1 else OPEN
        if pairs:
            expected = "depends on " + (on.pop() if len(on) == 1 else "shots and ε")
        assert verdict_over(cells) == expected
        seen.add(expected)
    assert seen == {HOLDS, OPEN, "depends on shots", "depends on ε", "depends on shots and ε"}


@pytest.fixture
def planted(monkeypatch):
    """Two runs of seven prompts with planted numbers, behind 0 and 5 shots; the second is the first plus two, paired; 5
    shots add ten.
    """
    rng = np.random.default_rng(0)
    first = rng.normal(5, 3, 7)
    point = (("excess", 3.0), ("unit", "queries"))
    other = (("excess", 5.0), ("unit", "percent"))
    keys = (("movement.drift", point), ("movement.drift", other), ("concentration.gini", ()))

    def found(run, shots, prompts):
        shift = {"one": 0, "two": 2}[run.name]
        values = np.stack([first + shift + 2 * shots, -first - shift, first], axis=1)
        return Analysis((), 7, 2, 3, 0, ("",) * 7, keys, values)

    monkeypatch.setattr(
        _claims, "RUNS", {name: _lab_runs.Run(name, "lab-diffusion", shots=(0, 5)) for name in ("one", "two")}
    )
    monkeypatch.setattr(_claims, "analysis", found)
    monkeypatch.setattr(_claims, "THRESHOLDS", (MAIN, Threshold(5.0, "percent")))
    return first


def test_a_difference_is_taken_prompt_by_prompt(planted):
    part = Part("", Number("two", "movement.drift"), "above", 0.0, minus=Number("one", "movement.drift"))
    value, low, high, prompts = measure(part, 5, 7)
    assert (value, low, high) == (pytest.approx(2),) * 3  # the same in every prompt, whatever their spread
    assert prompts == 7
    alone = measure(Part("", Number("one", "movement.drift"), "above", 0.0), 5, 7)
    assert alone[0] == pytest.approx(planted.mean() + 10)
    assert alone[2] - alone[1] > 2


def test_a_part_is_stored_with_every_length_and_threshold(planted):
    part = read_part(Part("d", Number("two", "movement.drift"), "above", 0.0, minus=Number("one", "movement.drift")), 7)
    assert part["verdict"] == "depends on ε"
    assert [one["shots"] for one in part["at"]] == [0, 5]
    for one in part["at"]:
        assert one["found"] == {"value": 2.0, "low": 2.0, "high": 2.0}
        assert (one["verdict"], one["verdicts_elsewhere"]) == ("holds", {"5 percent": "does not hold"})
        assert one["prompts"] == 7
    assert part["expected"] == "above 0"
    without = read_part(Part("g", Number("one", "concentration.gini"), "above", 0.0), 7)
    assert [one["verdicts_elsewhere"] for one in without["at"]] == [{}, {}]


def test_parts_beside_have_no_say(planted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_claims, "RESULTS", tmp_path)
    monkeypatch.setattr(_claims, "THRESHOLDS", (MAIN,))
    good = Part("good", Number("two", "movement.drift"), "above", 0.0, "word")
    bad = Part("bad", Number("two", "movement.drift"), "below", -99.0)
    claim = Claim("name", "Title", "§0", "says", "expected", "limits", (good, bad))
    document = store(claim, [read_part(part, 7) for part in claim.parts], [_claims.RUNS["two"]], 7)
    assert [part["verdict"] for part in document["parts"]] == ["holds", "does not hold"]
    assert document["verdict"] == "holds"
    assert json.loads((tmp_path / "name.json").read_text()) == document
    assert "verdict   holds" in capsys.readouterr().out


@pytest.mark.parametrize("name", claims_page.ORDER)
def test_a_stored_result_is_of_the_claim_as_it_stands(name):
    """A bound that is changed after a run no longer fits what was stored; every verdict follows from the intervals."""
    document, (claim, _) = claims_page.read()[name], claims.READERS[name]
    for key in ("name", "title", "source", "says", "expected", "limits"):
        assert document[key] == getattr(claim, key)
    for part, stated in zip(document["parts"], claim.parts, strict=True):
        assert part["expected"] == f"{stated.wanted} {stated.bound:g}"
        told = stated.number.words + (f" minus {stated.minus.words}" if stated.minus else "")
        assert [part[key] for key in ("what", "short", "decides", "number")] == [
            *(stated.what, stated.short, stated.decides, told)
        ]
        assert tuple(one["shots"] for one in part["at"]) == _lab_runs.RUNS[stated.number.run].shots
        cells = {}
        for one in part["at"]:
            low, high = (np.nan if one["found"][end] is None else one["found"][end] for end in ("low", "high"))
            assert one["verdict"] == judge(low, high, stated.wanted, stated.bound)
            everywhere = one["verdicts_elsewhere"] | {"3 queries": one["verdict"]}
            cells |= {(one["shots"], point): found for point, found in everywhere.items()}
        assert part["verdict"] == verdict_over(cells)
    assert document["verdict"] == verdict_of([part["verdict"] for part in document["parts"] if part["decides"]])
