"""`evaluate` and `table` as a person types them."""

import dataclasses
import json

import pytest

from sinkscope.evaluation import task_plans


@pytest.fixture
def data(tmp_path):
    """Two problems in words that the lab's tokenizer knows."""
    path = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"Q: Tom has {n} apples and buys 1 more.", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"}
        for n in (3, 4)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_evaluate_then_table(run, diffusion_folder, tmp_path):
    flags = ("--limit", 3, "--shots", 0, "--length", 8)
    status, out, err = run("evaluate", diffusion_folder, "--out", tmp_path / "r", *flags)
    assert status == 0, err
    assert max(map(len, out.splitlines())) <= 80 and "hidden n  acc." in out
    status, out, _ = run("table", tmp_path / "r", "--json")
    (row,) = json.loads(out)["rows"]
    assert (status, row["task"], row["n"], row["hide"]) == (0, "lab-arith", 3, "none")
    assert run("table", tmp_path / "r", "--format", "csv")[1].startswith("model,task,hide,n,")


def test_likelihood_says_where_a_sink_is_rebuilt(run, tmp_path):
    (tmp_path / "text.txt").write_text("Tom has 12 apples . Kim has 4 apples . Tom has 16 . " * 9)
    flags = ("--context", 16, "--answer", 16, "--hide", "position:0-3,top:1,random:1,position:900")
    for where, says in (((), "as by a cache that drops them"), (("--everywhere",), "which understates")):
        status, out, err = run("likelihood", "lab-autoregressive", "--text", tmp_path / "text.txt", *flags, *where)
        assert (status, max(map(len, out.splitlines())) <= 80) == (0, True), err
        assert says in out.replace("\n", " ") and "position:900 hid nothing: " in out and "\nposition:0-3 " in out
        assert ("top:1@current " in out) == bool(where)


def test_bad_input_gets_one_message(run, diffusion_folder, tmp_path, data):
    for arguments, says in (
        (["--data", f"gsm8k={data}"], "--data gsm8k is not used without this task"),
        (["--tasks", "gsm8k", "--data", f"gsm8k={data}"], "or train.jsonl in"),
        (["--hide", ","], "--hide: expected rules separated by commas, such as none,top:1, found ','"),
        (["--job-options", "a=1"], "--job-options is not used without --jobs"),
    ):
        status, out, err = run("evaluate", diffusion_folder, "--out", tmp_path / "r", "--limit", 2, *arguments)
        assert says in err.replace("\n", " "), err
        assert (status, out) == (2, "") and not (tmp_path / "r" / "run.json").exists()


def test_a_published_task_from_a_local_file(run, monkeypatch, diffusion_folder, tmp_path, data):
    """Prompts of GSM8K have words the lab does not know, so its opening is put in words that it does."""
    plain = task_plans.find_task

    def short(name, files):
        return dataclasses.replace(plain(name, files), prompt=lambda row, i, n: f"{row['question']}\nA:")

    monkeypatch.setattr(task_plans, "find_task", short)
    flags = ("--tasks", "gsm8k", "--data", f"gsm8k={data}", "--shots", 0, "--length", 8, "--json")
    status, out, err = run("evaluate", diffusion_folder, "--out", tmp_path / "r", *flags)
    assert status == 0, err
    (row,) = json.loads(out)["rows"]
    assert (row["task"], row["n"], set(row["measures"])) == ("gsm8k", 2, {"strict-match", "flexible-extract"})
    data.write_text(data.read_text().replace("4 + 1", "1 + 4"))
    status, _, err = run("evaluate", diffusion_folder, "--out", tmp_path / "r", *flags)
    assert status == 2
    assert "gsm8k holds another run (data: " in err
