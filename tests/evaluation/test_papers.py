"""`reproduce`: the plans of both papers, published numbers, protocols, and runs on tiny models."""

import dataclasses
import json
import re

import pytest
import torch
from smdm_weights import Shape, lit_gpt_weights
from test_choices import ROWS, model, write_rows  # noqa: F401 - a fixture

import sinkscope
from sinkscope.commands import reproduce
from sinkscope.commands.reproduce import Reproduce, sink_tokens
from sinkscope.errors import CallError
from sinkscope.evaluation.cost import CHOICE_TOKENS, PROBLEMS, estimate
from sinkscope.evaluation.protocols import (
    ACCURACY,
    CHECKPOINTS,
    LAB,
    PROTOCOLS,
    TASKS,
    find_protocol,
    paper1,
    paper2,
    published_accuracy,
    rules_for,
)
from sinkscope.models.converting import convert, fold


def test_rules_have_controls_and_llamas_decide_by_the_last_row():
    assert rules_for(False, [1, 5], 2, ["random", "ranks"]) == (
        "none",
        *("top:1", "random:1@seed=0", "random:1@seed=1", "ranks:1"),
        *("top:5", "random:5@seed=0", "random:5@seed=1", "ranks:5"),
    )
    assert rules_for(True, [5], 1, ["random", "ranks"]) == (
        *("none", "top:5@last_row", "random:5@last_row,seed=0", "ranks:5@last_row"),
    )
    for part in paper1():
        if part.name == "Table 1":
            protocol = find_protocol(CHECKPOINTS[part.model].family, part.model, part.task)
            assert (part.shots, part.settings, part.prompts) == (protocol.shots, protocol.settings, PROBLEMS[part.task])


def test_all_of_paper_2_is_there():
    parts = paper2("published")
    assert {(part.model, part.task) for part in parts} == {(name, task) for name in ACCURACY for task in TASKS}
    assert all(len(row) == len(TASKS) for row in ACCURACY.values())
    guidance = {part.task: part.settings.get("guidance") for part in parts}
    assert guidance["piqa"] == 0.6 and guidance["lambada"] == 1.1 and guidance["hellaswag"] == 0.7
    two = [part for part in parts if part.task == "gsm8k_two_pass"]
    assert all(("block" in part.settings) == part.model.startswith("scratch") for part in two)
    for models in ("scratch-1b=x", "scratch-472m", "scratch-472m=a,scratch-472m=b"):
        with pytest.raises(CallError, match=r"--models: expected NAME=FOLDER once each, NAME of qwen2.5-0.5b, "):
            paper2(models)


def test_paper_1s_numbers_stand_where_model_task_and_rule_match():
    llada, llama = "GSAI-ML/LLaDA-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"
    for name, task, hide, expected in (
        ("Dream-org/Dream-v0-Instruct-7B", "humaneval_instruct", "top:1", (0.64, 0.03)),
        ("/models/LLaDA-8B-Instruct/", "humaneval", "top:5", (0.39, 0.03)),
        (llama, "gsm8k_cot", "top:1@last_row", (0.02, 0.0)),
        (llama, "gsm8k_cot", "top:1", None),
        (llada, "gsm8k", "top:1@last_row", None),
        (llada, "gsm8k", "top:2", None),
        (llada, "gsm8k_two_pass", "none", None),
        ("meta-llama/Llama-3.1-8B", "gsm8k_cot", "none", None),
    ):
        assert published_accuracy(name, task, hide) == expected


def test_which_protocol():
    llada, dream = "GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-Coder-v0-Base-7B"
    for name, task, wanted, expected in (
        ("GSAI-ML/LLaDA-8B-Base", "gsm8k", "auto", ("authors", 5, False, 1024, 0.703)),
        ("/data/LLaDA-8B-Instruct/", "gsm8k", "auto", ("paper1", 5, True, 256, 0.76)),
        (llada, "gsm8k", "semi-autoregressive", ("semi-autoregressive", 5, True, 256, 0.786)),
        ("GSAI-ML/LLaDA-1.5", "gsm8k", "auto", ("authors", 5, True, 256, 0.838)),
        (dream, "humaneval", "auto", ("authors", 0, False, 512, None)),
        ("Dream-org/Dream-Coder-v0-Instruct-7B", "gsm8k_cot", "auto", None),
        ("apple/DiffuCoder-7B-cpGRPO", "humaneval_instruct", "auto", ("authors", 0, True, 256, None)),
        (llada, "gsm8k", "none", None),
    ):
        found = find_protocol("llada" if "LLaDA" in name else "dream", name, task, wanted)
        assert (found and (found.name, found.shots, found.chat, found.settings["length"], found.published)) == expected
    assert len({(one.family, one.variant, one.task, one.name) for one in PROTOCOLS}) == len(PROTOCOLS)
    with pytest.raises(CallError, match="has no protocol 'magic' for gsm8k; expected one of auto, none, paper1, auth"):
        find_protocol("llada", "GSAI-ML/LLaDA-8B-Instruct", "gsm8k", "magic")


