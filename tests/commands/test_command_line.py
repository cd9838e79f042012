"""Every command, as a person types it: what it prints, its exit status, and what bad input gets."""

import json
import os
import subprocess
import sys

import pytest

from sinkscope import cli
from sinkscope.commands import COMMANDS, find_command, summary

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"


@pytest.fixture(scope="module")
def trace_folder(tmp_path_factory, diffusion):
    import sinkscope

    folder = tmp_path_factory.mktemp("traces") / "one"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(diffusion, PROMPT, length=24, block=8, steps=24)
    return folder


def test_every_command_has_help_and_a_line_in_the_overview(run):
    overview = run()[1]
    for name in COMMANDS:
        status, out, _ = run(name, "--help")
        assert status == 0 and f"sinkscope {name}" in out
        assert summary(name) == (find_command(name).__doc__ or "").splitlines()[0]
        assert f"\n  {name:<14}  {summary(name)}" in overview


def test_trace_then_sinks_then_tracks(run, diffusion_folder, tmp_path):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--out", tmp_path / "t", "--length", 16, "--block", 8)
    status, out, _ = run(*call, "--json")
    (row,) = json.loads(out)["traces"]
    assert (status, row["trace"], row["steps"], {*row}) == (0, str(tmp_path / "t"), 16, {"trace", "text", "steps"})
    status, out, _ = run("sinks", tmp_path / "t", "--excess", "0.2", "--json")
    document = json.loads(out)
    assert status == 0 and document["sinks"] and 0 < document["selected_share"] < 1
    expected = {"complete": True, "excess": 0.2, "unit": "queries", "steps": 16, "layers": 3, "heads": 5}
    assert {key: document[key] for key in expected} == expected
    status, out, _ = run("tracks", tmp_path / "t", "--excess", "0.2", "--json")
    document = json.loads(out)
    assert status == 0 and sum(document["kinds"].values()) == len(document["tracks"]) > 0
    assert len(document["heads"]) == 15


def test_trace_of_a_prompt_file_makes_numbered_traces(run, autoregressive_folder, tmp_path):
    prompts, expected = tmp_path / "prompts.jsonl", [str(tmp_path / "t" / name) for name in ("000000", "000001")]
    prompts.write_text("\n\n".join(json.dumps({"prompt": one}) for one in (PROMPT, "Q: Tom has 3 pens.\nA:")))
    call = ("trace", autoregressive_folder, "--prompts", prompts, "--out", tmp_path / "t", "--length", 4, "--json")
    status, out, _ = run(*call)
    assert (status, [row["trace"] for row in json.loads(out)["traces"]]) == (0, expected)
    assert [one["trace"] for one in json.loads(run("sinks", tmp_path / "t", "--json")[1])["traces"]] == expected


def test_check_fails_when_hiding_does_not_bite(run, diffusion_folder, monkeypatch):

    monkeypatch.setattr("sinkscope.attention.call._hidden_by", lambda hider, layer: [])
    status, out, err = run("check", diffusion_folder)
    assert status == 1
    assert "FAILED hiding a key bites" in out
    assert "1 check failed" in err


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ("no-such-command", 2, "no command 'no-such-command'; expected one of demo, trace"),
        ("sinks {tmp}/nothing", 1, "found no such folder; `sinkscope trace MODEL"),
        ("sinks {trace} --excess 3 --unit mean", 2, "can never hold"),
        ("sinks {trace} --excess many", 2, "--excess"),
        (
            "trace lab-difusion --out {tmp}/t",
            2,
            "no model 'lab-difusion': did you mean lab-diffusion or smollm2-diffusion? Expected a",
        ),
        ("trace {model} --out {tmp}/t", 2, "expected one of --prompt TEXT, --prompts FILE and --problem N"),
        ("trace {model} --prompt Tom --problem 1 --out {tmp}/t", 2, "found --prompt and --problem"),
        ("trace {model} --prompt aardvarks --out {tmp}/t", 2, "does not know 'aardvarks'"),
        ("trace {model} --prompt Tom --length 20 --block 8 --out {tmp}/t", 2, "length must be a multiple of block"),
        ("trace {model} --prompt Tom --top-k 3 --out {tmp}/t", 2, "llada has no setting 'top_k'"),
        ("trace {model} --prompt Tom --length 8 --out {tmp}/file", 2, "found a file on the way"),
        (
            "trace {model} --prompt Tom --keep-maps 1:0:0 --hide top:1 --out {tmp}/t",
            2,
            "--keep-maps is not used with --hide and --cache",
        ),
        (
            "trace {model} --prompt Tom --length 8 --hide top:1000 --out {tmp}/t",
            2,
            "a canvas of at least 1001 tokens, found",
        ),
        ("trace {model} --prompt Tom --hide unheard-of:1 --out {tmp}/t", 2, "no rule 'unheard-of:1'; expected one of"),
        ("trace {model} --prompts {tmp}/odd.jsonl --out {tmp}/t", 2, "odd.jsonl, line 2: prompt: "),
        ("trace {model} --prompts {tmp}/none --out {tmp}/t", 2, "cannot be read"),
        ("train lab-nothing --out {tmp}/t", 2, "no recipe 'lab-nothing'"),
        ("problems --task gsm9k", 2, "no task 'gsm9k'"),
    ],
)
def test_bad_input_gets_one_message(run, tmp_path, diffusion_folder, trace_folder, arguments, status, says):
    (tmp_path / "file").write_text("no json\n")
    (tmp_path / "odd.jsonl").write_text('{"prompt": "Q: Tom"}\n{"prompt": "Tom likes aardvarks"}\n')
    places = {"tmp": tmp_path, "model": diffusion_folder, "trace": trace_folder}
    found, out, err = run(*(one.format(**places) for one in arguments.split()))
    assert says in err.replace("\n", " "), err
    assert (found, out) == (status, "") and "Traceback" not in err
    assert not (tmp_path / "t" / "manifest.json").exists()


