"""Comparisons and their tables: which runs are compared, paper 1's numbers, and four formats."""

import csv
import dataclasses
import io
import json
import subprocess
import sys

import pytest

import sinkscope.interventions
from sinkscope.errors import CallError
from sinkscope.evaluation import Result, table, write_table
from sinkscope.evaluation.paired_tests import Difference, against_controls, holm, paired_difference, wilson_interval
from sinkscope.evaluation.results import takes_seed, write_results
from sinkscope.evaluation.tables import compare, remarks
from sinkscope.interventions import HideTopSinks, known_controls, known_rules


def result(hide, outcomes, model="GSAI-ML/LLaDA-8B-Instruct", task="gsm8k", **more):
    correct = outcomes.count("1")
    return Result(
        model=model,
        task=task,
        hide=hide,
        n=len(outcomes),
        correct=correct,
        accuracy=correct / len(outcomes),
        interval=wilson_interval(correct, len(outcomes)),
        settings={"length": 64},
        weight_hash="f0",
        versions={"torch": "2"},
        device="cpu",
        dtype="float32",
        outcomes=outcomes,
        **more,
    )


NONE, TOP, RANDOM, OTHER = (
    "1" * 150 + "0" * 50,
    "0" * 60 + "1" * 90 + "0" * 50,
    "1" * 148 + "0" * 52,
    "1" * 149 + "0" * 49 + "10",
)
RESULTS = [
    result("none", NONE),
    result("top:1", TOP, removed_share=0.031, removed_share_committed=0.052, hit_rate=0.9),
    result("random:1", RANDOM, removed_share=0.004),
    result("random:1@seed=1", OTHER),
    result("top:5", TOP[:120]),
]


def bits(text):
    return [int(one) for one in text]


def numbers(test):
    """A test of a row as the `Difference` that it holds."""
    return Difference(**{field.name: test[field.name] for field in dataclasses.fields(Difference)})


def test_a_rule_is_compared_with_the_unhidden_run_and_with_its_controls():
    rows = compare(RESULTS)
    expected = [paired_difference(bits(one.outcomes), bits(NONE[: one.n])) for one in RESULTS[1:]]
    changes = [row["change"] for row in rows]
    for name, kept in (("p_value", "p_holm"), ("p_margin", "p_margin")):  # verdicts and p after Holm, in two families
        sinks, controls = (holm([getattr(expected[at], name) for at in places]) for places in ((0, 3), (1, 2)))
        assert [change[kept] for change in changes[1:]] == [sinks[0], *controls, sinks[1]]
    found = [
        dataclasses.replace(numbers(new), p_margin=old.p_margin) for new, old in zip(changes[1:], expected, strict=True)
    ]
    assert changes[0] is None and found == expected
    assert [len(row["controls"]) for row in rows] == [0, 1, 0, 0, 0]
    (contrast,) = rows[1]["controls"]
    assert (contrast["control"], contrast["seeds"]) == ("random:1", 2)
    assert numbers(contrast) == against_controls(bits(TOP), [bits(RANDOM), bits(OTHER)])
    assert changes[1]["verdict"] == "degraded"


def test_a_verdict_is_corrected_as_its_p_is():
    """Alone the rule is degraded; beside nineteen more tests of the kind neither its verdict nor its p stands."""
    many = "1" * 300 + "0" * 100
    lost = result("top:1", "0" * 15 + many[15:])
    alone = compare([result("none", many), lost])[1]["change"]
    assert alone["verdict"] == "degraded" and alone["p_margin"] < 0.05
    others = [result(f"top:{k}", lost.outcomes) for k in range(2, 21)]
    beside = compare([result("none", many), lost, *others])[1]["change"]
    assert beside["verdict"] == "undecided" and beside["p_margin"] == pytest.approx(20 * alone["p_margin"])
    assert beside["p_holm"] == pytest.approx(20 * alone["p_holm"]) and beside["high"] == alone["high"] < -0.02


def test_a_terminal_gets_one_row_a_rule_within_80_columns():
    name = "an-organisation/some-model-of-a-long-name-Instruct"
    long = [result(f"{word}:10@current,last_row,only_sinks", TOP, name) for word in ("random", "top")]
    text = write_table([*RESULTS, result("none", NONE, name), *long], "text")
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("\nrandom:1 ") == 1 and "@seed" not in text
    pooled = against_controls(bits(NONE), [bits(RANDOM), bits(OTHER)], -1)
    turned = against_controls(bits(NONE), [bits(RANDOM), bits(OTHER)])
    assert (pooled.mean, pooled.low, pooled.p_value) == (-turned.mean, -turned.high, turned.p_value)
    (line,) = (line for line in text.splitlines() if line.startswith("random:1 "))
    points = f"{100 * pooled.mean:+.1f} ({100 * pooled.low:+.1f}, {100 * pooled.high:+.1f})"
    assert f"random:1 ×2 200 0.745 {points}" in " ".join(line.split())


