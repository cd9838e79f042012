"""GSM8K as lm-evaluation-harness asks and scores it: tasks ``gsm8k`` (version 3) and ``gsm8k_cot`` (version 3).

Shots of ``gsm8k`` are drawn from the training rows as lm-eval draws them in one process with its default seed: one
draw a problem, in order. So a prompt depends on the number of the problem and not on the number of processes.
The eight worked examples of ``gsm8k_cot`` (Wei et al. 2022) are read from the installed lm-eval.
"""

import functools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.task import Message, Score, Task
from sinkscope.evaluation.task_data import Row, Source, hash_rows

HUB = ("openai/gsm8k", "main")
FEWSHOT_SEED = 1234  # lm-eval's default --seed for shots
FILES = {"test": ("test.jsonl", "gsm8k.jsonl"), "train": ("train.jsonl",)}
NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
HASHES = re.compile(r"#### (\-?[0-9\.\,]+)")
THE_ANSWER_IS = re.compile(r"The answer is (\-?[0-9\.\,]+).")
GOLD = re.compile(r"#### [-$]{0,2}[0-9][0-9,]*(\.[0-9]+)?\.?$")
INVALID = "[invalid]"
HEADLINE = "flexible-extract"


def gsm8k(data: Path | None = None) -> Task:
    """Return the task ``gsm8k``: five shots by default; strict-match reads the number after ``####``.

    Args:
        data: a file of test rows with ``train.jsonl`` beside it, or a folder with both; the hub when None.

    Raises:
        CallError, EvaluationError: see `Source.rows`; training rows are only read when shots are asked for.
    """
    source = Source("gsm8k", data, HUB, ("question", "answer"), FILES)
    test = functools.cache(lambda: _with_answers(source, "test"))
    train = functools.cache(lambda: _with_answers(source, "train"))

    @functools.cache
    def draws(shots: int) -> tuple[tuple[int, ...], ...]:
        if shots > len(train()):
            raise CallError(f"shots: expected at most {len(train())}, the training rows of gsm8k, found {shots}")
        rng = random.Random(FEWSHOT_SEED)
        return tuple(tuple(rng.sample(range(len(train())), shots)) for _ in test())

    def shown(index: int, shots: int) -> list[_Turn]:
        rows = [train()[number] for number in draws(shots)[index]] if shots else []
        return [_Turn(f"Question: {row['question']}\nAnswer:", row["answer"]) for row in rows]

    def question(row: Row) -> str:
        return f"Question: {row['question']}\nAnswer:"

    def fingerprint(shots: int) -> str:
        return hash_rows(test(), train() if shots else ())

    return _task("gsm8k", 5, ("Question:", "</s>", "<|im_end|>"), test, question, shown, fingerprint, HASHES)


def gsm8k_cot(data: Path | None = None) -> Task:
    """Return the task ``gsm8k_cot``: eight fixed shots, the first of them when fewer are asked for; strict-match
    reads "The answer is …".

    Args:
        data: as for `gsm8k`; training rows are not needed.

    Raises:
        CallError, EvaluationError: see `Source.rows`; more than eight shots; shots without lm-eval.
    """
    source = Source("gsm8k", data, HUB, ("question", "answer"), FILES)
    test = functools.cache(lambda: _with_answers(source, "test"))

    def shown(index: int, shots: int) -> list[_Turn]:
        return list(worked_examples(shots)) if shots else []

    def question(row: Row) -> str:
        return f"Q: {row['question']}\nA:"

    return _task(
        "gsm8k_cot",
        8,
        ("Q:", "</s>", "<|im_end|>"),
        test,
        question,
        shown,
        lambda shots: hash_rows(test()),
        THE_ANSWER_IS,
    )


def gsm8k_two_pass(data: Path | None = None) -> Task:
    """Return the task ``gsm8k_two_pass``, paper 2's form: the model writes a thought behind the question, then the
    answer behind both.

    The text behind ``####`` in the last line of question, thought and answer counts, whichever pass wrote it. There are
    no shots.
    Published: 256 tokens in 256 steps at temperature .1 each time, after fine-tuning on augmented GSM8K
    (skywalker0523/OneTokenIsEnough, evaluate_gsm8k_extratoken.py). There the 256 tokens hold the question too, a pass
    is read beyond its EOS, and answers are compared by sympy. Here each pass writes 256 tokens, up to its EOS, and
    numbers are compared as lm-eval does.

    Args:
        data: as for `gsm8k`; training rows are not needed.

    Raises:
        CallError, EvaluationError: see `Source.rows`; shots.
    """
    source = Source("gsm8k", data, HUB, ("question", "answer"), FILES)
    test = functools.cache(lambda: _with_answers(source, "test"))

    def prompt(row: Row, index: int, shots: int) -> str:
        if shots:
            raise CallError(f"shots: gsm8k_two_pass is asked without any, found {shots}")
        return f"Question: {row['question']}"

    def score(row: Row, text: str) -> Score:
        found = re.findall(r"#### (.*)$", text)  # as published: $ is the end of the text, not of a line
        read = _normal(found[-1]).strip() if found else None
        return Score(
            read == _normal(row["answer"]),
            read,
            f"{read}, expected {_normal(row['answer'])}" if found else "no number after ####",
        )

    return Task(
        "gsm8k_two_pass",
        0,
        False,
        test,
        prompt,
        lambda row: row["answer"],
        score,
        fingerprint=lambda shots: hash_rows(test()),
        passes=2,
    )


