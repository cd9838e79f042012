"""Verdicts follow from intervals by the stated rule, and docs/claims.md is what results/claims says."""

import importlib
import json

import _claims
import _lab_runs
import all_claims
import claims_page
import numpy as np
import pytest
from _claims import MAIN, Claim, Number, Part, interval, judge, measure, read_part, store, verdict_of

from sinkscope.errors import CallError
from sinkscope.statistics import Analysis, Threshold

SCRIPTS = all_claims.SCRIPTS


@pytest.mark.parametrize(
    ("low", "high", "wanted", "verdict"),
    [
        (1.1, 2.0, "above", "holds"),
        (0.9, 2.0, "above", "undecided"),
        (0.2, 0.9, "above", "does not hold"),
        (1.0, 1.0, "above", "does not hold"),
        (0.2, 0.9, "below", "holds"),
        (0.2, 1.1, "below", "undecided"),
        (1.1, 2.0, "below", "does not hold"),
        (np.nan, np.nan, "above", "undecided"),
    ],
)
def test_where_an_interval_lies(low, high, wanted, verdict):
    assert judge(low, high, wanted, 1.0) == verdict


def test_a_claim_is_as_strong_as_its_weakest_part():
    assert verdict_of(["holds", "holds"]) == "holds"
    assert verdict_of(["holds", "undecided"]) == "undecided"
    assert verdict_of(["undecided", "does not hold", "holds"]) == "does not hold"


@pytest.fixture
def planted(monkeypatch):
    """Two runs of seven prompts with planted numbers; the second is the first plus two, paired."""
    rng = np.random.default_rng(0)
    first = rng.normal(5, 3, 7)
    point = (("excess", 3.0), ("unit", "queries"))
    other = (("excess", 5.0), ("unit", "percent"))
    keys = (("movement.drift", point), ("movement.drift", other), ("concentration.gini", ()))
    columns = [np.stack([first + shift, -first - shift, first], axis=1) for shift in (0, 2)]
    found = {name: Analysis((), 7, 2, 3, 0, ("",) * 7, keys, values) for name, values in zip(("one", "two"), columns, strict=True)}
    monkeypatch.setattr(_claims, "RUNS", {name: _lab_runs.Run(name, "lab-diffusion") for name in found})
    monkeypatch.setattr(_claims, "analysis", lambda run, prompts: found[run.name])
    monkeypatch.setattr(_claims, "THRESHOLDS", (MAIN, Threshold(5.0, "percent")))
    return first


def test_a_difference_is_taken_prompt_by_prompt(planted):
    part = Part("", Number("two", "movement.drift"), "above", 0.0, minus=Number("one", "movement.drift"))
    value, low, high, prompts = measure(part, 7)
    assert (value, low, high) == (pytest.approx(2),) * 3  # the same in every prompt, whatever their spread
    assert prompts == 7
    alone = measure(Part("", Number("one", "movement.drift"), "above", 0.0), 7)
    assert alone[0] == pytest.approx(planted.mean())
    assert alone[2] - alone[1] > 2


