"""A task: its problems, their prompts, and the scoring of answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
"""One turn of a conversation: ``role`` and ``content``."""


@dataclass(frozen=True)
class Score:
    """The score of one answer.

    Attributes:
        read: the number that was read from the answer, or the program that was run; None where there was none.
        not_enforced: see `sandbox.ProgramResult`; empty for tasks that run nothing.
        measures: every published measure of the task, ``correct`` among them; empty for the lab's tasks.
    """

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
        prompt: returns the text for a problem, its number and a number of shots.
        gold: returns what the answer to a problem is compared with.
        score: scores a model's text for a problem; in a task of likelihoods, what `choices.ask` found.
        messages: returns the same prompt as a conversation, a pair of turns a shot; the model continues a last turn of
            the assistant. None where the task has raw text only.
        stops: an answer ends before the first of these strings; None keeps the whole answer.
        fingerprint: returns a hash of the data from which prompts with a number of shots are made.
        asks_likelihoods: whether each problem is a `choices.Question`, whose choices are compared by likelihood.
        passes: how often the model writes. Each pass reads the question and all earlier answers; with several passes
            all answers together are scored.
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
