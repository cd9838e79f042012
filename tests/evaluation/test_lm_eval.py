"""The model ``sinkscope`` inside lm-eval: its own evaluator, on tasks from small local files."""

import functools
import json
import subprocess
import sys
import types

import pytest
import torch
from processes import environment

pytest.importorskip("lm_eval")

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation.running import answer_until
from sinkscope.evaluation.tasks import find_task
from sinkscope.lab.prompts import problem_prompts

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)

GENERATION = """
task: tiny_arith
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}, train: {file}}}, cache_dir: {cache}}}
test_split: test
fewshot_split: train
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\nQ:"], do_sample: false, max_gen_toks: 12}}
metric_list: [{{metric: exact_match}}]
"""
CHOICE = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}, cache_dir: {cache}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: [" apples 1", " apples 2 3", " Tom"]
doc_to_target: 1
metric_list: [{{metric: acc}}]
"""


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    file, cache = folder / "rows.jsonl", folder / "cache"
    file.write_text("".join(json.dumps(row) + "\n" for row in problem_prompts("lab-arith", 5, shots=0)))
    (folder / "tiny_arith.yaml").write_text(GENERATION.format(file=file, cache=cache))
    (folder / "tiny_choice.yaml").write_text(CHOICE.format(file=file, cache=cache))
    return folder


@pytest.fixture
def harness(task_folder):
    """lm-eval's own evaluator, by task: its samples."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(task_folder), include_defaults=False)

    def run(lm, task, **options):
        found = simple_evaluate(lm, tasks=[task], task_manager=manager, bootstrap_iters=0, log_samples=True, **options)
        assert found is not None
        return found["samples"][task]

    return run


def language_model(model, **arguments):
    from sinkscope.evaluation.lm_eval import SinkscopeLM

    return SinkscopeLM(model, **arguments)


@pytest.mark.parametrize("fixture", ["diffusion", "autoregressive"])
def test_answers_are_those_of_generate_in_the_same_batches(fixture, request, harness):
    model = request.getfixturevalue(fixture)
    samples = harness(language_model(model, batch_size=2), "tiny_arith")
    prompts = [row["prompt"] for row in problem_prompts("lab-arith", 5, shots=0)]
    expected = []
    for at in range(0, 5, 2):
        written = sinkscope.generate(model, prompts[at : at + 2], length=12)
        expected += [answer_until(model, one.tokens[one.prompt_length :], ["\n\nQ:"]) for one in written]
    assert [sample["resps"] for sample in samples] == [[[text]] for text in expected]
    assert any(expected)


def test_answers_end_at_the_first_stop_string(diffusion):
    ids = [token for token in diffusion.tokenizer("Tom has 7 apples").input_ids if token != diffusion.card.eos_id]
    answer = torch.tensor([*ids, diffusion.card.mask_id, diffusion.card.eos_id, *ids])
    for stops, expected in (([], "Tom has 7 apples"), (["7"], "Tom has "), (["apples", "has", ""], "Tom ")):
        assert answer_until(diffusion, answer, stops) == expected


