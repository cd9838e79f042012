"""HumanEval as lm-evaluation-harness asks it, pass@1 by our own sandbox: ``humaneval`` (version 1), ``humaneval_instruct`` (version 4).

The program that is run is the prompt, the completion up to the first stop string, the row's tests, and a call of them.
"""

import functools
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.task_data import Row, Source, hash_rows
from sinkscope.evaluation.tasks import Message, Score, Task

HUB = ("openai/openai_humaneval", None)
FILES = {"test": ("HumanEval.jsonl", "humaneval.jsonl", "test.jsonl")}
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = "```"


def humaneval(data: Path | None = None) -> Task:
    """The model goes on where the prompt stops.

    Args:
        data: a JSON-lines file, or a folder with ``HumanEval.jsonl``; the hub when None.

    Raises:
        CallError, EvaluationError: see `Source.rows`; any shots.
    """

    def prompt(row: Row, index: int, shots: int) -> str:
        _refuse_shots("humaneval", shots)
        return row["prompt"]

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        return [{"role": "user", "content": prompt(row, index, shots)}]

    return _task("humaneval", data, prompt, messages, fenced=False)


def humaneval_instruct(data: Path | None = None) -> Task:
    """The request in words; the answer is begun for the model with the prompt in a code block, and ends where the block does.

    Args:
        data: as for `humaneval`.

    Raises:
        CallError, EvaluationError: see `Source.rows`; any shots.
    """

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        _refuse_shots("humaneval_instruct", shots)
        block = f"{FENCE}python\n{row['prompt']}\n"
        request = f"Write a solution to the following problem and make sure that it passes the tests:\n{block}{FENCE}\n"
        return [{"role": "user", "content": request}, {"role": "assistant", "content": f"Here is the completed function:\n{block}"}]

    def prompt(row: Row, index: int, shots: int) -> str:
        return "".join(message["content"] for message in messages(row, index, shots))

    return _task("humaneval_instruct", data, prompt, messages, fenced=True)


def _refuse_shots(name: str, shots: int) -> None:
    if shots:
        raise CallError(f"shots: {name} is asked without examples, expected 0, found {shots}")


def _task(name: str, data: Path | None, prompt, messages, *, fenced: bool) -> Task:
    source = Source("humaneval", data, HUB, ("task_id", "prompt", "entry_point", "test"), FILES)
    rows = functools.cache(lambda: source.rows("test"))
    return Task(
        name,
        0,
        runs_programs=True,
        problems=rows,
        prompt=prompt,
        gold=_tests,
        score=lambda row, text: score_completion(row, text, fenced=fenced),
        messages=messages,
        stops=STOPS,
        fingerprint=lambda shots: hash_rows(rows()),
    )


def _tests(row: Row) -> str:
    return f"{row['test']}\ncheck({row['entry_point']})"


def score_completion(row: Row, text: str, *, fenced: bool) -> Score:
    """Whether prompt, completion and tests run to their end; a fenced completion counts up to the fence."""
    completion = text.split(FENCE, 1)[0] if fenced else text
    program = row["prompt"] + completion
    result = run_program(f"{program}\n{_tests(row)}")
    return Score(result.passed, program, result.reason, result.not_enforced, {"pass@1": result.passed})
