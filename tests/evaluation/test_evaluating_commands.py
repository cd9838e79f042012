"""`evaluate`, `table` and `reproduce` as a person types them."""

import json

import pytest


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
    assert out.startswith(f"| task | hidden | {diffusion_folder} |\n")
    status, out, _ = run("table", tmp_path / "r", "--json")
    (row,) = json.loads(out)["rows"]
    assert (status, row["task"], row["n"], row["hide"]) == (0, "lab-arith", 3, "none")
    for form, start in (
        ("markdown", "| task | hidden |"),
        ("latex", r"\begin{tabular}"),
        ("csv", "model,task,hide,n,"),
        ("json", '{"rows"'),
    ):
        status, out, _ = run("table", tmp_path / "r", "--format", form)
        assert status == 0
        assert out.startswith(start)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--tasks", "gsm9k"], 2, "no task 'gsm9k': expected one of lab-arith, lab-code, lab-sums, gsm8k"),
        (["--data", "gsm8k"], 2, "--data: expected TASK=PATH"),
        (["--tasks", "gsm8k", "--shots", "0", "--data", "gsm8k={tmp}/nothing"], 2, "found nothing"),
        (
            ["--tasks", "humaneval", "--data", "humaneval={data}", "--allow-code-execution"],
            2,
            "row 1: expected the fields task_id, prompt, entry_point, test",
        ),
        (["--tasks", "gsm8k", "--data", "gsm8k={data}"], 2, "expected train.jsonl in"),
        (["--tasks", "lab-code"], 2, "Pass allow_code_execution=True (--allow-code-execution)"),
        (["--jobs", "-1"], 2, "jobs: expected at least 1, found -1"),
        (["--tasks", ","], 2, "tasks: expected a list of names"),
        (["--hide", ","], 2, "--hide: expected rules separated by commas, such as none,top:1, found ','"),
        (
            ["--chat"],
            2,
            "chat: expected a task with a conversation, found lab-arith, which has raw text only; leave chat out",
        ),
    ],
)
def test_bad_input_gets_one_message(run, diffusion_folder, tmp_path, data, arguments, status, says):
    given = [one.format(tmp=tmp_path, data=data) for one in arguments]
    found, out, err = run("evaluate", diffusion_folder, "--out", tmp_path / "r", "--limit", 2, *given)
    assert says in err.replace("\n", " "), err
    assert (found, out) == (status, "")
    assert "Traceback" not in err
    assert not (tmp_path / "r" / "run.json").exists()


def test_a_published_task_from_a_local_file(run, monkeypatch, diffusion_folder, tmp_path, data):
    """Prompts of GSM8K have words the lab does not know, so its opening is put in words that it does."""
    import dataclasses

    from sinkscope.evaluation import task_plans

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


def test_dry_run(run):
    status, out, _ = run("reproduce", "paper1", "--dry-run", "--json")
    document = json.loads(out)
    assert status == 0
    assert len(document["parts"]) == 12
    assert document["card_suffices"] is True
    most = min(row["batch_on_card"] for row in document["parts"])
    assert most == 5, "Dream writes 768 tokens and needs the logits of all of them"
    assert document["total"]["gpu_hours"] == pytest.approx(sum(row["gpu_hours"] for row in document["parts"]))
    status, out, _ = run("reproduce", "paper1", "--dry-run", "--models", "lab", "--limit", 2, "--ks", 1)
    assert status == 0
    assert "| Table 1 | lab-diffusion | lab-arith | 2 | 6 | 768 |" in out
    most = min(int(line.split("|")[9]) for line in out.splitlines() if line.startswith(("| Table", "| Fig")))
    assert (
        f"A card of 24 GB suffices for every part, with --batch {most} or less; each part's own limit is in its row."
        in out
    )


