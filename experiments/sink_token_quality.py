"""Does a sink token make a diffusion model better, and most of all where few steps leave it little room?

Claim     With the token validation loss falls and accuracy rises (arXiv 2601.19657, Tables 1–2); the position, the number and a value of
          zero make little difference, gates help less.
Command   python experiments/sink_token_quality.py ARMS [--problems 200] [--work DIR] --out results/sink-token/quality
Cost      about 1 minute an arm on one core.
Expected  The arm with the token is better than the arm without; the gap widens with fewer steps.
Found     results/sink-token/quality.md once the arms are trained; docs/sink-token.md has the table beside the paper's.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from _settings import Arguments, run_script
from _sink_arms import LENGTH, Arm, find_arms, in_batches, measure_arms, prompts, settings, show, sums, write

import sinkscope
from sinkscope.evaluation.tasks import score_number

PER_STEP = (1, 2, 4, 8)
"""Tokens that are written in a step: length / steps."""
LEARNT = 0.05
"""Validation loss at which an arm is half-way: most of its sums come out right."""


def exact(arm: Arm, model: Any, count: int, per_step: int) -> np.ndarray:
    right = []
    for batch in in_batches(list(zip(sums(arm, count), prompts(arm, count), strict=True))):
        written = sinkscope.generate(model, [prompt for _, prompt in batch], **settings(model, LENGTH // per_step))
        right += [score_number(problem, one.text).correct for (problem, _), one in zip(batch, written, strict=True)]
    return np.array(right, dtype=float)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=None, help="keeps what is done here, and goes on from there")
    arguments = parser.parse_args()
    started, arms = time.time(), find_arms(arguments.arms)

    def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
        found = {
            f"exact match, {per_step} tokens a step": exact(arm, model, arguments.problems, per_step)
            for per_step in PER_STEP
        }
        losses = arm.validation_losses
        below = [update for update, loss in losses.items() if loss < LEARNT]
        reached = {f"updates until validation loss {LEARNT}": np.array([min(below)], dtype=float)} if below else {}
        return {"validation loss": np.array([losses[max(losses)]])} | reached | found

    rows = measure_arms(arms, measure, keep=arguments.work, asked=arguments.problems).rows()
    write(arguments.out, "A sink token and the quality of the model", {"rows": rows}, show(rows), arms, started)


if __name__ == "__main__":
    run_script(main)
