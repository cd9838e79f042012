"""With a sink token, do the sinks of the text still matter, and does the token?

Claim     The token takes the part of the moving sinks over (arXiv 2601.19657): hiding them should cost a model with the token less,
          hiding the token itself more.
Command   python experiments/sink_token_robustness.py ARMS [--problems 100] [--work DIR] --out results/sink-token/robustness
Cost      about 2 minutes an arm on one core.
Expected  Without the token hiding the top sinks costs accuracy; with it less, and hiding the token costs most.
Found     results/sink-token/robustness.md once the arms are trained.

Random keys, as many, stand beside every hidden sink. Canvases are short (about 60 tokens), so a random key is a word of the sum.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from _settings import Arguments, run_script
from _sink_arms import Arm, find_arms, in_batches, measure_arms, prompts, settings, show, sums, write

import sinkscope
from sinkscope.evaluation.tasks import score_number
from sinkscope.interventions import HideSinkToken, HideTopSinks, RandomKeys, compose

RULES = {
    "nothing hidden": compose(),
    "top 1 hidden": HideTopSinks(1),
    "top 5 hidden": HideTopSinks(5),
    "1 random key hidden": RandomKeys(1),
    "5 random keys hidden": RandomKeys(5),
}
OWN = {"the token hidden": HideSinkToken(), "the token and the top 1 hidden": compose(HideSinkToken(), HideTopSinks(1))}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("arms", type=Path)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=None, help="keeps what is done here, and goes on from there")
    arguments = parser.parse_args()
    started, arms = time.time(), find_arms(arguments.arms)

    def measure(arm: Arm, model: Any) -> dict[str, np.ndarray]:
        found = {}
        for name, rule in (RULES | ({} if model.card.sink_token in (None, "gate") else OWN)).items():
            right = []
            with rule(model) as hiding:
                for batch in in_batches(
                    list(zip(sums(arm, arguments.problems), prompts(arm, arguments.problems), strict=True))
                ):
                    written = sinkscope.generate(model, [prompt for _, prompt in batch], **settings(model))
                    right += [
                        score_number(problem, one.text).correct
                        for (problem, _), one in zip(batch, written, strict=True)
                    ]
            found[f"exact match, {name}"] = np.array(right, dtype=float)
            if name != "nothing hidden":
                found[f"attention removed, {name}"] = np.array([hiding.effect.removed_share])
        return found

    rows = measure_arms(arms, measure, keep=arguments.work, asked=arguments.problems).rows()
    write(arguments.out, "A sink token and robustness", {"rows": rows}, show(rows), arms, started)


if __name__ == "__main__":
    run_script(main)
