"""Do sinks owe their places, and their movement, to rotary positions?

Claim     Published diffusion models all rotate queries and keys (RoPE). If sinks were RoPE's doing, a twin with learned
          absolute positions would not have them, or they would not move. (A question of ours; the papers have no such
          model.)
Rule      Two models of the same recipe (2,500 updates on problems of one addition or subtraction) differ in their
          positions alone. The twin with learned positions has a sink in more than half of its steps × heads, and its
          main sinks move more than once a head while 32 tokens are written. Learned positions make placement more
          positional: on held-out prompts position gains more bits per choice, given class and mask state, than in the
          rotary twin (paired).
Expected  All three.
Cost      two trainings of about 13 minutes on one core (`sinkscope train lab-diffusion-learned-positions`,
          `lab-sink-none`), kept under ``models`` in the folder of the runs and gone on with after a kill; 1 s a prompt.
"""

import dataclasses
from typing import Any

from _claims import Claim, Number, Part, read_part
from _lab_runs import RUNS, WORK, Run

from sinkscope.lab.recipes import RECIPES, SHORT, Architecture
from sinkscope.lab.training import train_checkpoint

LEARNED = RECIPES["lab-diffusion-learned-positions"]
TWINS = {"learned": LEARNED, "rotary": dataclasses.replace(LEARNED, name="lab-sink-none", architecture=Architecture())}
SETTINGS = {"length": 32, "steps": 32, "block": 32}
RUNS.update(
    {name: Run(name, str(WORK / "models" / name), SETTINGS, shots=(0,), templates=SHORT.templates) for name in TWINS}
)


def read(part: Part, prompts: int, shots: Any) -> dict[str, Any]:
    for name, recipe in TWINS.items():
        train_checkpoint(recipe, WORK / "models" / name, command=f"sinkscope train {recipe.name}")
    return read_part(part, prompts, shots)


def beside(what: str, statistic: str, wanted: Any, bound: float) -> tuple[Part, ...]:
    """Return the same part for the rotary twin, and the difference; neither decides."""
    learned, rotary = (Number(name, statistic) for name in TWINS)
    return (
        Part(f"rotary positions: {what}", rotary, wanted, bound),
        Part(f"learned minus rotary: {what}", learned, wanted, 0.0, minus=rotary),
    )


CLAIM = Claim(
    name="learned-positions",
    title="Sinks do not need rotary positions",
    source="not in the papers",
    says="A diffusion model with learned absolute positions has sinks too. They move too, and their position says more "
    "about where they stand.",
    expected="sinks, movement, and more bits from position than in the rotary twin",
    limits="These are short problems without shots, on canvases of 60 to 70 tokens, because the table of positions ends "
    "at 96. There is one seed of each model, and the training decides: an earlier pair of the same recipe, trained on another "
    "machine, had 0.28 bits (0.20 to 0.33) of position more, this pair has 0.29 less. The learned twin of this pair learnt less well "
    "(validation loss 0.11, the rotary one 0.005), so its numbers may be those of a half-trained model.",
    parts=(
        Part(
            "learned positions: steps × heads that have a sink",
            Number("learned", "movement.steps_with_sink"),
            "above",
            0.5,
            short="with a sink",
        ),
        Part(
            "learned positions: moves of the main sink per head, 32 steps",
            Number("learned", "movement.moves_per_head"),
            "above",
            1.0,
            short="moves a head",
        ),
        Part(
            "gain from the position in the choice of the sink, learned minus rotary",
            Number("learned", "choice.position"),
            "above",
            0.0,
            minus=Number("rotary", "choice.position"),
            short="position's bits, learned minus rotary",
        ),
        *beside("steps × heads that have a sink", "movement.steps_with_sink", "above", 0.5),
        *beside("moves of the main sink per head", "movement.moves_per_head", "above", 1.0),
        *beside("drift", "movement.drift", "above", 0.0),
        *beside("attention that sinks receive", "concentration.share_on_sinks", "above", 0.5),
    ),
)
