"""Every command, as a person types it: what it prints, its exit status, and what bad input gets."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from sinkscope import cli
from sinkscope.commands import COMMANDS, find_command, summary
from sinkscope.commands.command import Command

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"


@pytest.fixture(scope="module")
def trace_folder(tmp_path_factory, diffusion):
    import sinkscope

    folder = tmp_path_factory.mktemp("traces") / "one"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(diffusion, PROMPT, length=24, block=8, steps=24)
    return folder


def test_overview_names_every_command(run):
    status, out, _ = run()
    assert status == 0
    for name in COMMANDS:
        assert f"\n  {name} " in out


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert f"sinkscope {name}" in out


def test_help_takes_the_name_of_a_command(run):
    assert run("help", "sinks")[:2] == run("sinks", "--help")[:2]
    assert run("help", "sniks")[0] == 2


def test_no_word_behind_two_dashes_is_a_flag(run, trace_folder, tmp_path, monkeypatch):
    (tmp_path / "-t").symlink_to(trace_folder)
    monkeypatch.chdir(tmp_path)
    plain = json.loads(run("sinks", str(trace_folder), "--json")[1])
    status, _, err = run("sinks", "--", "--json")
    assert status != 0 and "--json" in err
    assert json.loads(run("sinks", "--json", "--", "-t")[1])["sinks"] == plain["sinks"]


def told_options(shown):
    """The help of every option and argument, each on one line; with a frame around it or, where the output knows no such signs, without."""
    found = []
    for line in shown.splitlines():
        row = line[2:].rstrip("│ ")
        if line[:2] in ("│ ", "  ") and row:
            if not row.startswith(" "):
                found.append("")
            found[-1] += " " + row
    return [" ".join(one.split()) for one in found if "--help" not in one]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_tells_its_default_once(run, name):
    _, shown, _ = run(name, "--help")
    told = told_options(shown)
    assert told
    for one in told:
        assert len(re.findall(r"\((?:default: .+?|required|repeatable)\)", one)) == 1, one
        assert "None" not in one and one.count("default") == 1 - ("required" in one or "repeatable" in one), one
        assert not re.search(r"\(default: (?:''|True)?\)", one), one
    assert run(name, "--help")[1] == shown  # also when asked twice in one process


def test_a_default_that_is_told_twice_would_be_found():
    shown = "│ --length INT    │\n│      tokens (default: 3) (default: None)  │\n│ --json  prints. (default:     │\n│    off)  │"
    assert told_options(shown) == ["--length INT tokens (default: 3) (default: None)", "--json prints. (default: off)"]


def test_defaults_of_settings_are_told_by_sampler(run):
    told = told_options(run("trace", "--help")[1])
    (length,) = (one for one in told if one.startswith("--length"))
    (block,) = (one for one in told if one.startswith("--block "))
    (seed,) = (one for one in told if one.startswith("--seed"))
    assert "(default: 128 for llada, mmada, sdar, autoregressive; 20 for dream" in length
    assert block.endswith("(default: --length where given, else 128 for llada, mmada; 4 for sdar; 32 for llada2)")
    assert "(default: 0" in seed
    told = told_options(run("evaluate", "--help")[1])
    (length,) = (one for one in told if one.startswith("--length"))
    assert length.endswith("(default: the protocol's or the task's, else the sampler's)")


def test_trace_then_sinks_then_tracks(run, diffusion_folder, tmp_path):
    status, out, _ = run(
        "trace", diffusion_folder, "--prompt", PROMPT, "--out", tmp_path / "t", "--length", 16, "--block", 8, "--json"
    )
    assert status == 0
    assert json.loads(out)["traces"][0] == {
        "trace": str(tmp_path / "t"),
        "text": json.loads(out)["traces"][0]["text"],
        "steps": 16,
    }
    status, out, _ = run("sinks", tmp_path / "t", "--excess", "0.2", "--json")
    document = json.loads(out)
    assert status == 0
    assert {key: document[key] for key in ("complete", "excess", "unit", "steps", "layers", "heads")} == {
        "complete": True,
        "excess": 0.2,
        "unit": "queries",
        "steps": 16,
        "layers": 3,
        "heads": 5,
    }
    assert document["sinks"]
    assert set(document["sinks"][0]) >= {"step", "layer", "head", "position", "token", "column_sum", "excess"}
    assert 0 < document["selected_share"] < 1
    status, out, _ = run("tracks", tmp_path / "t", "--excess", "0.2", "--json")
    document = json.loads(out)
    assert status == 0
    assert sum(document["kinds"].values()) == len(document["tracks"]) > 0
    assert set(document["tracks"][0]) == {
        "layer",
        "head",
        "position",
        "first_step",
        "last_step",
        "kind",
        "successor",
        "distance",
    }
    assert len(document["heads"]) == 15
    assert {"layer", "head", "moves", "drift_per_step"} <= set(document["heads"][0])


def test_trace_of_a_prompt_file_makes_numbered_traces(run, autoregressive_folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        json.dumps({"prompt": PROMPT}) + "\n\n" + json.dumps({"prompt": "Q: Tom has 3 pens.\nA:"}) + "\n"
    )
    status, out, _ = run(
        "trace", autoregressive_folder, "--prompts", prompts, "--out", tmp_path / "t", "--length", 4, "--json"
    )
    assert status == 0
    assert [row["trace"] for row in json.loads(out)["traces"]] == [
        str(tmp_path / "t" / "000000"),
        str(tmp_path / "t" / "000001"),
    ]
    status, out, _ = run("sinks", tmp_path / "t", "--json")
    assert [one["trace"] for one in json.loads(out)["traces"]] == [
        str(tmp_path / "t" / "000000"),
        str(tmp_path / "t" / "000001"),
    ]


def test_a_prompt_file_of_one_line_is_numbered_too(run, autoregressive_folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}))
    status, out, _ = run(
        "trace", autoregressive_folder, "--prompts", prompts, "--out", tmp_path / "t", "--length", 3, "--json"
    )
    assert status == 0
    assert json.loads(out)["traces"][0]["trace"] == str(tmp_path / "t" / "000000")


def test_check_passes_on_a_sound_model(run, diffusion_folder, autoregressive_folder):
    for folder in (diffusion_folder, autoregressive_folder):
        status, out, err = run("check", folder, "--json")
        assert status == 0, err
        assert all(one["passed"] for one in json.loads(out)["checks"])


def test_check_fails_when_hiding_does_not_bite(run, diffusion_folder, monkeypatch):
    from sinkscope.attention.call import Call

    monkeypatch.setattr(Call, "hidden", lambda self, call: [])
    status, out, err = run("check", diffusion_folder)
    assert status == 1
    assert "FAILED  hiding a key bites" in out
    assert "1 check failed" in err


def test_problems_are_json_lines(run):
    status, out, _ = run("problems", "--count", 3)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert len(rows) == 3
    assert all(row["prompt"].endswith("\nA:") and row["answer"] for row in rows)


def test_train_a_recipe_then_load_it(run, tmp_path, monkeypatch):
    import dataclasses

    import sinkscope
    from sinkscope.lab.canvases import CanvasMix
    from sinkscope.lab.recipes import RECIPES, Architecture

    small = Architecture(layers=2, hidden_size=32, heads=2, kv_heads=2, intermediate_size=48, max_positions=128)
    mix = CanvasMix(tokens=288, lengths=(72, 96), weights=(0.5, 0.5))
    recipe = dataclasses.replace(RECIPES["lab-diffusion"], architecture=small, canvases=mix, validate_every=5)
    monkeypatch.setitem(RECIPES, "lab-diffusion", recipe)
    status, out, _ = run("train", "lab-diffusion", "--out", tmp_path / "m", "--updates", 6)
    assert status == 0
    assert out.strip() == str(tmp_path / "m")
    model = sinkscope.load(str(tmp_path / "m"))
    assert (model.family.name, model.card.stored_dtype, model.card.layers) == ("llada", "bfloat16", 2)
    assert sorted(path.name for path in (tmp_path / "m").iterdir() if path.name.startswith(("train", "recipe"))) == [
        "recipe.json",
        "training.jsonl",
    ]
    assert [json.loads(line)["update"] for line in (tmp_path / "m" / "training.jsonl").read_text().splitlines()] == [6]
    status, _, err = run("train", "lab-diffusion", "--out", tmp_path / "m", "--updates", 7)
    assert status == 1
    assert "updates 6 → 7" in err


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["no-such-command"], 2, "no command 'no-such-command'; expected one of demo, trace"),
        (["sinks", "{tmp}/nothing"], 1, "the folder does not exist"),
        (["sinks", "{tmp}"], 1, "expected manifest.json in it"),
        (["sinks", "{trace}", "--excess", "3", "--unit", "mean"], 2, "can never hold"),
        (["sinks", "{trace}", "--excess", "-1"], 2, "expected an excess from 0 upwards"),
        (["sinks", "{trace}", "--unit", "metres"], 2, "metres"),
        (
            ["trace", "no-such-model", "--prompt", "x", "--out", "{tmp}/t"],
            2,
            "expected a bundled name (lab-diffusion, lab-autoregressive, lab-",
        ),
        (
            ["trace", "lab-difusion", "--out", "{tmp}/t"],
            2,
            "no model 'lab-difusion': did you mean lab-diffusion? Expected a bundled name",
        ),
        (["trace", "lab-difusion", "--out", "{tmp}/t"], 2, "recorded as it is: sinkscope.recording(network, out=…)"),
        (["trace", "{tmp}", "--prompt", "x", "--out", "{tmp}/t"], 1, "is no model: expected config.json"),
        (["trace", "{model}", "--out", "{tmp}/t"], 2, "expected --prompt TEXT"),
        (
            ["trace", "{model}", "--prompt", "Q: Tom", "--problem", "1", "--out", "{tmp}/t"],
            2,
            "found --prompt and --problem",
        ),
        (["trace", "{model}", "--prompt", "", "--out", "{tmp}/t"], 2, "found an empty one"),
        (
            ["trace", "{model}", "--prompt", "Tom likes aardvarks", "--out", "{tmp}/t"],
            2,
            "does not know 'likes', 'aardvarks'",
        ),
        (
            ["trace", "{model}", "--prompt", "Tom likes aardvarks", "--out", "{tmp}/t"],
            2,
            "a published model, such as GSAI-ML/LLaDA-8B-",
        ),
        (["trace", "{model}", "--problem", "99999", "--out", "{tmp}/t"], 2, "expected a problem from 0 to 1318"),
        (
            ["trace", "{model}", "--prompt", "Q: Tom", "--length", "20", "--block", "8", "--out", "{tmp}/t"],
            2,
            "length must be a multiple of block",
        ),
        (
            [
                "trace",
                "{model}",
                "--prompt",
                "Q: Tom",
                "--length",
                "16",
                "--block",
                "4",
                "--steps",
                "6",
                "--out",
                "{tmp}/t",
            ],
            2,
            "steps must be a multiple",
        ),
        (
            ["trace", "{model}", "--prompt", "Q: Tom", "--length", "1024", "--out", "{tmp}/t"],
            2,
            "the canvas does not fit",
        ),
        (
            ["trace", "{model}", "--prompt", "Q: Tom", "--top-k", "3", "--out", "{tmp}/t"],
            2,
            "llada has no setting 'top_k'",
        ),
        (
            ["trace", "{causal}", "--prompt", "Q: Tom", "--steps", "3", "--out", "{tmp}/t"],
            2,
            "llama has no setting 'steps'",
        ),
        (["trace", "{model}", "--prompt", "Q: Tom", "--length", "8", "--out", "{trace}"], 2, "already holds a trace"),
        (["trace", "{model}", "--prompt", "Q: Tom", "--length", "8", "--out", "{file}"], 2, "found a file on the way"),
        (["trace", "{model}", "--prompts", "{empty}", "--out", "{tmp}/t"], 2, "found none"),
        (["trace", "{model}", "--prompts", "{file}", "--out", "{tmp}/t"], 2, "line 1: expected JSON"),
        (["trace", "{model}", "--prompts", "{odd}", "--out", "{tmp}/t"], 2, "odd.jsonl, line 3: prompt: "),
        (["trace", "{model}", "--prompts", "{long}", "--out", "{tmp}/t"], 2, "long.jsonl, line 3: "),
        (["trace", "{model}", "--prompts", "{tmp}/none", "--out", "{tmp}/t"], 2, "cannot be read"),
        (["trace", "{model}", "--prompt", "Q: Tom", "--device", "warp", "--out", "{tmp}/t"], 2, "cannot be used here"),
        (
            ["trace", "{model}", "--prompt", "Q: Tom", "--dtype", "int8", "--out", "{tmp}/t"],
            2,
            "expected float32, bfloat16 or float16",
        ),
        (["train", "lab-nothing", "--out", "{tmp}/t"], 2, "no recipe 'lab-nothing'"),
        (["problems", "--task", "gsm9k"], 2, "no task 'gsm9k'"),
        (["problems", "--count", "99999"], 2, "1319"),
        (["table", "{tmp}/none"], 2, "none"),
        (["figures", "{tmp}/none", "--out", "{tmp}/f"], 1, "the folder does not exist"),
    ],
)
def test_bad_input_gets_one_message(
    run, tmp_path, diffusion_folder, autoregressive_folder, trace_folder, arguments, status, says
):
    (tmp_path / "file").write_text("no json\n")
    (tmp_path / "empty").write_text("\n")
    for name, prompt in (("odd.jsonl", "Tom likes aardvarks"), ("long.jsonl", "Tom " * 1200)):
        (tmp_path / name).write_text(
            "".join(json.dumps({"prompt": one}) + "\n" for one in ("Q: Tom", prompt)).replace("\n", "\n\n", 1)
        )
    places = {
        "tmp": tmp_path,
        "odd": tmp_path / "odd.jsonl",
        "long": tmp_path / "long.jsonl",
        "model": diffusion_folder,
        "causal": autoregressive_folder,
        "trace": trace_folder,
        "file": tmp_path / "file",
        "empty": tmp_path / "empty",
    }
    found, out, err = run(*(one.format(**places) for one in arguments))
    assert says in err.replace("\n", " "), err
    assert found == status
    assert out == ""
    assert "Traceback" not in err
    assert not (tmp_path / "t" / "manifest.json").exists()


def test_debug_shows_the_traceback(run, tmp_path):
    status, _, err = run("sinks", tmp_path, "--debug")
    assert status == 1
    assert "Traceback" in err


def test_an_incomplete_trace_says_so_on_standard_error(run, tmp_path, diffusion):
    import sinkscope

    class Stop(Exception):
        pass

    def stop(step):
        if step.number == 17:
            raise Stop

    with pytest.raises(Stop), sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, PROMPT, length=24, on_step=stop)
    status, out, err = run("sinks", tmp_path / "t", "--json")
    assert status == 0
    assert json.loads(out)["complete"] is False
    assert "incomplete, 18 whole steps" in err


@pytest.mark.slow
def test_kill_nine_while_tracing_leaves_a_trace_that_opens(diffusion_folder, tmp_path):
    import sinkscope

    folder = tmp_path / "t"
    command = [
        sys.executable,
        "-m",
        "sinkscope",
        "trace",
        str(diffusion_folder),
        "--prompt",
        PROMPT,
        "--out",
        str(folder),
        "--length",
        "192",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("steps-*.safetensors")):
        assert process.poll() is None, "the trace ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    trace = sinkscope.open_trace(folder)
    assert not trace.complete
    assert trace.steps >= 1
    assert trace.column_sums[:].shape[0] == trace.steps
    assert trace.steps % 16 == 0 or len(trace.parts) > 0


def test_sinks_does_not_load_torch(trace_folder):
    code = "import sys; from sinkscope import cli; sys.argv[1:1] = ['sinks']; cli.main(); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, str(trace_folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sinks in 24 steps" in done.stdout


def test_a_trace_is_replaced_where_that_is_said(run, diffusion_folder, tmp_path):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 8, "--out", tmp_path / "t")
    assert run(*call)[0] == 0
    status, _, err = run(*call)
    assert status == 2 and "choose another folder, or replace it: overwrite=True, --overwrite" in err
    assert run(*call, "--overwrite")[0] == 0
    assert run(*call, "--overwrite", "--keep", "statistics", "--hide", "top:1")[0] == 0
    status, _, err = run(*call, "--keep", "statistics")
    assert status == 2 and "holds statistics of another run" in err and "or replace it: --overwrite" in err
    assert run(*call, "--overwrite", "--keep", "statistics")[0] == 0
    (tmp_path / "t" / "mine.txt").write_text("keep me")
    status, _, err = run(*call, "--overwrite")
    assert status == 2 and "already holds files (mine.txt" in err and (tmp_path / "t" / "manifest.json").exists()


def test_statistics_of_several_processes_are_not_overwritten(run, diffusion_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    call = (
        "trace",
        diffusion_folder,
        "--prompt",
        PROMPT,
        "--length",
        8,
        "--out",
        tmp_path / "t",
        "--keep",
        "statistics",
        "--overwrite",
    )
    status, _, err = run(*call)
    assert status == 2 and "--overwrite: expected one process, found several of torchrun" in err


@pytest.mark.parametrize("keep", ["columns", "statistics"])
def test_a_rule_that_needs_a_longer_canvas_is_refused_before_a_folder_is_made(run, diffusion_folder, tmp_path, keep):
    call = (
        "trace",
        diffusion_folder,
        "--prompt",
        PROMPT,
        "--length",
        8,
        "--hide",
        "top:1000",
        "--keep",
        keep,
        "--out",
        tmp_path / "a",
    )
    status, out, err = run(*call)
    assert (status, out) == (2, "") and "--hide top:1000 needs a canvas of at least 1001 tokens, found " in err.replace(
        "\n", " "
    )
    assert not (tmp_path / "a").exists()


def test_trace_with_a_rule_says_what_came_of_it(run, diffusion_folder, tmp_path):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 8, "--hide", "top:2@last_row,zero")
    status, out, err = run(*call, "--out", tmp_path / "a", "--json")
    document = json.loads(out)
    assert status == 0
    assert (
        document["hide"] == "top:2@last_row,zero"
        and 0 < document["removed_share"] < 1
        and 0 < document["hit_rate"] <= 1
    )
    status, out, err = run(*call, "--out", tmp_path / "b")
    assert status == 0
    assert (
        "top:2@last_row,zero took away" in err and "at the positions being committed), 2 keys per head and step" in err
    )
    assert "took away" not in out


def test_trace_tells_a_rule_in_its_one_text(run, diffusion_folder, tmp_path, monkeypatch):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--length", 4, "--hide", "top:01@local,steps=1+1")
    status, out, _ = run(*call, "--out", tmp_path / "a", "--json")
    assert status == 0 and json.loads(out)["hide"] == "top:1@steps=1"
    status, _, err = run(*call, "--out", tmp_path / "b")
    assert status == 0 and "top:1@steps=1 took away" in err
    call = (*call, "--keep", "statistics")
    status, _, err = run(*call, "--out", tmp_path / "s")
    assert status == 0 and "top:1@steps=1 took away" in err
    assert json.loads((tmp_path / "s" / "manifest.json").read_text())["run"]["hide"] == "top:1@steps=1"
    with monkeypatch.context() as earlier:  # versions that kept the text as it was given
        earlier.setattr("sinkscope.interventions.rules.canonical_rule", lambda text: text)
        assert run(*call, "--out", tmp_path / "e")[0] == 0
    assert "1+1" in (tmp_path / "e" / "manifest.json").read_text()
    status, _, err = run(*call, "--out", tmp_path / "e")
    assert status == 0 and "1 prompts are done already" in err


def test_statistics_under_a_rule_say_so_and_go_on_only_under_the_same(run, diffusion_folder, tmp_path):
    call = (
        "trace",
        diffusion_folder,
        "--prompt",
        PROMPT,
        "--length",
        8,
        "--keep",
        "statistics",
        "--out",
        tmp_path / "s",
    )
    status, out, err = run(*call, "--hide", "top:1")
    assert status == 0 and "top:1 took away" in err and out.endswith("s: statistics of 1 prompt\n")
    assert json.loads((tmp_path / "s" / "manifest.json").read_text())["run"]["hide"] == "top:1"
    status, _, err = run(*call)
    assert status == 2 and "holds statistics of another run: expected hide 'none', found 'top:1'" in err


def test_maps_are_not_kept_of_a_hidden_run(run, diffusion_folder, tmp_path):
    call = ("trace", diffusion_folder, "--prompt", PROMPT, "--keep-maps", "1:0:0", "--out", tmp_path / "t")
    status, _, err = run(*call, "--hide", "top:1")
    assert status == 2 and "--keep-maps with --hide: maps are recomputed without it" in err
    assert not (tmp_path / "t").exists()


def test_trace_with_an_unknown_rule_writes_nothing(run, diffusion_folder, tmp_path):
    status, out, err = run(
        "trace", diffusion_folder, "--prompt", PROMPT, "--out", tmp_path / "t", "--hide", "unheard-of:1"
    )
    assert (status, out) == (2, "")
    assert "no rule 'unheard-of:1'; expected one of none, above:E" in err
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_frozen_class_in_a_file_of_its_name(name):
    command = find_command(name)
    assert issubclass(command, Command) and command.__dataclass_params__.frozen
    assert command.__module__ == f"sinkscope.commands.{name.replace('-', '_')}"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        *(pytest.param([name, "--help"], marks=[pytest.mark.slow] * (name != "trace")) for name in COMMANDS),
    ],
    ids=lambda one: one[0] if one else "overview",
)
def test_help_loads_no_torch(arguments):
    """Help comes at once: the flags of the samplers that ship are read from settings that load nothing heavy."""
    code = f"""if True:
        import sys
        from sinkscope import cli
        sys.argv[1:] = {arguments}
        try:
            cli.main()
        except SystemExit as stop:
            assert not stop.code
        from sinkscope.decoding.samplers import SHIPPED, all_settings
        shipped = set(all_settings()) == set(SHIPPED)
        heavy = {{"torch", "transformers", "numpy", "matplotlib"}} if shipped else {{"matplotlib"}}
        assert not heavy & set(sys.modules), "heavy modules are loaded"
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sinkscope" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sinks a-trace --excess many", "--excess"),
        ("sinks a-trace --exces 3", "--excess"),
        ("sinks", "Missing"),
        ("sinks a-trace b-trace", "Unrecognized"),
        ("trace a-model --out t --top-k few", "--top-k"),
        ("reproduce paper3 --dry-run", "paper1"),
    ],
)
def test_a_mistake_in_the_command_line_ends_with_status_2(run, words, says):
    status, out, err = run(*words.split())
    assert (status, out) == (2, "") and says in err and "Traceback" not in err


