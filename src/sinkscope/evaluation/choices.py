"""Benchmarks of likelihoods as paper 2 uses them: ARC, HellaSwag, PIQA, RACE, SIQA and LAMBADA, as in lm-eval 0.4.13.

``acc`` takes the likeliest choice, ``acc_norm`` the likeliest per character; ``correct`` is ``acc``. LAMBADA is correct
where the model writes its last word, as in paper 2's code (skywalker0523/OneTokenIsEnough,
evaluate_diff_extratoken.py, ``suffix_greedy_prediction``).
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sinkscope.decoding import Likelihood, generate, log_likelihood
from sinkscope.decoding.likelihood import check_likelihood
from sinkscope.errors import CallError
from sinkscope.evaluation.task import Row, Score, Source, Task, expect_no_shots, hash_rows
from sinkscope.models import Family, Model


@dataclass(frozen=True)
class LikelihoodSettings:
    """Settings of likelihoods, see `log_likelihood`; problem i has seed + i."""

    method: Literal["monte_carlo", "chain_rule"] = "monte_carlo"
    samples: int = 128
    guidance: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Question:
    """A context, the choices that may follow it behind a blank, the number of the right one."""

    context: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Asked:
    """The answer of a model: a likelihood for each choice, or whether it writes an only choice itself."""

    likelihoods: tuple[Likelihood, ...]
    writes: bool | None


class Benchmark(NamedTuple):
    """Repository and configuration of the data, split, fields of a row; ``acc_norm`` is published where it is normed."""

    hub: tuple[str, str | None]
    split: str
    fields: str
    read: Callable[[Row], Question]
    normed: bool = True


def _numbered(value: str | int, first: int, count: int) -> int:
    """Return the choice that a label names, from 0; labels are whole numbers from ``first`` on, or the same as text."""
    return range(first, first + count).index(int(value))


def _arc(row: Row) -> Question:
    texts, labels = row["choices"]["text"], row["choices"]["label"]
    return Question(f"Question: {row['question']}\nAnswer:", tuple(texts), labels.index(row["answerKey"]))


def _hellaswag(row: Row) -> Question:
    def clean(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    context = clean(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = tuple(map(clean, row["endings"]))
    return Question(context, endings, _numbered(row["label"], 0, len(endings)))


def _piqa(row: Row) -> Question:
    return Question(f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"]), _numbered(row["label"], 0, 2))


def _race(row: Row) -> Question:
    """Return the last question of an article; the others stand with their answers before it."""
    problems = ast.literal_eval(row["problems"]) if isinstance(row["problems"], str) else row["problems"]
    asked = [(one["question"], tuple(one["options"])[:4], "ABCD".index(one["answer"])) for one in problems]
    text = f"Article: {row['article']}\n\n"
    for question, options, gold in asked[:-1]:
        gap = question.endswith("  _  .")
        text += f"{question[:-5]}{options[gold]}\n" if gap else f"Question: {question}\nAnswer: {options[gold]}\n"
    question, options, gold = asked[-1]
    return Question(text + question, options, gold)


def _social_iqa(row: Row) -> Question:
    choices = tuple(row[f"answer{letter}"] for letter in "ABC")
    return Question(f"Q: {row['context']} {row['question']}\nA:", choices, _numbered(row["label"], 1, 3))


def _lambada(row: Row) -> Question:
    *before, last = row["text"].split(" ")
    return Question(" ".join(before), (last,), 0)


_ARC = "question choices answerKey"
_HELLASWAG = "activity_label ctx_a ctx_b endings label"
_SIQA = "context question answerA answerB answerC label"
BENCHMARKS = {
    "arc_easy": Benchmark(("allenai/ai2_arc", "ARC-Easy"), "test", _ARC, _arc),
    "arc_challenge": Benchmark(("allenai/ai2_arc", "ARC-Challenge"), "test", _ARC, _arc),
    "hellaswag": Benchmark(("Rowan/hellaswag", None), "validation", _HELLASWAG, _hellaswag),
    "piqa": Benchmark(("baber/piqa", None), "validation", "goal sol1 sol2 label", _piqa),
    "race": Benchmark(("EleutherAI/race", "high"), "test", "article problems", _race, normed=False),
    "social_iqa": Benchmark(("lighteval/siqa", None), "validation", _SIQA, _social_iqa, normed=False),
    "lambada": Benchmark(("cimec/lambada", None), "test", "text", _lambada, normed=False),
    "lambada_openai": Benchmark(("EleutherAI/lambada_openai", "default"), "test", "text", _lambada, normed=False),
}


def likelihood_task(name: str, data: Path | None) -> Task:
    benchmark = BENCHMARKS[name]
    source = Source(name, data, benchmark.hub, tuple(benchmark.fields.split()), benchmark.split)
    rows = functools.cache(lambda: source.rows(benchmark.split))

    questions = functools.cache(lambda: tuple(map(benchmark.read, rows())))

    def prompt(question: Question, index: int, shots: int) -> str:
        expect_no_shots(name, shots)
        return question.context

    def score(question: Question, asked: Asked) -> Score:
        best, measures = judge(question, asked, benchmark.normed)
        right = question.choices[question.gold]
        read = question.choices[best] if len(question.choices) > 1 or measures["acc"] else None
        return Score(measures["acc"], read, f"{read!r}, expected {right!r}", measures=measures)

    return Task(
        name,
        0,
        False,
        questions,
        prompt,
        lambda question: question.choices[question.gold],
        score,
        fingerprint=lambda shots: hash_rows(rows()),
        asks_likelihoods=True,
    )


def ask(model: Model, question: Question, settings: LikelihoodSettings, number: int, batch: int) -> Asked:
    """Compute the likelihoods of all choices of question ``number``, and whether the model writes an only one."""
    given = {**asdict(settings), "seed": settings.seed + number, "batch": batch}
    found = tuple(log_likelihood(model, question.context, f" {choice}", **given) for choice in question.choices)
    return Asked(found, _writes(model, question, settings.guidance) if len(question.choices) == 1 else None)


def _writes(model: Model, question: Question, guidance: float) -> bool:
    choice = f" {question.choices[0]}"
    if model.family.sampler != "llada":
        return bool(log_likelihood(model, question.context, choice, method="chain_rule", guidance=guidance).greedy)
    prefix, whole = model.encode(question.context), model.encode(question.context + choice)
    length = len(whole) - len(prefix)
    answer = generate(model, prefix, length=length, steps=length, block=length, guidance=guidance).tokens
    return answer.tolist() == whole


def judge(question: Question, asked: Asked, normed: bool) -> tuple[int, dict[str, bool]]:
    """Return the number of the chosen answer, and every measure."""
    totals = [one.total for one in asked.likelihoods]
    if len(totals) == 1:
        return 0, {"acc": bool(asked.writes)}
    best = totals.index(max(totals))  # ties to the first, as arg-max has it
    measures = {"acc": best == question.gold}
    if normed:
        per_character = [total / len(choice) for total, choice in zip(totals, question.choices, strict=True)]
        measures["acc_norm"] = per_character.index(max(per_character)) == question.gold
    return best, measures


def settings_for(
    given: Mapping[str, Any], defaults: Mapping[str, Any], family: Family, model: str
) -> LikelihoodSettings:
    """Return the settings of a protocol (``defaults``), overridden by those of a call, for a model of this family."""
    names = LikelihoodSettings.__dataclass_fields__
    if beside := [name for name in given if name not in names]:
        raise CallError(f"{beside[0]}: tasks of likelihoods have the settings {', '.join(names)}; leave it out")
    found = LikelihoodSettings(**{**({} if family.causal else defaults), **given})
    check_likelihood(family, model, **asdict(found))
    return found
