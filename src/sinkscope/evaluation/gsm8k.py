"""GSM8K as lm-evaluation-harness asks and scores it: tasks ``gsm8k`` (version 3) and ``gsm8k_cot`` (version 3).

Shots of ``gsm8k`` are drawn from the training rows as lm-eval draws them in one process with its default seed: one
draw a problem, in order. So a prompt depends on the number of the problem and not on the number of processes.
The eight worked examples of ``gsm8k_cot`` (Wei et al. 2022) are read from the installed lm-eval.
"""

import functools
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from sinkscope.errors import CallError
from sinkscope.evaluation.task import Message, Score, Task
from sinkscope.evaluation.task_data import Row, Source, hash_rows, text_fields

HUB = ("openai/gsm8k", "main")
FEWSHOT_SEED = 1234  # lm-eval's default --seed for shots
FILES = {"test": ("test.jsonl", "gsm8k.jsonl"), "train": ("train.jsonl",)}
NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
HASHES = re.compile(r"#### (\-?[0-9\.\,]+)")
THE_ANSWER_IS = re.compile(r"The answer is (\-?[0-9\.\,]+).")
INVALID = "[invalid]"
HEADLINE = "flexible-extract"
Turn = tuple[str, str]
"""A question and its answer."""


def gsm8k(data: Path | None = None) -> Task:
    """Return the task ``gsm8k``: five shots by default; strict-match reads the number after ``####``.

    ``data`` is a file of test rows with ``train.jsonl`` beside it, or a folder with both; the hub when None.
    """
    test, train = _rows(data, "test"), _rows(data, "train")

    @functools.cache
    def draws(shots: int) -> tuple[list[int], ...]:
        rng = random.Random(FEWSHOT_SEED)
        return tuple(rng.sample(range(len(train())), shots) for _ in test())

    def shown(index: int, shots: int) -> list[Turn]:
        rows = [train()[number] for number in draws(shots)[index]] if shots else []
        return [(question(row), row["answer"]) for row in rows]

    def question(row: Row) -> str:
        return f"Question: {row['question']}\nAnswer:"

    def fingerprint(shots: int) -> str:
        return hash_rows(test(), train() if shots else ())

    return _task("gsm8k", 5, "Question:", test, question, shown, fingerprint, HASHES)


def gsm8k_cot(data: Path | None = None) -> Task:
    """Return the task ``gsm8k_cot``: up to eight fixed shots; strict-match reads "The answer is …"."""
    test = _rows(data, "test")

    def shown(index: int, shots: int) -> list[Turn]:
        return worked_examples(shots) if shots else []

    def question(row: Row) -> str:
        return f"Q: {row['question']}\nA:"

    return _task("gsm8k_cot", 8, "Q:", test, question, shown, lambda shots: hash_rows(test()), THE_ANSWER_IS)


def gsm8k_two_pass(data: Path | None = None) -> Task:
    """Return the task ``gsm8k_two_pass``, paper 2's form: the model writes a thought behind the question, then the
    answer behind both.

    The text behind ``####`` in the last line of question, thought and answer counts, whichever pass wrote it. There are
    no shots. Published: 256 tokens in 256 steps at temperature .1 each time, after fine-tuning on augmented GSM8K
    (skywalker0523/OneTokenIsEnough, evaluate_gsm8k_extratoken.py). There the 256 tokens hold the question too, a pass
    is read beyond its EOS, and answers are compared by sympy. Here each pass writes 256 tokens, up to its EOS, and
    numbers are compared as lm-eval does.

    Raises:
        CallError: see `Source.rows`; shots.
    """
    test = _rows(data, "test")

    def prompt(row: Row, index: int, shots: int) -> str:
        if shots:
            raise CallError(f"shots: gsm8k_two_pass is asked without any, found {shots}")
        return f"Question: {row['question']}"

    def score(row: Row, text: str) -> Score:
        found = re.findall(r"#### (.*)$", text)  # as published: $ is the end of the text, not of a line
        read, gold = _normal(found[-1]).strip() if found else None, _normal(row["answer"])
        return Score(read == gold, read, f"{read}, expected {gold}" if found else "no number after ####")

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


def _rows(data: Path | None, split: str) -> Callable[[], tuple[Row, ...]]:
    source = Source("gsm8k", data, HUB, text_fields("question", "answer"), FILES)

    @functools.cache
    def read() -> tuple[Row, ...]:
        rows = source.rows(split)
        for number, row in enumerate(rows, 1):
            if not re.search(r"#### .*[0-9]", row["answer"]):
                found = f"expected an answer that ends in '#### NUMBER', found {row['answer'][-60:]!r}"
                raise CallError(f"{source.where}, {split} row {number}: {found}")
        return rows

    return read


def worked_examples(shots: int) -> list[Turn]:
    """Return the first worked examples of lm-eval's ``gsm8k_cot``."""
    from importlib.util import find_spec

    found = find_spec("lm_eval")
    if found is None or found.origin is None:
        raise CallError(
            "the worked examples of gsm8k_cot are read from lm-eval, which is not installed: "
            "pip install 'sinkscope[eval]', or --shots 0"
        )
    samples = _samples(Path(found.origin).parent / "tasks" / "gsm8k" / "gsm8k-cot.yaml")
    if shots > len(samples):
        raise CallError(f"shots: gsm8k_cot has {len(samples)} worked examples, found {shots}")
    return [(f"Q: {sample['question']}\nA:", sample["target"]) for sample in samples[:shots]]


@functools.cache
def _samples(path: Path) -> list[dict[str, str]]:
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]


def _task(
    name: str,
    shots: int,
    stop: str,
    test: Callable[[], Sequence[Row]],
    question: Callable[[Row], str],
    shown: Callable[[int, int], list[Turn]],
    fingerprint: Callable[[int], str],
    strict: re.Pattern[str],
) -> Task:
    def prompt(row: Row, index: int, count: int) -> str:
        return "".join(f"{asked} {answer}\n\n" for asked, answer in shown(index, count)) + question(row)

    def messages(row: Row, index: int, count: int) -> list[Message]:
        said = [text for turn in shown(index, count) for text in turn] + [question(row)]
        return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(said)]

    return Task(
        name,
        shots,
        False,
        test,
        prompt,
        lambda row: row["answer"],
        lambda row, text: score_answer(row["answer"], text, strict),
        messages=messages,
        stops=(stop, "</s>", "<|im_end|>"),
        fingerprint=fingerprint,
    )


def score_answer(gold: str, text: str, strict: re.Pattern[str] = HASHES) -> Score:
    """Score one answer by both of lm-eval's measures; ``correct`` is flexible-extract, the last number."""
    read = {"strict-match": _extract(strict, text, 0), HEADLINE: _extract(NUMBER, text, -1)}
    measures = {name: _normal(found) == _normal(gold) for name, found in read.items()}
    found = None if read[HEADLINE] == INVALID else read[HEADLINE]
    reason = "no number" if found is None else f"{found}, expected {_normal(gold)}"
    return Score(measures[HEADLINE], found, reason, measures=measures)


def _extract(pattern: re.Pattern[str], text: str, place: int) -> str:
    """Return the match of lm-eval's regex filter: the first group that is not empty, of the first or the last match."""
    matches = pattern.findall(text)
    if not matches:
        return INVALID
    match = matches[place]
    if isinstance(match, tuple):
        match = next((group for group in match if group), INVALID)
    return match.strip()


def _normal(text: str) -> str:
    """Return the text that lm-eval's exact match compares: no commas, dollars, text before ####, last dot."""
    answer = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", answer).lower()