def test_a_card_is_known_by_its_name(run):
    found = {}
    for gpu in ("a100", "h100", "h200"):
        status, out, _ = run("reproduce", "paper1", "--dry-run", "--gpu", gpu, "--json")
        assert status == 0
        found[gpu] = json.loads(out)
    assert [one["card_gib"] for one in found.values()] == [80, 80, 140]
    hours = [one["total"]["gpu_hours"] for one in found.values()]
    assert hours[0] > hours[1] >= hours[2]
    rows = [[row["batch_on_card"] for row in one["parts"]] for one in found.values()]
    assert rows[0] == rows[1] and all(more > less for more, less in zip(rows[2], rows[1], strict=True))
    status, out, _ = run("reproduce", "paper1", "--dry-run", "--gpu", "h100", "--tflops", 50)
    assert (
        "batch on 80 GB" in out
        and "An H100 of 80 GB suffices for every part, with --batch " in out
        and "50 TFLOP/s reached" in out
    )


def test_controls_can_be_left_out(run):
    status, out, _ = run("reproduce", "paper1", "--dry-run", "--controls", "none", "--ks", "1,5", "--json")
    assert status == 0
    assert {row["rules"] for row in json.loads(out)["parts"] if row["part"] == "Table 1"} == {3}  # none, top:1, top:5


def test_an_evaluation_says_what_it_would_cost(run, monkeypatch, tmp_path, diffusion_folder, data):
    monkeypatch.setattr("sinkscope.models.loading._network", None)  # no weights are read
    call = (
        "evaluate",
        "GSAI-ML/LLaDA-8B-Instruct",
        "--tasks",
        "gsm8k,humaneval,lab-arith",
        "--hide",
        "none,top:1",
        "--dry-run",
    )
    status, out, err = run(*call, "--gpu", "h100", "--limit", 7, "--json")
    assert status == 0, err
    rows = json.loads(out)["parts"]
    assert [(row["task"], row["prompts"], row["rules"], row["forwards"]) for row in rows] == [
        ("gsm8k", 7, 2, 7 * 2 * 256),  # by the protocol
        ("humaneval", 7, 2, 7 * 2 * 512),
        ("lab-arith", 7, 2, 7 * 2 * 64),
    ] and not err
    few = ("--length", 32, "--steps", 8, "--shots", 0)
    status, out, _ = run("evaluate", diffusion_folder, "--dry-run", *few, "--data", f"gsm8k={data}", "--tasks", "gsm8k")
    assert status == 0
    assert (
        "| evaluate |" in out and "| gsm8k | 2 | 1 | 16 |" in out and "A card of 24 GB suffices for every part" in out
    )
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "expected --out FOLDER, or --dry-run"),
        (("--dry-run", "--tasks", "gsm9k"), "no task 'gsm9k'"),
        (("--dry-run", "--hide", "magic:1"), "no rule 'magic:1'"),
        (("--dry-run", "--limit", 0), "limit: expected at least 1 problem, found 0"),
        (("--dry-run", "--top-k", 3), "llada has no setting 'top_k'"),
        (("--dry-run", "--tflops", 0, "--shots", 1), "tflops: expected a number above 0, found 0"),
    ],
)
def test_what_a_dry_run_of_an_evaluation_refuses(run, diffusion_folder, arguments, says):
    status, out, err = run("evaluate", diffusion_folder, *arguments)
    assert (status, out) == (2, "")
    assert says in err.replace("\n", " ")


def test_the_shape_of_a_checkpoint_is_read_from_its_config_alone(diffusion_folder, diffusion, tmp_path):
    import shutil

    from sinkscope.models import describe

    shutil.copy(diffusion_folder / "config.json", tmp_path)
    family, config, parameters = describe(str(tmp_path))
    assert (family.name, parameters, config.num_hidden_layers) == (
        "llada",
        diffusion.card.parameters,
        diffusion.card.layers,
    )


def test_a_likelihood_of_an_autoregressive_model_is_one_call_a_choice():
    from sinkscope.evaluation.cost import CHOICE_TOKENS, estimate
    from sinkscope.evaluation.papers.paper import Part, Shape

    settings = {"method": "monte_carlo", "samples": 128, "guidance": 0.0}
    part = Part("", "x", "m", "piqa", ("none",), 10, 0, settings, Shape(2, 2, 2, 16, 32, 100, 10_000, causal=True))
    assert estimate(part).forwards == 10 * CHOICE_TOKENS["piqa"][1]


