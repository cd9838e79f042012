"""What lm-eval's HumanEval tasks of this folder call: programs from answers, and pass@k by our own sandbox."""

from collections.abc import Sequence

from sinkscope.evaluation.humaneval import FENCE
from sinkscope.evaluation.sandbox import run_program
from sinkscope.evaluation.statistics import pass_at_k as estimate


def complete(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, str]]) -> list[list[str]]:
    """The prompt and each of its completions."""
    return [[doc["prompt"] + one for one in found] for found, doc in zip(answers, docs, strict=True)]


def complete_fenced(answers: Sequence[Sequence[str]], docs: Sequence[dict[str, str]]) -> list[list[str]]:
    """The same, up to the closing fence."""
    return complete([[one.split(FENCE, 1)[0] for one in found] for found in answers], docs)


def pass_at_k(references: Sequence[str], predictions: Sequence[Sequence[str]], k: Sequence[int]) -> dict[str, float]:
    """Unbiased pass@k of one problem's programs, for each k.

    Args:
        references: the tests, one text.
        predictions: the programs, one list.
        k: at most as many as there are programs.
    """
    (tests,), (programs,) = references, predictions
    passed = sum(run_program(f"{program}\n{tests}").passed for program in programs)
    return {f"pass@{one}": estimate(len(programs), passed, one) for one in k}
