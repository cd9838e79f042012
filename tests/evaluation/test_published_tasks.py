"""Prompts and scores of published tasks beside lm-eval's own task objects, on small local files."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_choices import config_in

from sinkscope.errors import CallError, EvaluationError
from sinkscope.evaluation.tasks import _normal, find_task, read_data_flags

NUMBERS = [("3 + 4 = <<3+4=7>>7", "7"), ("a\nb", "1,234"), ("10% of it", "$12.50"), ("Below zero.", "-3")]
NUMBERS += [("So.", "70000"), ("x", "0.5")]
TEXTS = ["3 + 4 = 7\n#### 7", "#### 7.", "#### 7\n\nThe next one is 8", "The answer is 7.", "the answer is 7"]
TEXTS += ["The answer is 1,234.", "The answer is $12.50.", "costs $12.50 #### 12.50", "#### -3", "-3.", "#### 70,000"]
TEXTS += ["70000", "so 0.5 or .5", "####7", "no number", "", "$", "..", "1 2 3 7", "7 apples, then 8.\n#### 7"]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def gsm8k_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gsm8k")
    write_lines(
        folder / "test.jsonl",
        [{"question": f"Question {i}?", "answer": f"{w}\n#### {n}"} for i, (w, n) in enumerate(NUMBERS)],
    )
    write_lines(
        folder / "train.jsonl",
        [{"question": f"Train {i}?", "answer": f"{i} + 1 = {i + 1}\n#### {i + 1}"} for i in range(23)],
    )
    return folder


HUMANEVAL = [
    {
        "task_id": f"HumanEval/{i}",
        "prompt": f'def add_{i}(a, b):\n    """ Adds. """\n',
        "entry_point": f"add_{i}",
        "canonical_solution": "    return a + b\n",
        "test": "\n\ndef check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
    }
    for i in range(3)
]


@pytest.fixture
def humaneval_file(tmp_path):
    return write_lines(tmp_path / "HumanEval.jsonl", HUMANEVAL)


def harness_task(name, folder):
    """lm-eval's own task object, its data replaced by local files; no hub."""
    import lm_eval
    import yaml
    from lm_eval.api.task import ConfigurableTask

    file = Path(lm_eval.__file__).parent / "tasks" / "gsm8k" / f"{name.replace('_', '-')}.yaml"
    config = yaml.safe_load(file.read_text())
    files = {"test": str(folder / "test.jsonl"), "train": str(folder / "train.jsonl")}
    config |= {
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, "cache_dir": str(folder / "cache")},
    }
    task = ConfigurableTask(config=config)
    task.set_fewshot_seed(1234)
    return task


HARNESS = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")


@HARNESS
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_cot"])
@pytest.mark.parametrize("multiturn", [False, True])
def test_prompts_are_lm_evals(name, multiturn, gsm8k_folder):
    theirs, ours = harness_task(name, gsm8k_folder), find_task(name, {"gsm8k": gsm8k_folder})
    assert tuple(theirs.config.generation_kwargs["until"]) == ours.stops
    assert theirs.config.num_fewshot == ours.shots
    for index, (doc, problem) in enumerate(zip(theirs.test_docs(), ours.problems(), strict=True)):
        context = theirs.fewshot_context(
            doc,
            num_fewshot=ours.shots,
            apply_chat_template=multiturn,
            fewshot_as_multiturn=True,
            chat_template=(lambda talk, add_generation_prompt: talk) if multiturn else None,
        )
        assert context == (ours.messages if multiturn else ours.prompt)(problem, index, ours.shots)


def harness_scores(task, text):
    """Return lm-eval's scores of one answer to each of its documents: {measure: [0 or 1]}."""
    from lm_eval.api.instance import Instance

    docs = list(task.test_docs())
    task._instances = [Instance("generate_until", doc, ("", {}), 0, doc_id=i) for i, doc in enumerate(docs)]
    for instance in task._instances:
        instance.resps.append(text)
    task.apply_filters()
    measures = task._instances[0].filtered_resps
    return {
        m: [task.process_results(i.doc, [i.filtered_resps[m]])["exact_match"] for i in task._instances]
        for m in measures
    }


@HARNESS
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_cot"])
def test_scores_are_lm_evals_on_the_same_answers(name, gsm8k_folder):
    theirs, ours = harness_task(name, gsm8k_folder), find_task(name, {name: gsm8k_folder})
    right = 0
    for text in TEXTS:
        scores = [ours.score(problem, text) for problem in ours.problems()]
        found = {
            measure: [score.measures[measure] for score in scores] for measure in ("strict-match", "flexible-extract")
        }
        assert found == harness_scores(theirs, text), text
        assert [score.correct for score in scores] == found["flexible-extract"]
        right += sum(map(sum, found.values()))
    assert right > 10


def test_shots_of_a_problem_do_not_depend_on_how_many_are_asked(gsm8k_folder):
    first, second = (find_task("gsm8k", {"gsm8k": gsm8k_folder}) for _ in range(2))
    late = second.problems()[4]
    assert second.prompt(late, 4, 3) == [first.prompt(problem, i, 3) for i, problem in enumerate(first.problems())][4]
    assert first.fingerprint(0) != first.fingerprint(3)