def test_only_the_same_weights_settings_task_and_model_are_compared():
    others = [{"weight_hash": "f1"}, {"settings": {"length": 8}}, {"task": "humaneval"}, {"model": "m"}]
    others += [{"dtype": "bfloat16"}, {"device": "H100"}, {"data": "f2"}]
    mine = dataclasses.replace(RESULTS[1], data="f1")
    for data in ("f1", ""):  # results of before there was a fingerprint have none
        assert compare([dataclasses.replace(RESULTS[0], data=data), mine])[1]["change"] is not None
    for other in others:
        base = dataclasses.replace(RESULTS[0], **other)
        (_, row) = compare([base, mine])
        assert row["change"] is None
        said = "no unhidden run of the same weights, problems, settings, dtype and device to compare with"
        assert f"GSAI-ML/LLaDA-8B-Instruct, gsm8k, top:1: {said}" in remarks([row])


def test_a_rule_that_hid_nothing_is_named():
    line = "position:900 hid nothing: no such key was there for its queries"
    idle = result("position:900", NONE, without_effect=(line,))
    assert f"GSAI-ML/LLaDA-8B-Instruct, gsm8k, position:900: {line}" in remarks(compare([RESULTS[0], idle]))


@pytest.fixture
def bottom(monkeypatch):
    """A rule that somebody added."""
    kind = type("Bottom", (HideTopSinks,), {"rule": "bottom:K"})
    monkeypatch.setattr(sinkscope.interventions, "known_rules", lambda: {**known_rules(), "bottom": kind})


def test_a_control_has_the_rules_k_and_options(bottom):
    for rule, control, name in (
        ("top:1@current", "random:1@seed=2,current", "random:1@current"),
        ("top:1@last_row,current", "random:1@current,seed=2,last_row", "random:1@current,last_row"),
        ("top:1@current", "random:1", None),
        ("top:1", "random:1@current", None),
        ("top:1@current", "random:5@current", None),
        ("top:1", "window:1+4", None),
        ("bottom:1@layers=0", "random:1@layers=0", "random:1@layers=0"),
        ("bottom:1", "mass:1", None),
    ):
        row = compare([RESULTS[0], result(rule, TOP), result(control, RANDOM)])[1]
        assert [one["control"] for one in row["controls"]] == ([] if name is None else [name])
        assert any("no random control with its K and options" in line for line in remarks([row])) == (name is None)


def test_a_seed_counts_once_however_it_is_written():
    results = [*RESULTS[:3], result("random:1@seed=0", OTHER[:50]), RESULTS[3]]
    (contrast,) = compare(results)[1]["controls"]
    assert contrast["seeds"] == 2
    assert numbers(contrast) == against_controls(bits(TOP), [bits(RANDOM), bits(OTHER)])


def test_a_control_of_fewer_problems_is_named():
    results = [*RESULTS[:3], result("random:1@seed=1", OTHER[:90]), result("random:1@seed=2", OTHER)]
    (contrast,) = compare(results)[1]["controls"]
    assert (contrast["seeds"], contrast["n"]) == (3, 90)
    assert any("set against random:1 over the 90 problems" in line for line in remarks(compare(results)))


def test_remarks():
    said = remarks(compare(RESULTS))
    where = "GSAI-ML/LLaDA-8B-Instruct, gsm8k, "
    assert f"{where}top:1: 2 of at least 3 seeds of random:1" in said
    assert f"{where}top:5: no random control with its K and options; hiding any keys may hurt as much" in said
    some = [
        result("none", NONE[:100]),
        result("random:1", NONE[:99] + "0"),
        result("ranks:1", NONE[:100]),
        result("window:1+4", TOP[:100]),
    ]
    few = "100 problems are too few for a verdict on these rules (in brackets how many would do): "
    few += "random:1 (242), ranks:1 (189)"
    assert remarks(compare(some)) == ["GSAI-ML/LLaDA-8B-Instruct, gsm8k: " + few]


def test_json():
    document = json.loads(write_table(RESULTS, "json"))
    assert document == json.loads(json.dumps(table(RESULTS)))
    row = document["rows"][1]
    expected = {"hide": "top:1", "accuracy": 0.45, "published": 0.75, "removed_share_committed": 0.052}
    assert {key: row[key] for key in expected} == expected
    assert set(row) >= {field.name for field in dataclasses.fields(Result)} - {"outcomes"} and "outcomes" not in row


