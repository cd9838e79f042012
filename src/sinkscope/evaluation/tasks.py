"""The tasks by name: the lab's, GSM8K and HumanEval as lm-evaluation-harness asks and scores them, and `choices`."""

import functools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.choices import BENCHMARKS, Message, Row, Score, Source, Task, hash_rows, likelihood_task
from sinkscope.evaluation.sandbox import run_program
from sinkscope.lab.problems import Problem, read_result
from sinkscope.lab.prompts import SHOTS, few_shot_prompt, held_out

NEXT_QUESTION = "\n\nQ:"
FEWSHOT_SEED = 1234  # lm-eval's default --seed for shots
NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
HASHES = re.compile(r"#### (\-?[0-9\.\,]+)")
THE_ANSWER_IS = re.compile(r"The answer is (\-?[0-9\.\,]+).")
INVALID = "[invalid]"
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
FENCE = "```"


# The lab's


def score_number(problem: Problem, text: str) -> Score:
    """Compare the number behind ``####`` in the first answer with the right one."""
    found = read_result(text.split(NEXT_QUESTION, 1)[0])
    reason = "no number after ####" if found is None else f"{found}, expected {problem.result}"
    return Score(found == problem.result, found, reason)


def score_program(problem: Problem, text: str) -> Score:
    """Run a program against the tests of its problem."""
    program = text.split(NEXT_QUESTION, 1)[0]
    result = run_program(f"{program}\n{problem.result}\n")
    return Score(result.passed, program, result.reason, result.not_enforced)


def _lab_task(name: str) -> Task:
    problems, score = functools.partial(held_out, name), score_program if name == "lab-code" else score_number
    return Task(name, SHOTS[name], name == "lab-code", problems, few_shot_prompt, attrgetter("result"), score)


TASKS = {name: _lab_task(name) for name in SHOTS}


# GSM8K: tasks gsm8k and gsm8k_cot (version 3 each) of lm-eval, and paper 2's form


def gsm8k(name: str, data: Path | None) -> Task:
    """Return ``gsm8k``, with lm-eval's draws of shots, or ``gsm8k_cot``, with its examples of Wei et al. (2022)."""
    cot, test, train = name == "gsm8k_cot", _gsm8k_rows(data, "test"), _gsm8k_rows(data, "train")
    form, strict = ("Q: {}\nA:", THE_ANSWER_IS) if cot else ("Question: {}\nAnswer:", HASHES)

    @functools.cache
    def draws(shots: int) -> tuple[list[int], ...]:
        rng = random.Random(FEWSHOT_SEED)
        return tuple(rng.sample(range(len(train())), shots) for _ in test())

    def turns(row: Row, index: int, shots: int) -> list[str]:
        """Return questions and answers in turn, the problem last."""
        shown: Sequence[Row] = ()
        if shots:
            shown = worked_examples(shots) if cot else [train()[one] for one in draws(shots)[index]]
        pairs = [(form.format(one["question"]), one["target" if cot else "answer"]) for one in shown]
        return [text for pair in pairs for text in pair] + [form.format(row["question"])]

    def prompt(row: Row, index: int, shots: int) -> str:
        *shown, last = turns(row, index, shots)
        pairs = zip(shown[::2], shown[1::2], strict=True)
        return "".join(f"{asked} {answer}\n\n" for asked, answer in pairs) + last

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        said = enumerate(turns(row, index, shots))
        return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in said]

    def score(row: Row, text: str) -> Score:
        """Score by both of lm-eval's measures; ``correct`` is flexible-extract, the last number."""
        gold, found = _normal(row["answer"]), _extract(NUMBER, text, -1)
        measures = {"strict-match": _normal(_extract(strict, text, 0)) == gold}
        measures["flexible-extract"] = _normal(found) == gold
        read = None if found == INVALID else found
        return Score(_normal(found) == gold, read, f"{read or 'no number'}, expected {gold}", measures=measures)

    def fingerprint(shots: int) -> str:
        return hash_rows(test()) if cot else hash_rows(test(), train() if shots else ())

    stops = (form.partition(" ")[0], "</s>", "<|im_end|>")
    return Task(name, 8 if cot else 5, False, test, prompt, itemgetter("answer"), score, messages, stops, fingerprint)


def gsm8k_two_pass(name: str, data: Path | None) -> Task:
    """Return paper 2's form: the model writes a thought behind the question, then the answer behind both.

    The text behind ``####`` counts. Published: 256 tokens in 256 steps at temperature .1 each time, after fine-tuning
    (skywalker0523/OneTokenIsEnough, evaluate_gsm8k_extratoken.py), question included, read beyond EOS, compared by
    sympy. Here each pass writes 256 tokens, up to its EOS, and numbers are compared as lm-eval does.
    """
    test = _gsm8k_rows(data, "test")

    def prompt(row: Row, index: int, shots: int) -> str:
        return f"Question: {row['question']}"

    def score(row: Row, text: str) -> Score:
        found = re.findall(r"#### (.*)$", text)  # as published: $ is the end of the text, not of a line
        read, gold = _normal(found[-1]).strip() if found else None, _normal(row["answer"])
        return Score(read == gold, read, f"{read}, expected {gold}" if found else "no number after ####")

    about: dict[str, Any] = {"fingerprint": lambda shots: hash_rows(test()), "passes": 2, "takes_shots": False}
    return Task(name, 0, False, test, prompt, itemgetter("answer"), score, **about)