def test_a_dry_run_counts_the_width_of_the_heads():
    from sinkscope.evaluation.cost import estimate
    from sinkscope.evaluation.papers.paper import Part, Shape

    cards = {"name": "x", "model": "m", "task": "lab-sums", "rules": ("none",), "prompts": 10, "shots": 0}
    shared, own = (
        estimate(
            Part("", *cards.values(), {"length": 64, "steps": 64}, Shape(2, 2, 2, 16, 32, 100, 10_000, head_dim=dim))
        )
        for dim in (None, 32)
    )
    canvas = 24 + 64
    more = 10 * 64 * 4 * 2 * (64 - 16) * canvas * canvas  # multiply-adds twice, of scores and of values
    assert (own.gpu_hours - shared.gpu_hours) * 3600 * 125e12 == pytest.approx(more, rel=1e-6)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--hide", "top:1@layers=9"), "top:1@layers=9: the model has 3 layers of 5 heads, counted from 0"),
        (("--hide", "top:1@heads=0.9"), "top:1@heads=0.9: the model has 3 layers of 5 heads, counted from 0"),
        (
            ("--shots", 999),
            "lab-sums with 999 shots and 16 to write makes about 43996 tokens, {model} was made for 256: use fewer --shots or a smaller --length",
        ),
        (
            ("--hide", "top:999", "--shots", 2),
            "hide: top:999 needs a canvas of at least 1000 tokens; lab-sums with 2 shots and 16 to write makes "
            "about 128 tokens: choose fewer keys",
        ),
    ],
)
def test_a_dry_run_refuses_what_no_run_could_take(run, diffusion_folder, flags, says):
    status, out, err = run("evaluate", diffusion_folder, "--tasks", "lab-sums", "--length", 16, "--dry-run", *flags)
    assert (status, out) == (2, "") and says.format(model=diffusion_folder) in err
    if flags[0] not in ("--hide", "--shots"):
        assert run("reproduce", "paper1", "--models", "lab", "--dry-run", *flags)[::2] == (2, err)
        assert run("compare-caches", diffusion_folder, "--tasks", "lab-sums", "--dry-run", *flags)[::2] == (2, err)


def test_a_dry_run_says_that_a_cache_costs_less(run, diffusion_folder):
    for cache, said in (("none", False), ("fast-dllm-dual", True)):
        settings = ("--length", 32, "--block", 16, "--steps", 32, "--cache", cache)
        status, out, err = run("evaluate", diffusion_folder, "--tasks", "lab-sums", "--dry-run", *settings)
        assert status == 0 and ("counted as plain sampling" in out) == said, err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "expected --out FOLDER, or --dry-run"),
        (["--dry-run", "--ks", "1,x"], "--ks: expected whole numbers separated by commas, found '1,x'"),
        (["--dry-run", "--ks", "²"], "--ks: expected whole numbers separated by commas, found '²'"),
        (
            ["--dry-run", "--ks", "9" * 5000],
            "--ks: expected whole numbers separated by commas, found '999",
        ),
        (["--dry-run", "--models", "gpt2"], "paper1: no checkpoint 'gpt2'; expected some of "),
        (
            ["--dry-run", "--models", "lab,lab-diffusion"],
            "--models: expected 'lab' alone, as it stands for lab-diffusion, ",
        ),
        (
            ["--dry-run", "--models", "lab-diffusion, published"],
            "--models: expected 'published' alone, as it stands for ",
        ),
        (["--dry-run", "--tflops", "-1"], "tflops: expected a number above 0, found -1.0"),
    ],
)
def test_what_reproduce_refuses(run, arguments, says):
    status, out, err = run("reproduce", "paper1", *arguments)
    assert (status, out) == (2, "")
    assert says in err.replace("\n", " ")