def test_markdown_has_models_across_and_compares():
    other = result("none", "1100", model="o", task="lab-code")
    lines = write_table([RESULTS[0], other]).splitlines()
    low, high = wilson_interval(150, 200)
    assert lines[:4] == [
        "| task | hidden | GSAI-ML/LLaDA-8B-Instruct | o |",
        "|---|---|---|---|",
        f"| gsm8k | none | 0.750 ({low:.3f}–{high:.3f}), n = 200 [paper 0.76 ± 0.01] | – |",
        "| lab-code | none | – | 0.500 (0.150–0.850), n = 4 |",
    ]
    change, start = (
        paired_difference(bits(TOP), bits(NONE)),
        "| GSAI-ML/LLaDA-8B-Instruct | gsm8k | top:1 | 200 | -30.0 ",
    )
    line = next(line for line in write_table(RESULTS).splitlines() if line.startswith(start))
    assert line.startswith(f"{start}({100 * change.low:+.1f} to {100 * change.high:+.1f}) |")
    assert "| degraded | 3.1 % | 5.2 % | 90.0 % | random:1 ×2: -29." in line


@pytest.mark.parametrize(
    ("word", "name", "at"),
    [("mass", "removed_share", ""), ("rowmass", "removed_share_committed", " at the positions being committed")],
)
def test_a_control_of_equal_mass_that_takes_away_something_else_is_reported(word, name, at):
    for share, matches in ((0.3, False), (0.08, True)):
        controls = [result(f"{word}:1@seed={seed}", RANDOM, **{name: share}) for seed in range(3)]
        rows = compare([RESULTS[0], result("top:1", TOP, **{name: 0.06}), *controls])
        assert rows[1]["controls"][0][name] == pytest.approx(share)
        of_what = f"of the attention{at}, the sinks' rule 6.0 %; they do not match in mass"
        said = f"{word}:1 took away {100 * share:.1f} % {of_what}"
        assert any(said in line for line in remarks(rows)) == (not matches)


def test_latex_and_csv():
    lines = write_table(RESULTS, "latex").splitlines()
    assert lines[:4] == [r"\begin{tabular}{lll}", r"\hline", r"task & hidden & GSAI-ML/LLaDA-8B-Instruct \\", r"\hline"]
    assert lines[5].startswith(r"gsm8k & top:1 & 0.450 (")
    assert lines[5].endswith(r")$^{\downarrow}$ [0.75 $\pm$ 0.01] \\")
    odd = write_table([dataclasses.replace(one, model="a|b<c>d_e\x1b") for one in RESULTS], "latex")
    assert r"a\textbar{}b\textless{}c\textgreater{}d\_e\textbackslash{}x1b \\" in odd
    rows = list(csv.DictReader(io.StringIO(write_table(RESULTS, "csv"))))
    assert [row["hide"] for row in rows] == [one.hide for one in RESULTS]
    row = [rows[1][name] for name in ("accuracy", "verdict", "change_mean", "published")]
    assert row == ["0.45", "degraded", "-0.3", "0.75"]
    assert json.loads(rows[1]["controls"])[0]["seeds"] == 2
    assert (rows[0]["change_mean"], rows[0]["controls"]) == ("", "")


def test_controls_are_those_of_the_rules():
    assert {word: takes_seed(word) for word in ("none", *known_rules())} == {
        "none": None,
        **dict.fromkeys(known_rules()),
        **known_controls(),
    }
    assert takes_seed("unheard-of") is None


@pytest.mark.parametrize("command", ["table", "reproduce"])
def test_reading_and_planning_load_no_torch(command, tmp_path):
    write_results(tmp_path, RESULTS)
    arguments = {"table": [str(tmp_path), "--format", "markdown"], "reproduce": ["paper1", "--dry-run"]}[command]
    code = f"import sys; from sinkscope import cli; sys.argv[1:] = {[command, *arguments]}; cli.main(); "
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| gsm8k" in done.stdout


def test_the_same_result_twice_is_refused():
    with pytest.raises(CallError, match=r"expected each model, task and rule once, found .*, top:1 twice"):
        table([*RESULTS, RESULTS[1]])
    with pytest.raises(CallError, match=r"expected each .* once, found .*, random:1@seed=0 twice"):
        table([*RESULTS, result("random:1@seed=0", OTHER[:198] + "00", removed_share=0.1)])


def test_a_rule_that_is_written_in_two_ways_is_tested_once():
    alone = compare(RESULTS)
    doubled = compare([*RESULTS, dataclasses.replace(RESULTS[3], hide="random:01@seed=01")])
    assert doubled[:5] == alone and doubled[5]["change"] == alone[3]["change"]
