"""HumanEval as lm-evaluation-harness asks it, pass@1 by our sandbox: tasks ``humaneval``, ``humaneval_instruct``.

The program is the prompt and the completion up to the first stop string; the row's tests run behind it in one process.
"""

import functools
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import ProgramResult, run_program
from sinkscope.evaluation.task import Message, Score, Task
from sinkscope.evaluation.task_data import Row, Source, hash_rows, text_fields

HUB = ("openai/openai_humaneval", None)
FILES = {"test": ("HumanEval.jsonl", "humaneval.jsonl", "test.jsonl")}
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = "```"


def humaneval(data: Path | None = None) -> Task:
    """Return the task ``humaneval``, whose prompts the model continues; ``data`` as in `Source`."""
    return _task("humaneval", data, lambda row: [row["prompt"]], fenced=False)


def humaneval_instruct(data: Path | None = None) -> Task:
    """Return the task ``humaneval_instruct``: a request; the answer begins with the prompt in a code block."""

    def turns(row: Row) -> list[str]:
        block = f"{FENCE}python\n{row['prompt']}\n"
        request = f"Write a solution to the following problem and make sure that it passes the tests:\n{block}{FENCE}\n"
        return [request, f"Here is the completed function:\n{block}"]

    return _task("humaneval_instruct", data, turns, fenced=True)


def _task(name: str, data: Path | None, turns, *, fenced: bool) -> Task:
    source = Source("humaneval", data, HUB, text_fields("task_id", "prompt", "entry_point", "test"), FILES)
    rows = functools.cache(lambda: source.rows("test"))

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        if shots:
            raise CallError(f"shots: {name} is asked without examples, expected 0, found {shots}")
        return [{"role": role, "content": text} for role, text in zip(("user", "assistant"), turns(row), strict=False)]

    return Task(
        name,
        0,
        True,
        rows,
        lambda row, index, shots: "".join(message["content"] for message in messages(row, index, shots)),
        _tests,
        lambda row, text: score_completion(row, text, fenced=fenced),
        messages=messages,
        stops=STOPS,
        fingerprint=lambda shots: hash_rows(rows()),
    )


def _tests(row: Row) -> str:
    return f"{row['test']}\ncheck({row['entry_point']})"


def score_completion(row: Row, text: str, *, fenced: bool) -> Score:
    """Score a completion: it passes where the row's tests hold. A fenced one counts up to the fence."""
    program = row["prompt"] + (text.split(FENCE, 1)[0] if fenced else text)
    result = run_tests(row, program)
    return Score(result.passed, program, result.reason, result.not_enforced, {"pass@1": result.passed})


def run_tests(row: Row, program: str) -> ProgramResult:
    """Run a program together with the row's tests in the sandbox."""
    return run_program(f"{program}\n{_tests(row)}")
