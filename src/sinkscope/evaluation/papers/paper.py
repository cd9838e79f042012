"""The record of a paper for `sinkscope reproduce`: its plan, which is a list of parts, and its tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from sinkscope.evaluation.results import Result

PROBLEMS = {
    "gsm8k": 1319,
    "gsm8k_cot": 1319,
    "gsm8k_two_pass": 1319,
    "humaneval": 164,
    "humaneval_instruct": 164,
    "arc_easy": 2376,
    "arc_challenge": 1172,
    "hellaswag": 10042,
    "piqa": 1838,
    "race": 1045,
    "social_iqa": 1954,
    "lambada": 5153,
    "lambada_openai": 5153,
    "lab-arith": 1319,
    "lab-code": 164,
    "lab-sums": 303,
}
"""Number of problems of each task."""


@dataclass(frozen=True)
class Shape:
    """What the cost of a forward call depends on.

    Attributes:
        layers, heads, kv_heads, hidden, ffn, vocabulary, parameters: of the network.
        causal: whether it writes one token a step, with a cache.
        tied: whether the embedding is the projection onto the vocabulary, too, so that it is counted once among the
            parameters.
        head_dim: of a head; None where the heads share the hidden width.
        positions: the longest canvas that the network was made for; None where that is not known.
    """

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    ffn: int
    vocabulary: int
    parameters: int
    causal: bool = False
    tied: bool = False
    head_dim: int | None = None
    positions: int | None = None

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * (self.head_dim or self.hidden // self.heads)


@dataclass(frozen=True)
class Part:
    """One piece of a paper's work: a task of a table for one model, or the recorded generations behind its figures.

    Attributes:
        paper: name of the `Paper`.
        name: the tables or figures of the paper that need it.
        model: name of the checkpoint.
        task: name of the task.
        rules: of hiding, ``none`` among them; recorded generations have only ``none``.
        prompts: number of prompts.
        shots: examples in each prompt.
        settings: of the sampler, or of the likelihoods.
        shape: of the checkpoint that the paper used.
        recorded: whether attention is written to disk.
        folder: of the checkpoint; empty where it is loaded by its name.
    """

    paper: str
    name: str
    model: str
    task: str
    rules: tuple[str, ...]
    prompts: int
    shots: int
    settings: Mapping[str, Any] = field(hash=False)
    shape: Shape
    recorded: bool = False
    folder: str = ""


@dataclass(frozen=True)
class Narrowing:
    """The part of a paper's plan to run, from the flags of `sinkscope reproduce`; a paper may ignore some of them.

    Attributes:
        models: text of ``--models``.
        limit: problems of each task; all when None.
        ks: how many sinks are hidden.
        seeds: number of seeds of each control that draws at random.
        controls: words of the rules for comparison.
        traces: number of recorded generations of each model.
    """

    models: str
    limit: int | None
    ks: Sequence[int]
    seeds: int
    controls: Sequence[str]
    traces: int


def _any_folder(name: str, folder: str) -> None:
    """Accept every folder, and a checkpoint without one."""


@dataclass(frozen=True)
class Paper:
    """A paper; the module of its name in this package holds it as ``PAPER``.

    Attributes:
        plan: returns the work behind the tables and figures.
        tables: returns the text of each table by the name of its file, from the results of each checkpoint.
        check_folder: raises CallError where the folder given for a checkpoint (empty for none) does not hold that
            checkpoint.
    """

    plan: Callable[[Narrowing], tuple[Part, ...]]
    tables: Callable[[Mapping[str, Sequence[Result]]], Mapping[str, str]]
    check_folder: Callable[[str, str], None] = _any_folder


def find_paper(name: str) -> Paper:
    """Return the paper of a name, such as ``paper1``."""
    return import_module(f"{__package__}.{name}").PAPER
