"""Do sinks drift right because the model makes them, or because the sampler's blocks go right?

Claim     LLaDA's sinks drift right as blocks are denoised (arXiv 2510.15731, §4.2, Fig. 1, 7).
Rule      Drift is the least-squares slope of the main sink's position against the step. With blocks of 16 from the left it is above 0: the
          mean over heads, the median head (few heads lead the mean), and the mean for the main sinks of the answer's queries. Whether it
          is the schedule: it falls when the blocks come from the right (paired, blocks of 16 minus reversed, above 0), for all queries
          and for the answer's. Beside: moves that come right after a block change are commoner than with the commits shifted circularly
          within each prompt.
Expected  Rightward with blocks, less or leftward with reversed blocks.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="drift",
    title="Sinks drift right as blocks are denoised",
    source="§4.2, Fig. 1 and 7",
    says="LLaDA's sinks drift to the right as its blocks are denoised from left to right.",
    expected="rightward with blocks from the left; the schedule, not the model, when it turns with the blocks",
    limits="The sampler's blocks go to the right by design. A drift that turns round with reversed blocks comes from the sampler.",
    parts=(
        Part(
            "drift, blocks of 16 from the left", Number("blocks-of-16", "movement.drift"), "above", 0.0, short="drift"
        ),
        Part(
            "drift of the median head, blocks of 16 from the left",
            Number("blocks-of-16", "movement.drift_median"),
            "above",
            0.0,
            short="median head",
        ),
        Part(
            "drift of the main sink of the answer's queries, blocks of 16 from the left",
            Number("blocks-of-16", "answer_queries.drift"),
            "above",
            0.0,
            short="answer's queries",
        ),
        Part(
            "drift with blocks from the left, minus drift with blocks from the right",
            Number("blocks-of-16", "movement.drift"),
            "above",
            0.0,
            minus=Number("blocks-reversed", "movement.drift"),
            short="left minus right",
        ),
        Part(
            "answer's queries: drift with blocks from the left, minus drift with blocks from the right",
            Number("blocks-of-16", "answer_queries.drift"),
            "above",
            0.0,
            minus=Number("blocks-reversed", "answer_queries.drift"),
            short="answer's queries, left minus right",
        ),
        Part("drift, blocks from the right", Number("blocks-reversed", "movement.drift"), "below", 0.0, decides=False),
        Part(
            "heads that drift to the right", Number("blocks-of-16", "movement.drift_right"), "above", 0.5, decides=False
        ),
        Part(
            "drift of the median head of the answer's queries",
            Number("blocks-of-16", "answer_queries.drift_median"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "heads whose main sink of the answer's queries drifts to the right",
            Number("blocks-of-16", "answer_queries.drift_right"),
            "above",
            0.5,
            decides=False,
        ),
        Part(
            "moves that go to the right, blocks of 16",
            Number("blocks-of-16", "movement.rightward"),
            "above",
            0.5,
            decides=False,
        ),
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