@pytest.mark.parametrize("name", COMMANDS)
def test_the_overview_shows_the_first_line_of_each_docstring(name):
    assert summary(name) == (find_command(name).__doc__ or "").splitlines()[0]


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (MemoryError(), 1, cli.NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), 1, cli.NO_MEMORY),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "a/file"), 1, "a/file: Permission denied"),
        (KeyError("x"), 1, "unexpected KeyError: 'x' (--debug shows where; please report it)"),
    ],
)
def test_an_error_is_one_line_and_an_exit_status(run, monkeypatch, error, status, line):
    def fail(arguments):
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert run("sinks") == (status, "", f"sinkscope: error: {line}\n")


def test_a_trace_is_named_as_it_was_given(run, trace_folder, tmp_path, monkeypatch):
    (tmp_path / "000003").symlink_to(trace_folder)
    monkeypatch.chdir(tmp_path)
    status, out, err = run("sinks", "000003")
    assert (status, err) == (0, "") and out.startswith("000003: ")
    assert json.loads(run("tracks", "000003", "--json")[1])["trace"] == "000003"


def test_the_help_of_a_no_flag_says_what_it_leaves_out(run):
    status, out, _ = run("bundle", "--help")
    assert status == 0 and "leaves the explorer page out" in " ".join(out.split())
