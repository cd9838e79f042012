"""A task: its problems, their prompts and scores, and the rows of published tasks."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import parse_json, read_json_lines

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
        shots: default number of solved problems in a prompt.
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
        rows = tuple(self._from_hub(split) if self.path is None else self._from_file(self.path, split))
        if not rows or not all(name in row for row in rows for name in self.fields):
            raise CallError(
                f"{self.where}: expected rows with {', '.join(self.fields)}; is this the file of {self.key}?"
            )
        return tuple({name: row[name] for name in self.fields} for row in rows)

    def _from_file(self, path: Path, split: str) -> Iterable[Any]:
        folder, given = path if path.is_dir() else path.parent, path.is_file() and split == self.asked
        names = [f"{split}.jsonl", f"{self.key}.jsonl"][: 1 + (split == self.asked)]
        beside = (folder / f"{name}{end}" for name in names for end in ("", ".gz"))
        file = path if given else next((one for one in beside if one.is_file() and one != path), None)
        if file is None or not path.exists():
            why = "; --shots 0 does without" if split != self.asked else ""
            raise CallError(f"{self.where}: expected a file, or {' or '.join(names)} in {folder}, found none{why}")
        lines = read_json_lines(file, CallError, f"expected the JSON lines of {self.key}")
        return (parse_json(line, f"{self.where}, line {number}", CallError) for number, line in lines)

    def _from_hub(self, split: str) -> Iterable[Any]:
        try:
            from datasets import load_dataset

            return list(load_dataset(*self.hub, split=split))
        except Exception as error:  # whatever the hub, the network or its cache raise
            local = f"go online, or pass a local file: --data {self.key}=FILE"
            raise EvaluationError(f"{self.hub[0]} could not be had from the hub ({error}); {local}") from error


def hash_rows(*splits: Sequence[Row]) -> str:
    """Return a sha256 over rows, so that another data file under the same results is noticed."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


def expect_no_shots(name: str, shots: int) -> None:
    """Raise CallError where a task that has no shots is asked with some."""
    if shots:
        raise CallError(f"shots: {name} is asked without any, found {shots}")
