"""HumanEval as lm-evaluation-harness asks it, pass@1 by our own sandbox: ``humaneval`` (version 1), ``humaneval_instruct`` (version 4).

The program is the prompt and the completion up to the first stop string. The row's tests run in a process of their own, which asks
the program's process for the values of the function.
"""

import ast
import builtins
import functools
import keyword
import warnings
from collections.abc import Iterator
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.sandbox import ProgramResult, run_program
from sinkscope.evaluation.task import Message, Score, Task
from sinkscope.evaluation.task_data import Row, Source, hash_rows

HUB = ("openai/openai_humaneval", None)
FILES = {"test": ("HumanEval.jsonl", "humaneval.jsonl", "test.jsonl")}
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = "```"


def humaneval(data: Path | None = None) -> Task:
    """Return the task ``humaneval``: the model continues the prompt.

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
    """Return the task ``humaneval_instruct``: a request in words; the answer begins with the prompt in a code block, which the model ends.

    Args:
        data: as for `humaneval`.

    Raises:
        CallError, EvaluationError: see `Source.rows`; any shots.
    """

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        _refuse_shots("humaneval_instruct", shots)
        block = f"{FENCE}python\n{row['prompt']}\n"
        request = f"Write a solution to the following problem and make sure that it passes the tests:\n{block}{FENCE}\n"
        return [
            {"role": "user", "content": request},
            {"role": "assistant", "content": f"Here is the completed function:\n{block}"},
        ]

    def prompt(row: Row, index: int, shots: int) -> str:
        return "".join(message["content"] for message in messages(row, index, shots))

    return _task("humaneval_instruct", data, prompt, messages, fenced=True)


def _refuse_shots(name: str, shots: int) -> None:
    if shots:
        raise CallError(f"shots: {name} is asked without examples, expected 0, found {shots}")


def _task(name: str, data: Path | None, prompt, messages, *, fenced: bool) -> Task:
    source = Source("humaneval", data, HUB, ("task_id", "prompt", "entry_point", "test"), FILES, wrong=_wrong)
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


def _wrong(row: Row) -> str | None:
    """Return what keeps every program from passing a row's tests; None where nothing does."""
    function = row["entry_point"]
    if not row["prompt"].strip():
        return "prompt: expected the beginning of a program, found none"
    if not function.isidentifier() or keyword.iskeyword(function):
        return f"entry_point: expected the name of a function, found {function!r:.60}"
    if (tests := _parsed(row["test"])) is None:
        return "test: expected a program in Python, found something else"
    if "check" not in _bound(tests):
        return "test: expected a program that defines check, which gets the function, found none"
    return None


def _tests(row: Row) -> str:
    return f"{row['test']}\ncheck({row['entry_point']})"


def score_completion(row: Row, text: str, *, fenced: bool) -> Score:
    """Score a completion: it passes if the program runs to its end and the row's tests hold. A fenced one counts up to the fence."""
    completion = text.split(FENCE, 1)[0] if fenced else text
    program = row["prompt"] + completion
    result = run_tests(row, program)
    return Score(result.passed, program, result.reason, result.not_enforced, {"pass@1": result.passed})


def run_tests(row: Row, program: str) -> ProgramResult:
    """Run a program in the sandbox, then the row's tests outside its process, or in it where they name more than the one function."""
    apart = separate_tests(row)
    if apart is None:
        return run_program(f"{program}\n{_tests(row)}")
    return run_program(program, tests=apart, function=row["entry_point"])


def separate_tests(row: Row) -> str | None:
    """Return a row's tests with what they use of the prompt: its imports and helpers, not the function itself.

    Returns:
        Tests for `run_program`; None where they cannot stand apart from the program, since they name something that
        neither they nor the prompt define, are no Python, or are nested too deeply.
    """
    function = row["entry_point"]
    prompt = _parsed(row["prompt"]) or _parsed(row["prompt"] + "\n    pass\n")
    tests = _parsed(_tests(row))
    if prompt is None or tests is None or not function.isidentifier():
        return None
    around = [node for node in prompt.body if getattr(node, "name", None) != function]
    tree = ast.Module([*around, *tests.body], [])
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    known = set(_bound(tree)) | set(dir(builtins)) | {function}
    try:
        return f"{ast.unparse(ast.Module(around, []))}\n{_tests(row)}" if used <= known else None
    except RecursionError:
        return None


def _parsed(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes such as \d
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two where it is nested deeply
        return None


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield every name that some statement binds, in whatever scope."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.split(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