@dataclass(frozen=True)
class _Turn:
    question: str
    answer: str


def _with_answers(source: Source, split: str) -> tuple[Row, ...]:
    rows = source.rows(split)
    for number, row in enumerate(rows, 1):
        answer = row["answer"].rstrip()
        if "####" not in answer or (
            split == "test" and not (GOLD.search(answer) and score_answer(answer, answer).correct)
        ):
            where = source.hub[0] if source.path is None else f"--data gsm8k={source.path}"
            raise CallError(
                f"{where}, {split} row {number}: expected an answer that ends in '#### NUMBER', found "
                f"{row['answer'][-60:]!r}"
            )
    return rows


@functools.cache
def worked_examples(shots: int) -> tuple[_Turn, ...]:
    """Return the first worked examples of lm-eval's ``gsm8k_cot``."""
    from importlib.util import find_spec

    found = find_spec("lm_eval")
    if found is None or found.origin is None:
        raise CallError(
            "the worked examples of gsm8k_cot are read from lm-eval, which is not installed: "
            "pip install 'sinkscope[eval]', or --shots 0"
        )
    import yaml

    config = yaml.safe_load(
        (Path(found.origin).parent / "tasks" / "gsm8k" / "gsm8k-cot.yaml").read_text(encoding="utf-8")
    )
    samples = config["fewshot_config"]["samples"]
    if shots > len(samples):
        raise CallError(f"shots: gsm8k_cot has {len(samples)} worked examples, found {shots}")
    return tuple(_Turn(f"Q: {sample['question']}\nA:", sample["target"]) for sample in samples[:shots])


def _task(
    name: str,
    shots: int,
    stops: tuple[str, ...],
    test: Callable[[], Sequence[Row]],
    question: Callable[[Row], str],
    shown: Callable[[int, int], list[_Turn]],
    fingerprint: Callable[[int], str],
    strict: re.Pattern[str],
) -> Task:
    def prompt(row: Row, index: int, count: int) -> str:
        return "".join(f"{turn.question} {turn.answer}\n\n" for turn in shown(index, count)) + question(row)

    def messages(row: Row, index: int, count: int) -> list[Message]:
        turns = [(turn.question, turn.answer) for turn in shown(index, count)]
        talk = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in zip(("user", "assistant"), turn, strict=True)
        ]
        return [*talk, {"role": "user", "content": question(row)}]

    return Task(
        name,
        shots,
        runs_programs=False,
        problems=test,
        prompt=prompt,
        gold=lambda row: row["answer"],
        score=lambda row, text: score_answer(row["answer"], text, strict),
        messages=messages,
        stops=stops,
        fingerprint=fingerprint,
    )


def score_answer(gold: str, text: str, strict: re.Pattern[str] = HASHES) -> Score:
    """Score one answer by both of lm-eval's measures; ``correct`` is flexible-extract, the last number."""
    read = {"strict-match": _extract(strict, text, first=True), HEADLINE: _extract(NUMBER, text, first=False)}
    measures = {name: _normal(found) == _normal(gold) for name, found in read.items()}
    found = None if read[HEADLINE] == INVALID else read[HEADLINE]
    reason = "no number" if found is None else f"{found}, expected {_normal(gold)}"
    return Score(measures[HEADLINE], found, reason, measures=measures)


def _extract(pattern: re.Pattern[str], text: str, *, first: bool) -> str:
    """Return what lm-eval's regex filter finds: the first group that is not empty, of the first or the last match."""
    matches = pattern.findall(text)
    if not matches:
        return INVALID
    match = matches[0 if first else -1]
    if isinstance(match, tuple):
        match = next((group for group in match if group), INVALID)
    return match.strip()


def _normal(text: str) -> str:
    """Return the text that lm-eval's exact match compares: no commas, dollars, text before ####, last dot."""
    answer = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", answer).lower()
