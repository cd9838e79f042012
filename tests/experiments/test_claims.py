"""Verdicts follow from intervals by the stated rule, and the pages say what results/claims says."""

import importlib
import json

import _claims
import _lab_runs
import all_claims
import claims_page
import numpy as np
import pytest
from _claims import MAIN, Claim, Number, Part, interval, judge, measure, read_part, store, verdict_of, verdict_over

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


HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [  # rows: 0 and 5 shots; columns: 3 queries, 5 percent
        ([[HOLDS, HOLDS], [HOLDS, OPEN]], HOLDS),
        ([[FAILS, OPEN], [FAILS, FAILS]], FAILS),
        ([[HOLDS, HOLDS], [OPEN, HOLDS]], OPEN),
        ([[OPEN, HOLDS], [OPEN, HOLDS]], OPEN),
        ([[HOLDS, HOLDS], [FAILS, FAILS]], "depends on shots"),
        ([[OPEN, HOLDS], [OPEN, FAILS]], "depends on shots"),
        ([[HOLDS, FAILS], [HOLDS, FAILS]], "depends on ε"),
        ([[HOLDS, FAILS], [HOLDS, HOLDS]], "depends on shots and ε"),
        ([[HOLDS, OPEN], [OPEN, FAILS]], "depends on shots and ε"),
    ],
)
def test_a_part_is_judged_over_lengths_and_thresholds(cells, verdict):
    points = ("3 queries", "5 percent")
    named = {
        (shots, point): one
        for shots, row in zip((0, 5), cells, strict=True)
        for point, one in zip(points, row, strict=True)
    }
    assert verdict_over(named) == verdict


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


def test_a_claim_is_told_by_its_parts():
    assert verdict_of([HOLDS, HOLDS]) == HOLDS
    assert verdict_of([FAILS]) == FAILS
    assert verdict_of([HOLDS, "depends on ε", HOLDS]) == "holds (2 of 3), depends on ε (1 of 3)"
    assert verdict_of([OPEN, FAILS, HOLDS]) == "undecided (1 of 3), does not hold (1 of 3), holds (1 of 3)"


@pytest.fixture
def planted(monkeypatch):
    """Two runs of seven prompts with planted numbers, behind 0 and 5 shots; the second is the first plus two, paired; 5 shots add ten."""
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


def test_a_number_that_changes_with_the_shots_depends_on_them(planted):
    bound = float(planted.mean()) + 5
    part = read_part(Part("d", Number("one", "movement.drift"), "above", bound), 7)
    assert [one["verdict"] for one in part["at"]] == ["does not hold", "holds"]
    assert part["verdict"] == "depends on shots and ε"


def test_an_unknown_number_is_refused(planted):
    with pytest.raises(CallError, match=r"no statistic 'movement\.distance'"):
        measure(Part("", Number("one", "movement.distance"), "above", 0.0), 0, 7)


def test_parts_beside_have_no_say(planted, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_claims, "RESULTS", tmp_path)
    monkeypatch.setattr(_claims, "THRESHOLDS", (MAIN,))
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
    found = {path.stem for path in claims_page.ROOT.glob("experiments/*.py") if "CLAIM = Claim(" in path.read_text()}
    assert found == set(SCRIPTS.values())


def test_the_page_is_what_the_results_say():
    documents = claims_page.read()
    assert claims_page.FULL.read_text() == claims_page.full(documents)
    findings = (claims_page.ROOT / "docs/findings.md").read_text().splitlines()
    assert set(documents) == set(claims_page.ORDER) and not {*map(claims_page.finding, documents.values())} - {
        *findings
    }


def test_stored_results_are_of_the_claims_as_they_stand():
    """A bound that is changed after a run no longer fits what was stored, and every verdict follows from the intervals."""
    for name, document in claims_page.read().items():
        claim = importlib.import_module(SCRIPTS[name]).CLAIM
        assert [part["expected"] for part in document["parts"]] == [
            f"{part.wanted} {part.bound:g}" for part in claim.parts
        ]
        assert [(part["what"], part["short"]) for part in document["parts"]] == [
            (part.what, part.short) for part in claim.parts
        ]
        for part, stated in zip(document["parts"], claim.parts, strict=True):
            assert tuple(one["shots"] for one in part["at"]) == _lab_runs.RUNS[stated.number.run].shots
            cells = {}
            for one in part["at"]:
                low, high = (np.nan if one["found"][end] is None else one["found"][end] for end in ("low", "high"))
                assert one["verdict"] == judge(low, high, *_wanted(part["expected"]))
                cells |= {
                    (one["shots"], point): found
                    for point, found in (one["verdicts_elsewhere"] | {"3 queries": one["verdict"]}).items()
                }
            assert part["verdict"] == verdict_over(cells)
        assert document["verdict"] == verdict_of([part["verdict"] for part in document["parts"] if part["decides"]])
        assert document["prompts"] >= 48


def test_what_decides_has_a_word_for_the_page():
    for script in SCRIPTS.values():
        for part in importlib.import_module(script).CLAIM.parts:
            assert bool(part.short) == part.decides


def _wanted(text):
    wanted, bound = text.split(" ")
    return wanted, float(bound)


def test_a_changed_number_changes_the_page():
    documents = json.loads(json.dumps(claims_page.read()))
    first = next(iter(documents))
    one = documents[first]["parts"][0]["at"][0]
    one["found"]["value"] = 123.456
    assert "123" in claims_page.full(documents)
    assert claims_page.summary(documents) == claims_page.summary(claims_page.read())
    one["verdict"] = "undecided"
    assert claims_page.summary(documents) != claims_page.summary(claims_page.read())


def test_a_row_has_a_sign_for_each_part_and_length():
    def part(verdicts, decides=True):
        at = [
            {"shots": shots, "found": {"value": 0.5 + shots}, "verdict": verdict}
            for shots, verdict in zip((0, 1, 2, 5), verdicts, strict=False)
        ]
        return {"short": "word", "expected": "above 1", "decides": decides, "at": at}

    parts = [part([HOLDS, FAILS, OPEN, HOLDS]), part([FAILS]), part([HOLDS], decides=False)]
    document = {"title": "A claim", "source": "§1", "verdict": "holds (1 of 2), undecided (1 of 2)", "parts": parts}
    assert claims_page.row(document) == (
        "| [A claim](#a-claim) (§1) | + − | − | ? | + | holds (1 of 2), undecided (1 of 2) | word (> 1); word (> 1) |"
    )


def test_the_full_table_names_the_thresholds_that_differ():
    elsewhere = {
        "1 queries": "holds",
        "2 percent": "undecided",
        "5 percent": "does not hold",
        "8 queries": "does not hold",
    }
    one = {
        "found": {"value": 1.0, "low": 0.5, "high": 1.5},
        "prompts": 40,
        "verdict": "holds",
        "verdicts_elsewhere": elsewhere,
    }
    assert claims_page.cell(one, 48) == "1 (0.5 to 1.5), 40 prompts + [− at 5%, 8q; ? at 2%]"
    assert claims_page.cell(one | {"verdicts_elsewhere": {"1 queries": "holds"}}, 40) == "1 (0.5 to 1.5) +"


def test_runs_ask_the_same_problems_at_every_length():
    numbers = _lab_runs.problems()
    assert len(numbers) >= _lab_runs.PROMPTS
    few = _lab_runs.problems(("buy", "give"))
    assert 0 < len(few) < len(numbers)
    assert set(few) < set(numbers)
