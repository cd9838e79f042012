"""Benchmarks of likelihoods as paper 2 uses them: ARC, HellaSwag, PIQA, RACE, SIQA and LAMBADA, as in lm-eval 0.4.13.

``acc`` takes the likeliest choice, ``acc_norm`` the likeliest per character; ``correct`` is ``acc``. LAMBADA is correct
where the model writes its last word, as in paper 2's code (skywalker0523/OneTokenIsEnough,
evaluate_diff_extratoken.py, ``suffix_greedy_prediction``).
"""

import ast
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sinkscope.decoding import Likelihood, generate, log_likelihood
from sinkscope.decoding.likelihood import check_likelihood
from sinkscope.errors import CallError, EvaluationError
from sinkscope.models import Family, Model
from sinkscope.runs.files import numbered, parse_json, read_text

Message = dict[str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Score:
    """The score of one answer, by every published measure of the task; ``read``: the number or program in it."""

    correct: bool
    read: str | None
    reason: str
    not_enforced: tuple[str, ...] = ()
    measures: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A set of problems.

    Attributes:
        shots: default number of solved problems in a prompt; takes_shots: whether it may have some.
        runs_programs: whether scoring runs programs that a model wrote.
        problems: loads the problems, always the same ones in the same order.
        prompt: text for a problem, its number and a number of shots; messages: the same as a conversation, or None.
        score: scores a text for a problem; in a task of likelihoods, a `choices.Asked`.
        stops: an answer ends before the first of these strings; None keeps the whole answer.
        fingerprint: hash of the data from which prompts with a number of shots are made.
        passes: how often the model writes; each pass reads the question and all earlier answers.
    """

    name: str
    shots: int
    runs_programs: bool
    problems: Callable[[], Sequence[Any]]
    prompt: Callable[[Any, int, int], str]
    gold: Callable[[Any], str]
    score: Callable[[Any, Any], Score]
    messages: Callable[[Any, int, int], list[Message]] | None = None
    stops: tuple[str, ...] | None = None
    fingerprint: Callable[[int], str] = lambda shots: "lab"
    asks_likelihoods: bool = False
    passes: int = 1
    takes_shots: bool = True


@dataclass(frozen=True)
class Source:
    """Rows of a published task: from ``--data KEY=PATH`` (a file of the split ``asked``, or a folder), else the hub."""

    key: str
    path: Path | None
    hub: tuple[str, str | None]
    fields: tuple[str, ...]
    asked: str = "test"

    @property
    def where(self) -> str:
        return self.hub[0] if self.path is None else f"--data {self.key}={self.path}"

    def rows(self, split: str) -> tuple[Row, ...]:
        if self.path is not None:
            rows: Sequence[Any] = self._from_file(self.path, split)
        else:
            try:
                from datasets import load_dataset

                rows = list(load_dataset(*self.hub, split=split))
            except Exception as error:  # whatever the hub, the network or its cache raise
                local = f"go online, or pass a local file: --data {self.key}=FILE"
                raise EvaluationError(f"{self.hub[0]} could not be had from the hub ({error}); {local}") from error
        if not rows or not all(name in row for row in rows for name in self.fields):
            expected = f"rows with {', '.join(self.fields)}"
            raise CallError(f"{self.where}: expected {expected}; is this the file of {self.key}?")
        return tuple({name: row[name] for name in self.fields} for row in rows)

    def _from_file(self, path: Path, split: str) -> list[Any]:
        folder, given = path if path.is_dir() else path.parent, path.is_file() and split == self.asked
        names = [f"{split}.jsonl", f"{self.key}.jsonl"][: 1 + (split == self.asked)]
        beside = (folder / f"{name}{end}" for name in names for end in ("", ".gz"))
        file = path if given else next((one for one in beside if one.is_file() and one != path), None)
        if file is None or not path.exists():
            why = "; --shots 0 does without" if split != self.asked else ""
            raise CallError(f"{self.where}: expected a file, or {' or '.join(names)} in {folder}, found none{why}")
        lines = numbered(read_text(file, CallError, f"expected the JSON lines of {self.key}"))
        return [parse_json(line, f"{self.where}, line {number}", CallError) for number, line in lines]


def hash_rows(*splits: Sequence[Row]) -> str:
    """Return a sha256 over rows, so that another data file under the same results is noticed."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


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
    """Repository and configuration of data, split, fields of a row; ``acc_norm`` is published where it is normed."""

    hub: tuple[str, str | None]
    split: str
    fields: str
    read: Callable[[Row], Question]
    normed: bool = True


def _arc(row: Row) -> Question:
    texts, labels = row["choices"]["text"], row["choices"]["label"]
    return Question(f"Question: {row['question']}\nAnswer:", tuple(texts), labels.index(row["answerKey"]))


def _hellaswag(row: Row) -> Question:
    def clean(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    context = clean(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = tuple(map(clean, row["endings"]))
    return Question(context, endings, range(len(endings)).index(int(row["label"])))


def _piqa(row: Row) -> Question:
    return Question(f"Question: {row['goal']}\nAnswer:", (row["sol1"], row["sol2"]), range(2).index(int(row["label"])))


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
    return Question(f"Q: {row['context']} {row['question']}\nA:", choices, range(1, 4).index(int(row["label"])))


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
    """Return the task of that name that is scored by likelihoods."""
    benchmark = BENCHMARKS[name]
    source = Source(name, data, benchmark.hub, tuple(benchmark.fields.split()), benchmark.split)
    rows = functools.cache(lambda: source.rows(benchmark.split))
    questions = functools.cache(lambda: tuple(map(benchmark.read, rows())))

    def prompt(question: Question, index: int, shots: int) -> str:
        return question.context

    def score(question: Question, asked: Asked) -> Score:
        best, measures = judge(question, asked, benchmark.normed)
        read = question.choices[best] if len(question.choices) > 1 or measures["acc"] else None
        return Score(measures["acc"], read, f"{read!r}, expected {gold(question)!r}", measures=measures)

    def gold(question: Question) -> str:
        return question.choices[question.gold]

    about: dict[str, Any] = {
        "fingerprint": lambda shots: hash_rows(rows()),
        "asks_likelihoods": True,
        "takes_shots": False,
    }
    return Task(name, 0, False, questions, prompt, gold, score, **about)


def ask(model: Model, question: Question, settings: LikelihoodSettings, number: int, batch: int) -> Asked:
    """Compute the likelihoods of all choices of question ``number``, and whether the model writes an only one."""
    given = {**asdict(settings), "seed": settings.seed + number, "batch": batch}
    choices, context, guidance = [f" {choice}" for choice in question.choices], question.context, settings.guidance
    found = tuple(log_likelihood(model, context, choice, **given) for choice in choices)
    if len(choices) > 1:
        return Asked(found, None)
    if model.family.sampler != "llada":
        greedy = log_likelihood(model, context, choices[0], method="chain_rule", guidance=guidance).greedy
        return Asked(found, bool(greedy))
    prefix, whole = model.encode(context), model.encode(context + choices[0])
    length = len(whole) - len(prefix)
    answer = generate(model, prefix, length=length, steps=length, block=length, guidance=guidance).tokens
    return Asked(found, answer.tolist() == whole)


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
    check_likelihood(family, model, found.method, found.guidance)
    return found