def test_a_part_is_stored_with_its_verdicts_elsewhere(planted):
    part = read_part(Part("d", Number("two", "movement.drift"), "above", 0.0, minus=Number("one", "movement.drift")), 7)
    assert part["verdict"] == "holds"
    assert part["found"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert part["verdicts_elsewhere"] == {"5 percent": "does not hold"}
    assert part["expected"] == "above 0"
    assert read_part(Part("g", Number("one", "concentration.gini"), "above", 0.0), 7)["verdicts_elsewhere"] == {}


def test_an_unknown_number_is_refused(planted):
    with pytest.raises(CallError, match=r"no statistic 'movement\.distance'"):
        measure(Part("", Number("one", "movement.distance"), "above", 0.0), 7)


def test_parts_beside_have_no_say(planted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_claims, "RESULTS", tmp_path)
    good = Part("good", Number("two", "movement.drift"), "above", 0.0)
    bad = Part("bad", Number("two", "movement.drift"), "below", -99.0, decides=False)
    claim = Claim("name", "Title", "§0", "says", "expected", "limits", (good, bad))
    document = store(claim, [read_part(part, 7) for part in claim.parts], [_claims.RUNS["two"]], 7, "name.py")
    assert [part["verdict"] for part in document["parts"]] == ["holds", "does not hold"]
    assert document["verdict"] == "holds"
    assert json.loads((tmp_path / "name.json").read_text()) == document
    assert "verdict   holds" in capsys.readouterr().out


def test_the_interval_is_over_prompts():
    numbers = np.append(np.random.default_rng(1).normal(3, 1, 20), np.nan)
    value, low, high, prompts = interval(numbers)
    assert value == pytest.approx(np.nanmean(numbers))
    half = 2.09 * np.nanstd(numbers, ddof=1) / np.sqrt(20)  # Student's t with 19 degrees of freedom
    assert (value - low, high - value) == pytest.approx((half, half), rel=0.2)
    assert prompts == 20


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_states_a_claim_that_can_be_measured(name):
    """Its statistics are defined, its runs exist, and it has a rule of decision."""
    from sinkscope.statistics import all_definitions

    module = importlib.import_module(SCRIPTS[name])
    claim = module.CLAIM
    assert claim.name == name
    assert any(part.decides for part in claim.parts)
    for word in ("Claim ", "Rule ", "Expected "):
        assert word in module.__doc__
    for part in claim.parts:
        for number in (part.number, part.minus):
            if number is not None:
                assert number.run in _lab_runs.RUNS
                short = number.statistic.removesuffix("_over_steps").removesuffix("_in")
                assert short in all_definitions() or number.statistic in getattr(module, "UNITS", {})


def test_every_claim_of_the_folder_is_run_and_shown():
    found = {path.stem for path in claims_page.PAGE.parents[1].glob("experiments/*.py") if "CLAIM = Claim(" in path.read_text()}
    assert found == set(SCRIPTS.values())


def test_the_page_is_what_the_results_say():
    assert claims_page.PAGE.read_text() == claims_page.page(claims_page.read())
    assert claims_page.FULL.read_text() == claims_page.full(claims_page.read())


def test_stored_results_are_of_the_claims_as_they_stand():
    """A bound that is changed after a run no longer fits what was stored."""
    for name, document in claims_page.read().items():
        claim = importlib.import_module(SCRIPTS[name]).CLAIM
        assert [part["expected"] for part in document["parts"]] == [f"{part.wanted} {part.bound:g}" for part in claim.parts]
        assert [part["what"] for part in document["parts"]] == [part.what for part in claim.parts]
        for part in document["parts"]:
            found = part["found"]
            low, high = (np.nan if found[end] is None else found[end] for end in ("low", "high"))
            assert part["verdict"] == judge(low, high, *_wanted(part["expected"]))
        assert document["verdict"] == verdict_of([part["verdict"] for part in document["parts"] if part["decides"]])


def _wanted(text):
    wanted, bound = text.split(" ")
    return wanted, float(bound)


def test_a_changed_number_changes_the_page():
    documents = json.loads(json.dumps(claims_page.read()))
    first = next(iter(documents))
    documents[first]["parts"][0]["found"]["value"] = 123.456
    for page in (claims_page.page, claims_page.full):
        assert "123" in page(documents)
        assert page(documents) != page(claims_page.read())


def test_a_part_says_how_many_thresholds_differ():
    part = {"verdict": "holds", "verdicts_elsewhere": {"1 queries": "holds", "2 percent": "undecided", "5 percent": "does not hold"}}
    assert claims_page.agreement(part) == "2 of 3 differ"
    assert claims_page.agreement({"verdict": "holds", "verdicts_elsewhere": {"1 queries": "holds"}}) == "all ten agree"
    assert claims_page.agreement({"verdict": "holds", "verdicts_elsewhere": {}}) == "–"