@pytest.fixture(scope="module")
def folders(model, tmp_path_factory):  # noqa: F811
    """Tiny models of kinds that paper 2 names."""
    home = tmp_path_factory.mktemp("paper2")
    tokenizer = model.tokenizer
    settings = {name: text for name, text in tokenizer.special_tokens_map.items() if name != "mask_token"}
    type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, **settings).save_pretrained(home / "tokenizer")
    found = {}
    for kind, name in {"": "none", "+sink": "token", "+gate": "gate"}.items():
        torch.save(lit_gpt_weights(name, Shape(2, 4, 4), len(tokenizer)), home / f"model{kind}.pth")
        folder = convert(home / f"model{kind}.pth", home / f"scratch{kind}", tokenizer=home / "tokenizer", heads=4)
        found[f"scratch-472m{kind}"] = str(folder)
    shifted = sinkscope.load(model.card.name).network
    shifted.config.sinkscope_family = "dream"
    sinkscope.add_sink_token(shifted, "none").save_pretrained(home / "qwen")
    tokenizer.save_pretrained(home / "qwen")
    return found | {"qwen2.5-0.5b": str(home / "qwen")}


def work(paper, parts, out, **flags):
    return Reproduce(paper=paper, out=out, **flags).work(parts)


@pytest.mark.parametrize(
    ("name", "task", "settings"),
    [
        ("scratch-472m+sink", "lambada", {"method": "monte_carlo", "samples": 400, "guidance": 0.0}),
        ("qwen2.5-0.5b", "lambada", {}),
        ("scratch-472m", "arc_easy", {"samples": 60, "guidance": 0.0}),
        ("scratch-472m", "gsm8k_two_pass", {"length": 8, "steps": 4, "block": 8}),
    ],
)
def test_the_plan_counts_the_canvases_of_a_run(name, task, settings, folders, tmp_path, monkeypatch):
    rows = {
        "lambada": [{"text": "it is a sun"}] * 2,
        "arc_easy": [
            {"question": "Hot?", "choices": {"text": ["yellow sun"] * 3, "label": ["A", "B", "C"]}, "answerKey": "A"}
        ]
        * 12,
        "gsm8k_two_pass": [{"question": "How many?", "answer": "#### 3"}] * 3,
    }[task]
    (part,) = paper2(f"{name}={folders[name]}", tasks=[task], limit=len(rows))
    part = dataclasses.replace(part, settings={**part.settings, **settings})
    canvases, real = [], sinkscope.models.load

    def load(*arguments, **options):
        loaded = real(*arguments, **options)
        loaded.network.model.embed_tokens.register_forward_hook(lambda _, given, __: canvases.append(len(given[0])))
        return loaded

    monkeypatch.setattr("sinkscope.models.load", load)
    work("paper2", [part], tmp_path / "out", data=(f"{task}={write_rows(tmp_path, task, rows)}",), batch=16)
    items = [json.loads(path.read_text()) for path in (tmp_path / "out").rglob("none/0*.json")]
    lengths = {one["tokens"] for item in items for one in item.get("likelihoods", [])}
    if lengths:
        (length,) = lengths
        monkeypatch.setitem(CHOICE_TOKENS, task, (9, {"arc_easy": 3, "lambada": 1}[task], length))
    expected = pytest.approx(sum(canvases), rel=0.03) if task == "arc_easy" else sum(canvases)
    assert estimate(part).forwards == expected


