"""Do sinks move while a diffusion model writes, and stay in an autoregressive one?

Claim     Moving sinks: the position changes over the steps, or the sink vanishes, and some live for one step only; in autoregressive
          models the sink stays on the first token (arXiv 2510.15731, §4.2, Fig. 1, 4, 6b, 7).
Rule      Main sinks of the diffusion model move more than once a head in 64 steps (swaps of two lasting sinks are no moves), and those of
          the answer's queries too; less than half of its heads have a static sink as their longest track; some
          tracks last one step. The autoregressive model has a sink to follow in more than half of its
          steps × heads, and its main sinks move less than once a head.
Expected  All of them. (An earlier script, moving_sinks.py, compares the moves with shuffled steps.)
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="moves",
    title="Sinks move",
    source="§4.2, Fig. 1, 4, 6b and 7",
    says="In diffusion models the position of a sink changes over the steps, or the sink vanishes; some last for one "
    "step only. In autoregressive models it stays.",
    expected="the diffusion model's sinks move, the autoregressive one's do not",
    limits="Moves of an autoregressive model are read from its newest 16 queries. A sink must exceed the other keys by 19 "
    "% of the attention of these 16 queries, and few heads of a small model have such a key. So there is little "
    "that could stay in its place. The first run of this script counted the swaps of the answer's queries as moves (3.8 to 4.9 changes a "
    "head).",
    parts=(
        Part(
            "moves of the main sink per head, 64 steps",
            Number("blocks-of-16", "movement.moves_per_head"),
            "above",
            1.0,
            short="moves a head",
        ),
        Part(
            "the answer's queries alone: moves of their main sink per head",
            Number("blocks-of-16", "answer_queries.moves_per_head"),
            "above",
            1.0,
            short="moves for the answer's queries",
        ),
        Part(
            "swaps of the main sink of the answer's queries per head",
            Number("blocks-of-16", "answer_queries.swaps_per_head"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "heads whose longest track is static",
            Number("blocks-of-16", "movement.longest_track", (("kind", "static"),)),
            "below",
            0.5,
            short="static heads",
        ),
        Part(
            "tracks that last one step",
            Number("blocks-of-16", "movement.tracks", (("kind", "one_step"),)),
            "above",
            0.0,
            short="one-step tracks",
        ),
        Part(
            "autoregressive model: steps × heads that have a sink",
            Number("autoregressive", "movement.steps_with_sink"),
            "above",
            0.5,
            short="autoregressive: with a sink",
        ),
        Part(
            "autoregressive model: moves of the main sink per head",
            Number("autoregressive", "movement.moves_per_head"),
            "below",
            1.0,
            short="its moves",
        ),
        Part(
            "swaps of the main sink per head",
            Number("blocks-of-16", "movement.swaps_per_head"),
            "above",
            1.0,
            decides=False,
        ),
        Part(
            "autoregressive model: swaps",
            Number("autoregressive", "movement.swaps_per_head"),
            "below",
            1.0,
            decides=False,
        ),
        Part(
            "steps in a row at one position", Number("blocks-of-16", "movement.residence"), "below", 64.0, decides=False
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
