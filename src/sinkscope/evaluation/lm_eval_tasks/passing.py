"""Functions that lm-eval's HumanEval tasks in this folder call: programs, and pass@k by our sandbox."""

import functools
import logging
from collections.abc import Sequence

from sinkscope.evaluation.paired_tests import pass_at_k as estimate
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.tasks import FENCE
from sinkscope.runs.folder import share_of_process

_log = logging.getLogger(__name__)


def complete(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, str]]) -> list[list[str]]:
    """Return the programs of plain answers."""
    return [[doc["prompt"] + one for one in found] for found, doc in zip(answers, docs, strict=True)]


def complete_fenced(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, str]]) -> list[list[str]]:
    """Return the programs of answers with code in fences."""
    return complete([[one.split(FENCE, 1)[0] for one in found] for found in answers], docs)


def pass_at_k(references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]) -> dict[str, float]:
    """Return the unbiased pass@k of one problem's programs, for each k; log once what the sandbox does not enforce."""
    (tests,), (programs,) = references, predictions
    results = [run_program(f"{program}\n{tests}") for program in programs]
    for line in (line for result in results for line in result.not_enforced):
        _say_once(line)
    passed = sum(result.passed for result in results)
    return {f"pass@{one}": estimate(len(programs), passed, one) for one in k}


@functools.cache
def _say_once(line: str) -> None:
    if share_of_process().index == 0:
        _log.warning("the sandbox cannot enforce everything on this system. %s", line)
