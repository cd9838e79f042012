"""Benchmarks of likelihoods as paper 2 uses them: ARC, HellaSwag, PIQA, RACE, SIQA and LAMBADA.

The model writes nothing; the likelihoods of a question's choices are compared. Prompts, choices and measures are those
of lm-eval 0.4.13.
Rows come from a local JSON-lines file in the form that the data has on the hub, or from the hub. ``acc`` takes the
likeliest choice, ``acc_norm`` the likeliest per character (lm-eval's length); ``correct`` is ``acc``.

LAMBADA has one choice, its last word. An answer is correct where the model writes that word, the most confident token
first. Paper 2's code does so (skywalker0523/OneTokenIsEnough, evaluate_diff_extratoken.py,
``suffix_greedy_prediction``; its scripts ask lm-eval's ``lambada_standard``). A model that another sampler writes with
is asked token by token from the left.
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sinkscope.decoding import Likelihood, generate, log_likelihood
from sinkscope.decoding.likelihood import check_likelihood, encode_pair
from sinkscope.errors import CallError
from sinkscope.evaluation.task import Score, Task
from sinkscope.evaluation.task_data import Source, hash_rows
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
    """One row of a benchmark: a context, the choices that may follow it behind a blank, the number of the right one."""

    context: str
    choices: tuple[str, ...]
    gold: int


@dataclass(frozen=True)
class Asked:
    """The answer of a model: a likelihood for each choice, or whether it writes an only choice itself."""

    likelihoods: tuple[Likelihood, ...]
    writes: bool | None


class Benchmark(NamedTuple):
    """One benchmark: the repository and configuration of its data, the split with the questions, and the types of a
    row's fields; ``acc_norm`` is published beside ``acc`` where it is normed.
    """

    hub: tuple[str, str | None]
    split: str
    fields: Mapping[str, tuple[type, ...]]
    read: Callable[[Mapping[str, Any]], Question]
    normed: bool = True


def _numbered(value: str | int, first: int, count: int) -> int:
    """Return the choice that a label names, from 0; labels are whole numbers from ``first`` on, or the same as text."""
    return range(first, first + count).index(int(value))


def _arc(row: Mapping[str, Any]) -> Question:
    texts, labels = row["choices"]["text"], row["choices"]["label"]
    return Question(f"Question: {row['question']}\nAnswer:", tuple(texts), labels.index(row["answerKey"]))


def _hellaswag(row: Mapping[str, Any]) -> Question:
    def clean(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    context = clean(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = tuple(map(clean, row["endings"]))
    return Question(context, endings, _numbered(row["label"], 0, len(endings)))


def _piqa(row: Mapping[str, Any]) -> Question:
    return Question(f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"]), _numbered(row["label"], 0, 2))


def _race(row: Mapping[str, Any]) -> Question:
    """Return the last question of an article; the others stand with their answers before it."""
    problems = ast.literal_eval(row["problems"]) if isinstance(row["problems"], str) else row["problems"]
    asked = [(one["question"], tuple(one["options"])[:4], "ABCD".index(one["answer"])) for one in problems]
    text = f"Article: {row['article']}\n\n"
    for question, options, gold in asked[:-1]:
        gap = question.endswith("  _  .")
        text += f"{question[:-5]}{options[gold]}\n" if gap else f"Question: {question}\nAnswer: {options[gold]}\n"
    question, options, gold = asked[-1]
    return Question(text + question, options, gold)


def _social_iqa(row: Mapping[str, Any]) -> Question:
    choices = tuple(row[f"answer{letter}"] for letter in "ABC")
    return Question(f"Q: {row['context']} {row['question']}\nA:", choices, _numbered(row["label"], 1, 3))


def _lambada(row: Mapping[str, Any]) -> Question:
    *before, last = row["text"].split(" ")
    return Question(" ".join(before), (last,), 0)


_TEXT, _LABEL = (str,), (str, int)
_ARC = {"question": _TEXT, "choices": (dict,), "answerKey": _TEXT}
_HELLASWAG = dict.fromkeys(("activity_label", "ctx_a", "ctx_b"), _TEXT) | {"endings": (list,), "label": _LABEL}
_PIQA = {"goal": _TEXT, "sol1": _TEXT, "sol2": _TEXT, "label": _LABEL}
_RACE = {"article": _TEXT, "problems": (str, list)}
_SIQA = dict.fromkeys(("context", "question", "answerA", "answerB", "answerC"), _TEXT) | {"label": _LABEL}
BENCHMARKS = {
    "arc_easy": Benchmark(("allenai/ai2_arc", "ARC-Easy"), "test", _ARC, _arc),
    "arc_challenge": Benchmark(("allenai/ai2_arc", "ARC-Challenge"), "test", _ARC, _arc),
    "hellaswag": Benchmark(("Rowan/hellaswag", None), "validation", _HELLASWAG, _hellaswag),
    "piqa": Benchmark(("baber/piqa", None), "validation", _PIQA, _piqa),
    "race": Benchmark(("EleutherAI/race", "high"), "test", _RACE, _race, normed=False),
    "social_iqa": Benchmark(("lighteval/siqa", None), "validation", _SIQA, _social_iqa, normed=False),
    "lambada": Benchmark(("cimec/lambada", None), "test", {"text": _TEXT}, _lambada, normed=False),
    "lambada_openai": Benchmark(("EleutherAI/lambada_openai", "default"), "test", {"text": _TEXT}, _lambada, False),
}


def likelihood_task(name: str, data: Path | None) -> Task:
    """Return the task of a benchmark."""
    benchmark = BENCHMARKS[name]
    files = {benchmark.split: (f"{benchmark.split}.jsonl", f"{name}.jsonl")}
    source = Source(name, data, benchmark.hub, benchmark.fields, files, benchmark.split)
    rows = functools.cache(lambda: source.rows(benchmark.split))

    @functools.cache
    def questions() -> tuple[Question, ...]:
        found = []
        for number, row in enumerate(rows(), 1):
            try:
                found.append(benchmark.read(row))
            except (ValueError, LookupError, TypeError, SyntaxError) as error:
                what = f"a row of {name} as on the hub ({benchmark.hub[0]})"
                raise CallError(
                    f"{source.where}, row {number}: expected {what}, found {str(row)[:80]} … ({error})"
                ) from error
        return tuple(found)

    def prompt(question: Question, index: int, shots: int) -> str:
        if shots:
            raise CallError(f"shots: {name} is asked without any, found {shots}")
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
    given = {"method": settings.method, "samples": settings.samples, "guidance": settings.guidance, "batch": batch}
    found = tuple(
        log_likelihood(model, question.context, f" {choice}", seed=settings.seed + number, **given)
        for choice in question.choices
    )
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
    best = max(range(len(totals)), key=totals.__getitem__)  # ties to the first, as arg-max has it
    measures = {"acc": best == question.gold}
    if normed:
        per_character = [total / len(choice) for total, choice in zip(totals, question.choices, strict=True)]
        measures["acc_norm"] = per_character.index(max(per_character)) == question.gold
    return best, measures


def settings_for(
    given: Mapping[str, Any], defaults: Mapping[str, Any], family: Family, model: str
) -> LikelihoodSettings:
    """Return the settings of a protocol (``defaults``), overridden by those of a call, for a model of this family.

    Raises:
        CallError: a setting of samplers, one out of bounds, or guidance for an autoregressive model.
    """
    names = LikelihoodSettings.__dataclass_fields__
    if beside := [name for name in given if name not in names]:
        raise CallError(f"{beside[0]}: tasks of likelihoods have the settings {', '.join(names)}; leave it out")
    found = LikelihoodSettings(**{**({} if family.causal else defaults), **given})
    check_likelihood(family, model, **asdict(found))
    return found


def count_tokens(model: Model, question: Question) -> int:
    """Return the number of tokens of a question with its longest choice."""
    return max(sum(map(len, encode_pair(model, question.context, f" {choice}"))) for choice in question.choices)