def test_a_run_of_paper_2_on_local_files(folders, tmp_path, capsys):
    names = ["piqa", "arc_easy"]
    data = tuple(f"{name}={write_rows(tmp_path, name)}" for name in names)
    folded = fold(folders["scratch-472m+sink"], tmp_path / "folded")  # a folded token is the token
    parts = paper2(f"scratch-472m={folders['scratch-472m']},scratch-472m+sink={folded}", tasks=names)
    (written,) = work("paper2", parts, tmp_path / "out", data=data, batch=2)
    assert "scratch-472m: its width is 24, 1280 in the paper; it is another checkpoint" in capsys.readouterr().err
    lines = written.read_text().splitlines()
    assert lines[3].startswith(f"| scratch-472m | arc_easy | {len(ROWS['arc_easy'])} |")
    assert lines[3].endswith("| 32.2 |") and lines[5].endswith("| 40.9 |")
    results = json.loads((tmp_path / "out" / "evaluations" / "scratch-472m" / "piqa" / "results.json").read_text())
    settings = results["results"][0]["settings"]
    assert (settings["method"], settings["guidance"]) == ("chain_rule", 0.6)


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("scratch-472m+sink", "scratch-472m", "family smdm with sink token none"),
        ("scratch-472m", "qwen2.5-0.5b", "family dream with sink token none"),
    ],
)
def test_a_folder_of_another_kind_than_its_name_is_refused(name, given, found, folders, tmp_path):
    parts = paper2(f"qwen2.5-0.5b={folders['qwen2.5-0.5b']},{name}={folders[given]}", tasks=["piqa"])
    with pytest.raises(CallError, match=f"--models {re.escape(f'{name}={folders[given]}')}: .* found {found}"):
        work("paper2", parts, tmp_path / "out")
    assert not (tmp_path / "out").exists(), "what the others take is hours"


@pytest.fixture
def lab(monkeypatch, diffusion, autoregressive):
    """Tiny random networks stand for the lab's checkpoints."""
    tiny = {"lab-diffusion": diffusion, "lab-autoregressive": autoregressive}
    monkeypatch.setattr("sinkscope.models.load", lambda name, dtype=None, device="cpu": tiny[name])
    monkeypatch.setattr(reproduce, "EXCESS", 0.2)


def small(parts):
    """The same parts with fewer shots and tokens, for networks of 256 positions."""
    found = []
    for part in parts:
        settings = {"length": 8} if "block" not in part.settings else {"length": 8, "steps": 8, "block": 4}
        found.append(dataclasses.replace(part, shots=0, settings=settings, rules=("none",)))
    return found


@pytest.mark.slow
def test_every_table_and_figure_of_paper_1_and_nothing_is_done_twice(lab, tmp_path, monkeypatch, capsys):
    parts = small(paper1(LAB, limit=3, traces=2))
    written = work("paper1", parts, tmp_path, batch=2)
    names = {str(path.relative_to(tmp_path)) for path in written}
    assert {"table1.md", "table1.tex", "table1.csv", "table1.json", "table2.json", "table2.md"} < names
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".pdf", ".csv"}
    assert "lab-diffusion, lab-code: left out" in capsys.readouterr().err
    rows = json.loads((tmp_path / "table1.json").read_text())["rows"]
    assert [(row["task"], row["hide"], row["n"]) for row in rows] == [("lab-arith", "none", 3)] * 2
    assert sum(json.loads((tmp_path / "table2.json").read_text())["lab-diffusion"].values()) == pytest.approx(1)
    assert (tmp_path / "table2.md").read_text().startswith("| model | generations | 1. | 2. |")
    figures = [path for path in written if path.parent.name == "figures"]
    monkeypatch.setattr("sinkscope.figures.draw_figures", lambda *_, **__: figures)  # drawn above
    assert work("paper1", parts, tmp_path, batch=2) == written
    assert "recorded" not in capsys.readouterr().err
    (tmp_path / "traces" / "lab-diffusion" / "000001.json").unlink()  # a generation that was cut short
    assert work("paper1", parts, tmp_path, batch=2) == written
    assert capsys.readouterr().err.count("recorded") == 1


def test_other_processes_of_torchrun_only_share_in_the_evaluations(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert work("paper1", small(paper1(LAB[:1], limit=3, traces=1)), tmp_path, batch=2) == []
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("0*.json")]
    assert found == ["evaluations/lab-diffusion/lab-arith/lab-arith/none/000002.json"]


def test_table_2_counts_tokens(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Tom has 7 apples and buys 5 more.\nA:", length=8)
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
