"""Do sinks drift right because the model makes them, or because the sampler's blocks go right?

Claim     LLaDA's sinks drift right as blocks are denoised (arXiv 2510.15731, §4.2, Fig. 1, 7).
Rule      Drift is the least-squares slope of the main sink's position against the step, mean over heads. The claim holds if it is above 0
          with blocks of 16 from the left. Whether it is the schedule: it holds that it falls when the blocks come from the right
          (paired, blocks of 16 minus reversed, above 0). What is left without a schedule: drift above 0 with one block. Moves that come
          right after a block change are commoner than with the commits shifted circularly within each prompt.
Expected  Rightward with blocks, less or leftward with reversed blocks.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="drift",
    title="Sinks drift right as blocks are denoised",
    source="§4.2, Fig. 1 and 7",
    says="LLaDA's sinks drift to the right as its blocks are denoised from left to right.",
    expected="rightward with blocks from the left; the schedule, not the model, when it turns with the blocks",
    limits="The sampler's blocks go to the right by design. A drift that turns round with reversed blocks comes from the "
    "sampler. Only the drift that is left with a single block is the model's own.",
    parts=(
        Part("drift, blocks of 16 from the left", Number("blocks-of-16", "movement.drift"), "above", 0.0),
        Part(
            "drift with blocks from the left, minus drift with blocks from the right",
            Number("blocks-of-16", "movement.drift"),
            "above",
            0.0,
            minus=Number("blocks-reversed", "movement.drift"),
        ),
        Part("drift, blocks from the right", Number("blocks-reversed", "movement.drift"), "below", 0.0, decides=False),
        Part("drift, one block", Number("one-block", "movement.drift"), "above", 0.0, decides=False),
        Part(
            "drift with one block, minus drift with blocks of 16",
            Number("one-block", "movement.drift"),
            "below",
            0.0,
            minus=Number("blocks-of-16", "movement.drift"),
            decides=False,
        ),
        Part("moves that go to the right, blocks of 16", Number("blocks-of-16", "movement.rightward"), "above", 0.5, decides=False),
        Part(
            "drift relative to the leftmost mask",
            Number("blocks-of-16", "movement.drift_relative", (("frontier", "leftmost_mask"),)),
            "below",
            0.0,
            decides=False,
        ),
        Part(
            "moves in the step after a block change, minus chance",
            Number("blocks-of-16", "triggers.over_chance", (("trigger", "block"),)),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "moves in the step after the token left or entered was committed, minus chance",
            Number("blocks-of-16", "triggers.over_chance", (("trigger", "own"),)),
            "above",
            0.0,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