def test_a_reader_that_closes_the_pipe_ends_a_command_without_a_word(run, monkeypatch):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert run("problems")[::2] == (1, "")


@pytest.mark.parametrize(
    ("arguments", "unloaded"),
    [
        (["--help"], "torch transformers numpy tyro"),
        (["trace", "--help"], "torch transformers numpy"),
        (["sinks", "{trace}"], "torch pydantic scipy sinkscope.traces.writing sinkscope.traces.exporting"),
    ],
    ids=str,
)
def test_a_command_loads_no_more_than_it_needs(trace_folder, arguments, unloaded):
    arguments = [one.format(trace=trace_folder) for one in arguments]
    code = f"""if True:
        import atexit, sys
        from sinkscope import cli
        sys.argv[1:] = {arguments}
        loaded = lambda: print("loaded:", *set({unloaded.split()}) & set(sys.modules))
        atexit.register(loaded)
        cli.main()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100 and done.stdout.splitlines()[-1] == "loaded:"


def test_trace_with_a_rule_says_what_came_of_it(run, diffusion_folder, tmp_path):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 8, "--hide", "top:02@last_row,zero")
    status, out, _ = run(*call, "--out", tmp_path / "a", "--json")
    document = json.loads(out)
    assert (status, document["hide"]) == (0, "top:2@last_row,zero")
    assert 0 < document["removed_share"] < 1 and 0 < document["hit_rate"] <= 1
    status, out, err = run(*call, "--out", tmp_path / "b")
    assert status == 0 and "took away" not in out and "top:2@last_row,zero took away" in err


def test_statistics_under_a_rule_say_so_and_go_on_only_under_the_same(run, diffusion_folder, tmp_path, monkeypatch):
    keep = ("--keep", "statistics", "--out", tmp_path / "s")
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 8, *keep)
    status, out, err = run(*call, "--hide", "top:1")
    assert status == 0 and "top:1 took away" in err and out.endswith("s: statistics of 1 prompt\n")
    status, _, err = run(*call, "--hide", "top:01")
    assert status == 0 and "1 prompts are done already" in err
    status, _, err = run(*call)
    assert status == 2 and "holds statistics of another run: expected hide 'none', found 'top:1'" in err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    status, _, err = run(*call, "--overwrite")
    assert status == 2 and "--overwrite is not used by several processes of torchrun" in err


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MemoryError(), 1, cli.NO_MEMORY),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "a/file"), 1, "a/file: Permission denied"),
        (ModuleNotFoundError("no peft", name="peft"), 2, "no peft: pip install 'sinkscope[peft]'"),
        (KeyError("x"), 1, "unexpected KeyError: 'x' (--debug shows where; please report it)"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(run, monkeypatch, error, status, line):
    def fail(arguments):
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert run("sinks") == (status, "", f"sinkscope: error: {line}\n")
