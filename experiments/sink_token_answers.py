"""Does a sink token make a diffusion model better, and with it, do the sinks of the text still matter?

Claims    quality     With the token validation loss falls and accuracy rises (arXiv 2601.19657, Tables 1–2); the
          position, the number and
                      a value of zero make little difference, gates help less. Most of all where few steps leave the
                      model little room.
          robustness  The token takes the part of the moving sinks over: hiding them should cost a model with the token
                      less, hiding the token itself more. Random keys, as many, stand beside every hidden sink; canvases
                      are short (about 60 tokens), so a random key is a word of the sum.
Command   python experiments/sink_token_answers.py quality ARMS [--problems 200] [--work DIR] --out
          results/sink-token/quality python experiments/sink_token_answers.py robustness ARMS --problems 100 [--work
          DIR] --out results/sink-token/robustness
Cost      1 to 2 minutes an arm on one core.
Expected  The arm with the token is better than the arm without, and the gap widens with fewer steps. Without the token
          hiding the top sinks costs accuracy; with it less, and hiding the token costs most.
Found     results/sink-token; docs/sink-token.md has the table beside the paper's.
"""

import argparse
import time
from typing import Any

import numpy as np
from _settings import run_script
from _sink_arms import (
    LENGTH,
    Arm,
    arguments_of,
    find_arms,
    in_batches,
    measure_arms,
    prompts,
    settings,
    show,
    sums,
    write,
)

import sinkscope
from sinkscope.evaluation.tasks import score_number
from sinkscope.interventions import HideSinkToken, HideTopSinks, RandomKeys, compose

PER_STEP = (1, 2, 4, 8)
"""Tokens that are written in a step: length / steps."""
LEARNT = 0.05
"""Validation loss at which an arm is half-way: most of its sums come out right."""
RULES = {
    "nothing hidden": compose(),
    "top 1 hidden": HideTopSinks(1),
    "top 5 hidden": HideTopSinks(5),
    "1 random key hidden": RandomKeys(1),
    "5 random keys hidden": RandomKeys(5),
}
OWN = {"the token hidden": HideSinkToken(), "the token and the top 1 hidden": compose(HideSinkToken(), HideTopSinks(1))}


def exact(arm: Arm, model: Any, count: int, steps: int = LENGTH) -> np.ndarray:
    right = []
    for batch in in_batches(list(zip(sums(arm, count), prompts(arm, count), strict=True))):
        written = sinkscope.generate(model, [prompt for _, prompt in batch], **settings(model, steps))
        right += [score_number(problem, one.text).correct for (problem, _), one in zip(batch, written, strict=True)]
    return np.array(right, dtype=float)


def quality(arm: Arm, model: Any, count: int) -> dict[str, np.ndarray]:
    found = {f"exact match, {one} tokens a step": exact(arm, model, count, LENGTH // one) for one in PER_STEP}
    losses = arm.validation_losses
    below = [update for update, loss in losses.items() if loss < LEARNT]
    reached = {f"updates until validation loss {LEARNT}": np.array([min(below)], dtype=float)} if below else {}
    return {"validation loss": np.array([losses[max(losses)]])} | reached | found


def robustness(arm: Arm, model: Any, count: int) -> dict[str, np.ndarray]:
    found = {}
    for name, rule in (RULES | ({} if model.card.sink_token in (None, "gate") else OWN)).items():
        with rule(model) as hiding:
            found[f"exact match, {name}"] = exact(arm, model, count)
        if name != "nothing hidden":
            found[f"attention removed, {name}"] = np.array([hiding.effect.removed_share])
    return found


MEASURES = {
    "quality": ("A sink token and the quality of the model", quality),
    "robustness": ("A sink token and robustness", robustness),
}


def measure_all(given: argparse.Namespace) -> None:
    started, arms = time.time(), find_arms(given.arms)
    title, measure = MEASURES[given.what]
    table = measure_arms(
        arms, lambda arm, model: measure(arm, model, given.problems), keep=given.work, asked=given.problems
    )
    write(given.out, title, {"rows": table.rows()}, show(table.rows()), arms, started)


if __name__ == "__main__":
    run_script(lambda: measure_all(arguments_of(__doc__, MEASURES, 200)))