def _gsm8k_rows(data: Path | None, split: str) -> Callable[[], tuple[Row, ...]]:
    source = Source("gsm8k", data, ("openai/gsm8k", "main"), ("question", "answer"))

    @functools.cache
    def read() -> tuple[Row, ...]:
        rows = source.rows(split)
        for row in rows:
            if not re.search(r"#### .*[0-9]", row["answer"]):
                raise CallError(f"{source.where}: expected answers that end in '#### NUMBER', found {row['answer']!r}")
        return rows

    return read


@functools.cache
def worked_examples(shots: int) -> list[dict[str, str]]:
    """Return the first worked examples of lm-eval's ``gsm8k_cot``, each with ``question`` and ``target``."""
    import yaml

    found = find_spec("lm_eval")
    if found is None or found.origin is None:
        raise CallError("gsm8k_cot reads its worked examples from lm-eval: pip install 'sinkscope[eval]', or --shots 0")
    file = Path(found.origin).parent / "tasks" / "gsm8k" / "gsm8k-cot.yaml"
    samples = yaml.safe_load(file.read_text(encoding="utf-8"))["fewshot_config"]["samples"]
    if shots > len(samples):
        raise CallError(f"shots: gsm8k_cot has {len(samples)} worked examples, found {shots}")
    return samples[:shots]


def _extract(pattern: re.Pattern[str], text: str, place: int) -> str:
    """Return the match of lm-eval's regex filter: the first group that is not empty, of the first or the last match."""
    matches = pattern.findall(text)
    if not matches:
        return INVALID
    match = matches[place]
    return (match if isinstance(match, str) else next(filter(None, match), INVALID)).strip()


def _normal(text: str) -> str:
    """Return the text that lm-eval's exact match compares: no commas, dollars, text before ####, last dot."""
    answer = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", answer).lower()


# HumanEval: the row's tests run behind the prompt and its completion, in the sandbox


def humaneval(name: str, data: Path | None) -> Task:
    """Return ``humaneval``, or ``humaneval_instruct``, a request whose answer begins with the prompt as code."""
    instruct = name == "humaneval_instruct"
    source = Source("humaneval", data, ("openai/openai_humaneval", None), ("task_id", "prompt", "entry_point", "test"))
    rows = functools.cache(lambda: source.rows("test"))

    def messages(row: Row, index: int, shots: int) -> list[Message]:
        if not instruct:
            return [{"role": "user", "content": row["prompt"]}]
        block = f"{FENCE}python\n{row['prompt']}\n"
        request = f"Write a solution to the following problem and make sure that it passes the tests:\n{block}{FENCE}\n"
        begun = f"Here is the completed function:\n{block}"
        return [{"role": "user", "content": request}, {"role": "assistant", "content": begun}]

    def prompt(row: Row, index: int, shots: int) -> str:
        return "".join(message["content"] for message in messages(row, index, shots))

    def tests(row: Row) -> str:
        return f"{row['test']}\ncheck({row['entry_point']})"

    def score(row: Row, text: str) -> Score:
        program = row["prompt"] + (text.split(FENCE, 1)[0] if instruct else text)
        result = run_program(f"{program}\n{tests(row)}")
        return Score(result.passed, program, result.reason, result.not_enforced, {"pass@1": result.passed})

    about: dict[str, Any] = {"fingerprint": lambda shots: hash_rows(rows()), "takes_shots": False}
    return Task(name, 0, True, rows, prompt, tests, score, messages, STOPS, **about)


# By name

PUBLISHED: dict[str, str] = dict.fromkeys(("gsm8k", "gsm8k_cot", "gsm8k_two_pass"), "gsm8k")
PUBLISHED |= dict.fromkeys(("humaneval", "humaneval_instruct"), "humaneval") | {name: name for name in BENCHMARKS}


def find_task(name: str, data: Mapping[str, Path] | None = None) -> Task:
    """Return a task of `TASKS` or `PUBLISHED`, with local files by task or by the name of their data."""
    if name in TASKS:
        return TASKS[name]
    if name not in PUBLISHED:
        raise CallError(f"no task {name!r}: expected one of {', '.join([*TASKS, *PUBLISHED])}")
    given = (data or {}).get(name, (data or {}).get(PUBLISHED[name]))
    makers = {"gsm8k_two_pass": gsm8k_two_pass, "gsm8k": gsm8k, "humaneval": humaneval}
    make = makers.get(name) or makers.get(PUBLISHED[name], likelihood_task)
    return make(name, given)


def read_data_flags(flags: Sequence[str]) -> dict[str, Path]:
    """Return the paths of ``TASK=PATH`` each, as in ``--data``."""
    found: dict[str, Path] = {}
    for flag in flags:
        name, _, path = flag.partition("=")
        if not path or name not in PUBLISHED or name in found:
            raise CallError(f"--data: expected TASK=PATH once each, TASK of {', '.join(PUBLISHED)}, found {flag!r}")
        found[name] = Path(path)
    return found