@pytest.mark.parametrize("name", ["humaneval", "humaneval_instruct"])
def test_humaneval_prompts_are_lm_evals(name, humaneval_file):
    """The harness's task cannot be built offline (its metric is on the hub), so its templates are rendered by its own
    function."""
    import lm_eval
    from lm_eval.utils import apply_template

    folder = Path(lm_eval.__file__).parent / "tasks" / "humaneval"
    base, own = (config_in(folder / f"{one}.yaml") for one in ("humaneval", name))
    config = base | own
    task = find_task(name, {"humaneval": humaneval_file})
    assert task.stops == tuple(config["generation_kwargs"]["until"])
    assert task.messages
    for index, (row, problem) in enumerate(zip(HUMANEVAL, task.problems(), strict=True)):
        turns = [apply_template(config[key], row) for key in ("doc_to_text", "gen_prefix") if key in config]
        assert task.prompt(problem, index, 0) == "".join(turns)
        assert [turn["content"] for turn in task.messages(problem, index, 0)] == turns
        assert task.gold(problem) == apply_template(config["doc_to_target"], row)


def test_programs_are_prompt_completion_and_tests(humaneval_file):
    for name, text, correct in (
        ("humaneval", "    return a + b", True),
        ("humaneval", "    return a - b", False),
        ("humaneval_instruct", "    return a + b\n```\nThat is it", True),
    ):
        task = find_task(name, {"humaneval": humaneval_file})
        score = task.score(task.problems()[0], text)
        assert (score.correct, dict(score.measures)) == (correct, {"pass@1": correct})
        assert score.read == HUMANEVAL[0]["prompt"] + text.split("\n```")[0] + "\n" * ("```" in text)


def test_a_wrong_data_file(tmp_path):
    for content, says in (
        (HUMANEVAL[0], "expected rows with question, answer; is this the file of gsm8k?"),
        ({"question": "a", "answer": "#### apples"}, "that end in '#### NUMBER', found '#### apples'"),
    ):
        path = write_lines(tmp_path / "test.jsonl", [content])
        with pytest.raises(CallError, match=re.escape(f"--data gsm8k={path}: ") + f".*{re.escape(says)}"):
            find_task("gsm8k", {"gsm8k": path}).problems()


def test_data_that_is_not_there(tmp_path, gsm8k_folder):
    with pytest.raises(CallError, match=r"nothing: expected a file, .* found none"):
        find_task("gsm8k", {"gsm8k": tmp_path / "nothing"}).problems()
    task = find_task("gsm8k", {"gsm8k": write_lines(tmp_path / "rows.jsonl", [{"question": "a", "answer": "#### 1"}])})
    assert task.prompt(task.problems()[0], 0, 0) == "Question: a\nAnswer:"
    both = find_task("gsm8k", {"gsm8k": gsm8k_folder / "train.jsonl"})  # problems that are shots, too
    assert both.prompt(both.problems()[0], 0, 0) == "Question: Train 0?\nAnswer:"
    for one in (task, both):
        with pytest.raises(CallError, match=r"or train.jsonl in .* --shots 0 does without"):
            one.prompt(one.problems()[0], 0, 1)
    file = find_task("gsm8k", {"gsm8k": gsm8k_folder / "test.jsonl"})
    assert file.prompt(file.problems()[0], 0, 2).count("Question: Train") == 2


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package datasets; returns what it was asked."""
    asked = []

    def load_dataset(name, configuration, split):
        asked.append((name, configuration, split))
        if name == "openai/gsm8k":
            return [{"question": f"{split} {i}?", "answer": f"#### {i}"} for i in range(6)]
        raise ConnectionError("offline")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return asked


def test_without_a_file_rows_come_from_the_hub(hub):
    task = find_task("gsm8k")
    assert task.prompt(task.problems()[2], 2, 1).endswith("\n\nQuestion: test 2?\nAnswer:")
    assert hub == [("openai/gsm8k", "main", "test"), ("openai/gsm8k", "main", "train")]
    with pytest.raises(EvaluationError, match=r"openai_humaneval could not be had from the hub \(offline\); go online"):
        find_task("humaneval").problems()


def test_data_flags(tmp_path):
    assert read_data_flags(["gsm8k=a/b", "humaneval_instruct=c=d"]) == {
        "gsm8k": Path("a/b"),
        "humaneval_instruct": Path("c=d"),
    }
    for flags in (["gsm8k"], ["lab-arith=x"], ["gsm8k=a", "gsm8k=b"]):
        with pytest.raises(CallError, match="--data: expected TASK=PATH once each, TASK of gsm8k, gsm8k_cot, "):
            read_data_flags(flags)


@settings(max_examples=200, deadline=None)
@given(st.text("# 1$.,a\n") | st.lists(st.sampled_from(["#### ", "1,2", "$", ".", "\n"])).map("".join))
def test_what_is_compared_is_what_lm_eval_leaves(text):
    expected = text
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        expected = re.sub(pattern, "", expected)
    assert _normal(text) == expected.lower()
