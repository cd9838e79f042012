"""`reproduce paper1` on tiny models: every table and figure, nothing twice."""

import dataclasses
import json

import pytest

import sinkscope
from sinkscope.commands.reproduction import Options, _record, reproduce, sink_tokens
from sinkscope.errors import ModelError
from sinkscope.evaluation.papers.paper1 import LAB, paper1


@pytest.fixture
def lab(monkeypatch, diffusion, autoregressive):
    """The lab's checkpoints are replaced by tiny random networks."""
    loaded = []

    def load(name, dtype=None, device="cpu"):
        loaded.append(name)
        return {"lab-diffusion": diffusion, "lab-autoregressive": autoregressive}[name]

    monkeypatch.setattr("sinkscope.models.load", load)
    return loaded


def small(parts):
    """The same parts with fewer shots and tokens, for networks of 256 positions."""
    found = []
    for part in parts:
        settings = {"length": 8} if "block" not in part.settings else {"length": 8, "steps": 8, "block": 4}
        found.append(dataclasses.replace(part, shots=0, settings=settings, rules=("none",)))
    return found


@pytest.mark.slow
def test_every_table_and_figure_and_nothing_is_done_twice(lab, tmp_path, monkeypatch):
    parts = small(paper1(LAB, limit=3, traces=2))
    said = []
    options = Options(tmp_path, {}, batch=2, excess=0.2, allow_code_execution=False)
    written = reproduce(parts, options, said.append)
    names = {str(path.relative_to(tmp_path)) for path in written}
    assert {"table1.md", "table1.tex", "table1.csv", "table1.json", "table2.json", "table2.md"} < names
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".pdf", ".csv"}
    assert all(path.stat().st_size for path in written)
    assert (
        "lab-diffusion, lab-code: left out; --allow-code-execution lets the programs run that the model writes" in said
    )
    rows = json.loads((tmp_path / "table1.json").read_text())["rows"]
    assert [(row["task"], row["hide"], row["n"]) for row in rows] == [("lab-arith", "none", 3)] * 2
    tokens = json.loads((tmp_path / "table2.json").read_text())
    assert sum(tokens["lab-diffusion"].values()) == pytest.approx(1)
    assert (tmp_path / "table2.md").read_text().startswith("| model | generations | 1. | 2. |")
    figures = [path for path in written if path.parent.name == "figures"]
    monkeypatch.setattr(
        "sinkscope.figures.draw_figures", lambda *_, **__: figures
    )  # drawn above; what follows is about the runs
    said.clear()
    assert reproduce(parts, options, said.append) == written
    assert not any("recorded" in line for line in said)
    # a generation that was cut short is recorded again
    (tmp_path / "traces" / "lab-diffusion" / "000001.json").unlink()
    assert reproduce(parts, options, said.append) == written
    assert [line for line in said if "recorded" in line] == ["lab-diffusion: generation 2 of 2 recorded"]


def test_traces_are_kept_in_one_dtype(diffusion, tmp_path):
    part = next(one for one in small(paper1(LAB, limit=1, traces=1)) if one.recorded and one.model == "lab-diffusion")
    said = []
    for dtype in ("float32", "float32", "bfloat16"):
        model = dataclasses.replace(diffusion, card=dataclasses.replace(diffusion.card, dtype=dtype))
        _record(model, part, Options(tmp_path, {}), said.append)
    assert said == ["lab-diffusion: generation 1 of 1 recorded"] * 2


@pytest.mark.slow
def test_the_plan_on_the_labs_models_with_hiding_controls_and_programs(tmp_path):
    """The bundled checkpoints, every prompt in full, and the rules as they are; two problems, and answers of half the length."""
    parts = []
    for part in paper1(LAB, limit=2, ks=(1,), seeds=1, traces=1):
        steps = {"steps": 32} if "steps" in part.settings else {}
        parts.append(dataclasses.replace(part, settings={**part.settings, "length": 32, **steps}))
    written = reproduce(parts, Options(tmp_path, {}, batch=2, allow_code_execution=True), lambda line: None)
    rules = {
        "lab-diffusion": ("none", "top:1", "random:1@seed=0", "ranks:1"),
        "lab-autoregressive": ("none", "top:1@last_row", "random:1@last_row,seed=0", "ranks:1@last_row"),
    }
    rows = json.loads((tmp_path / "table1.json").read_text())["rows"]
    found = [(row["model"], row["task"], row["hide"], row["n"]) for row in rows]
    assert sorted(found) == sorted(
        (model, task, rule, 2) for model in LAB for task in ("lab-arith", "lab-code") for rule in rules[model]
    )
    for row in rows:
        hides = row["hide"] != "none"
        assert (row["removed_share"] or 0) > 0 if hides else row["removed_share"] is None
        assert hides == (row["hit_rate"] is not None)
        if row["hide"].startswith("top:1"):
            assert [one["control"].split("@")[0].split(":")[0] for one in row["controls"]] == ["random", "ranks"]
    taken = {(row["model"], row["task"], row["hide"].split(":")[0]): row["removed_share"] for row in rows}
    assert all(
        taken[model, task, "top"] > taken[model, task, "random"] for model in LAB for task in ("lab-arith", "lab-code")
    )
    assert (
        sum(row["accuracy"] for row in rows if row["task"] == "lab-code") > 0
    )  # programs were run, and some were right
    assert {path.parent.name for path in written} == {tmp_path.name, "figures"}


def test_other_processes_of_torchrun_only_share_in_the_evaluations(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert reproduce(small(paper1(LAB[:1], limit=3, traces=1)), Options(tmp_path, {}, batch=2), lambda line: None) == []
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json") if path.name != "task.json")
    assert found == [
        f"evaluations/lab-diffusion/lab-arith/{name}" for name in ("lab-arith/none/000002.json", "run.json")
    ]


def test_a_process_of_torchrun_reproduces_on_its_own_device(tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    asked = []

    def load(name, dtype, device):
        asked.append(device)
        raise ModelError("seen")

    monkeypatch.setattr(sinkscope.models, "load", load)
    with pytest.raises(ModelError, match="seen"):
        reproduce(small(paper1(LAB[:1], limit=3, traces=1)), Options(tmp_path, {}, device="cuda"), lambda line: None)
    assert asked == ["cuda:1"]


def test_table_2_counts_tokens(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(
            diffusion, "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:", length=8
        )
    trace = sinkscope.open_trace(tmp_path / "t")
    found = sink_tokens([trace, trace], 0.2)
    columns, tokens = trace.column_sums[:], trace.tokens[:]
    excess = columns - (columns.sum(-1, keepdims=True) - columns) / (columns.shape[-1] - 1)
    dense = {}
    for step, *_, position in zip(*(excess > 0.2).nonzero(), strict=True):
        text = trace.token_text(int(tokens[step, position]))
        dense[text] = dense.get(text, 0) + 1
    assert found == pytest.approx({text: count / sum(dense.values()) for text, count in dense.items()})
    assert list(found.values()) == sorted(found.values(), reverse=True)