def humaneval_task(name, tmp_path, repeats, k):
    """Our task for lm-eval, its data replaced by a local file."""
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    from sinkscope.evaluation.lm_eval import TASKS

    row = {"task_id": "HumanEval/0", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": ""}
    file = tmp_path / "HumanEval.jsonl"
    file.write_text(json.dumps(row | {"test": "def check(g):\n    assert g(2) == 3\n"}) + "\n")
    config = load_yaml(TASKS / f"{name}.yaml", resolve_func=True)
    data = {"data_files": {"test": str(file)}, "cache_dir": str(tmp_path / "c")}
    metrics = [{**config["metric_list"][0], "k": k}]
    mine = {"dataset_path": "json", "dataset_kwargs": data, "repeats": repeats, "metric_list": metrics}
    return ConfigurableTask(config=config | mine)


@pytest.mark.parametrize(
    ("name", "tail"), [("sinkscope_humaneval", ""), ("sinkscope_humaneval_instruct", "\n```\nDone")]
)
def test_pass_at_k_of_humaneval_inside_lm_eval(name, tail, tmp_path):
    from lm_eval.api.instance import Instance

    task = humaneval_task(name, tmp_path, 3, [1, 2])
    (doc,) = task.test_docs()
    task._instances = [Instance("generate_until", doc, ("", {}), 0, doc_id=0)]
    task._instances[0].resps = ["    return x + 1" + tail, "    return x" + tail, "    return 3" + tail]
    task.apply_filters()
    assert task.process_results(doc, [task._instances[0].filtered_resps["create_test"]]) == pytest.approx(
        {"pass@1": 2 / 3, "pass@2": 1.0}
    )
    context = task.fewshot_context(doc, 0, gen_prefix=task.doc_to_prefix(doc))
    ours = find_task(name.removeprefix("sinkscope_"), {"humaneval": tmp_path / "HumanEval.jsonl"})
    assert context == ours.prompt(ours.problems()[0], 0, 0)
    assert task.config.unsafe_code


def test_what_the_sandbox_lacks_is_said_once_inside_lm_eval(monkeypatch, caplog):
    from sinkscope.evaluation.lm_eval_tasks import passing

    monkeypatch.setattr(passing, "run_program", functools.partial(passing.run_program, without=("memory limit",)))
    tests = "def check(g):\n    assert g(2) == 2\ncheck(f)"
    passing._say_once.cache_clear()
    for _ in range(2):
        assert passing.pass_at_k([tests], [["def f(x):\n    return x"]], [1]) == {"pass@1": 1.0}
    assert sum("the program's memory is not limited" in line for line in caplog.messages) == 1


def test_likelihoods_of_hidden_keys_need_the_current_step(diffusion, harness):
    with pytest.raises(CallError, match="top:1 hid nothing: there was no step before"):
        harness(language_model(diffusion, hide="top:1"), "tiny_choice", limit=1)
    harness(language_model(diffusion, hide="top:1@current;last_row", samples=2), "tiny_choice", limit=1)


MEASURES = ("removed_share", "removed_share_committed", "hit_rate", "keys_per_head")


def test_what_a_rule_did_is_kept_in_lm_evals_results(diffusion, harness):
    lm = language_model(diffusion, hide="top:1", length=4, batch_size=2)
    assert lm.get_model_info() == {"hide": "top:1", "effects": 0, **dict.fromkeys(MEASURES)}
    harness(lm, "tiny_arith", limit=3)
    effects = []
    prompts = [row["prompt"] for row in problem_prompts("lab-arith", 3, shots=0)]
    for batch in (prompts[:2], prompts[2:]):
        with sinkscope.parse_rule("top:1")(diffusion) as running:
            sinkscope.generate(diffusion, batch, length=4)
        effects += [running.effect.of(row) for row in range(len(batch))]
    found = lm.get_model_info()
    assert (found.pop("hide"), found.pop("effects")) == ("top:1", 3)
    assert found == {name: sum(getattr(one, name) for one in effects) / 3 for name in MEASURES}
    assert 0 < found["removed_share"] < 1


def test_likelihoods_are_those_of_the_library(diffusion, caplog):
    found = language_model(diffusion, samples=4, likelihood_guidance=0.6, seed=3)
    context, continuation = diffusion.encode("Tom has 7"), diffusion.encode("apples 5")
    expected = sinkscope.log_likelihood(diffusion, context, continuation, samples=4, guidance=0.6, seed=3).total
    for _ in range(2):
        assert found._loglikelihood_tokens([(None, context, continuation)])[0] == (expected, False)
    assert sum("greedy" in message for message in caplog.messages) == 1
    lm, text = language_model(diffusion, method="chain_rule"), "Tom has 7 apples"
    ids = lm.tok_encode(text, add_special_tokens=False)
    expected = sinkscope.log_likelihood(diffusion, [lm.eot_token_id], ids, method="chain_rule").total
    assert lm.loglikelihood_rolling([types.SimpleNamespace(args=(text,))]) == [expected]


def test_a_likelihood_of_hidden_keys_and_what_was_removed(diffusion, caplog):
    model, before = diffusion, len(caplog.messages)
    context = model.encode("Tom has 7 apples and buys")
    continuation = list(model.tokenizer(" 5 more", add_special_tokens=False).input_ids)
    found = []
    for more in ({}, {"hide": "top:1@current"}):
        lm = language_model(model, method="chain_rule", batch_size=2, **more)
        found += lm._loglikelihood_tokens([(None, context, continuation)], disable_tqdm=True)
    with sinkscope.parse_rule("top:1@current")(model) as running:
        expected = sinkscope.log_likelihood(model, context, continuation, method="chain_rule", batch=2)
    assert found[1][0] == expected.total != found[0][0]
    assert running.effect.removed_share > 0
    (said,) = caplog.messages[before:]
    assert said.startswith(f"top:1@current: removed_share {running.effect.removed_share:.4g}, ")


def test_the_command_line_knows_our_tasks_and_reports_in_one_line(monkeypatch, capsys):
    import lm_eval.__main__

    from sinkscope.evaluation import lm_eval as ours

    def cli_evaluate():
        raise CallError("a wrong call")

    monkeypatch.setattr(lm_eval.__main__, "cli_evaluate", cli_evaluate)
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model", "sinkscope", "--tasks", "sinkscope_humaneval"])
    with pytest.raises(SystemExit, match="2"):
        ours.main()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert sys.argv[-4:] == ["--include_path", str(ours.TASKS), "--device", device]
    assert capsys.readouterr().err == "sinkscope: error: a wrong call\n"


@pytest.mark.slow
def test_the_command_line_under_torchrun_gives_what_one_process_gives(
    diffusion_folder, diffusion, task_folder, harness, tmp_path
):
    lm = language_model(diffusion, batch_size=2, hide="top:1")
    expected = [sample["resps"] for sample in harness(lm, "tiny_arith")]
    launch = "-m torch.distributed.run --standalone --nproc-per-node 2 -m sinkscope.evaluation.lm_eval".split()
    command = [sys.executable, *launch, *"--model sinkscope --tasks tiny_arith --batch_size 2".split()]
    command += ["--model_args", f"pretrained={diffusion_folder},hide=top:1", "--include_path", str(task_folder)]
    command += ["--output_path", str(tmp_path), "--log_samples", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.rglob("samples_tiny_arith_*.jsonl")
    assert [json.loads(line)["resps"] for line in file.read_text().splitlines()] == expected
    (file,) = tmp_path.rglob("results_*.json")
    kept = json.loads(file.read_text())["config"]
    assert {
        name: kept[name] for name in lm.get_model_info()
    } == lm.get_model_info()  # of both processes, in the order of the requests
    assert kept["effects"] == 5


def test_a_tasks_arguments_become_settings(autoregressive, diffusion):
    lm = language_model(autoregressive, seed=3)
    asked = {"until": "x", "do_sample": True, "temperature": 0.5, "top_p": 0.9, "max_new_tokens": 7}
    settings, stops = lm._settings(asked)
    assert (settings.length, settings.temperature, settings.top_p, settings.seed, stops) == (7, 0.5, 0.9, 3, ["x"])
    settings, stops = lm._settings({"do_sample": False, "temperature": 0.7})
    assert (settings.length, settings.temperature, stops) == (256, 0.0, [])
    with pytest.raises(CallError, match="llama has no setting 'num_beams'"):
        lm._settings({"num_beams": 4})
    # settings that hang on the length wait for the task's own
    assert language_model(diffusion, steps=240, block=16)._settings({"max_gen_toks": 240})[0].steps == 240
    with pytest.raises(CallError, match="steps must not exceed length"):
        language_model(diffusion, length=8, steps=9)
