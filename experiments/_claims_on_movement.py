"""Claims on how sinks move, and on which queries have them; the rule of each stands above it."""

from _claims import Claim, Number, Part

DIFFUSION, REVERSED, AUTOREGRESSIVE = "blocks-of-16", "blocks-reversed", "autoregressive"
FAIR = "averaged.moves_per_head"

# Rule: Main sinks of the diffusion model move more than once a head in 64 steps (swaps of two lasting sinks are no
# moves), and those of the answer's queries too; less than half of its heads have a static sink as their longest
# track; some tracks last one step. The autoregressive model has a sink to follow in more than half of its steps ×
# heads, and its main sinks move less than the diffusion model's at an equal share of the attention of as many queries.
MOVES = Claim(
    name="moves",
    title="Sinks move",
    source="§4.2, Fig. 1, 4, 6b and 7",
    says=(
        "In diffusion models the position of a sink changes over the steps, or the sink vanishes; some last for one "
        "step only. In autoregressive models it stays."
    ),
    expected="the diffusion model's sinks move, the autoregressive one's do not",
    limits=(
        "A step of the diffusion model averages its whole canvas of 87 queries and more, the answers of the autoregressive one end before "
        "so many queries: whose sinks move more is not comparable. A sink of the newest 16 queries must exceed the others by 19 % of their "
        "attention, one of a canvas of 87 by 3 %. Shuffled steps move oftener than the model, so that moves as such show no movement."
    ),
    parts=(
        Part(
            "moves of the main sink per head, 64 steps",
            Number(DIFFUSION, "movement.moves_per_head"),
            "above",
            1.0,
            "moves a head",
        ),
        Part(
            "the answer's queries alone: moves of their main sink per head",
            Number(DIFFUSION, "answer_queries.moves_per_head"),
            "above",
            1.0,
            "moves for the answer's queries",
        ),
        Part(
            "heads whose longest track is static",
            Number(DIFFUSION, "movement.longest_track", (("kind", "static"),)),
            "below",
            0.5,
            "static heads",
        ),
        Part(
            "tracks that last one step",
            Number(DIFFUSION, "movement.tracks", (("kind", "one_step"),)),
            "above",
            0.0,
            "one-step tracks",
        ),
        Part(
            "autoregressive model: steps × heads that have a sink",
            Number(AUTOREGRESSIVE, "movement.steps_with_sink"),
            "above",
            0.5,
            "autoregressive: with a sink",
        ),
        Part(
            "moves per head at 19 % of the attention of 4 queries, diffusion minus autoregressive",
            Number(DIFFUSION, FAIR, (("queries", 4),)),
            "above",
            0.0,
            "diffusion minus autoregressive, equal averaging",
            minus=Number(AUTOREGRESSIVE, FAIR, (("queries", 4),)),
        ),
        Part("moves per head at 19 % of its canvas", Number(DIFFUSION, FAIR, (("queries", "canvas"),)), "above", 1.0),
        *(
            Part(f"autoregressive model: moves per head at 19 % of {told}", number, "below", 1.0)
            for told, number in (
                ("1 query", Number(AUTOREGRESSIVE, FAIR, (("queries", 1),))),
                ("4 queries", Number(AUTOREGRESSIVE, FAIR, (("queries", 4),))),
            )
        ),
        Part(
            "autoregressive model: moves of the main sink per head (newest 16 queries)",
            Number(AUTOREGRESSIVE, "movement.moves_per_head"),
            "below",
            1.0,
        ),
        Part("swaps of the main sink per head", Number(DIFFUSION, "movement.swaps_per_head"), "above", 1.0),
        Part("autoregressive model: swaps", Number(AUTOREGRESSIVE, "movement.swaps_per_head"), "below", 1.0),
        Part("steps in a row at one position", Number(DIFFUSION, "movement.residence"), "below", 64.0),
    ),
)

# Rule: Drift is the least-squares slope of the main sink's position against the step. With blocks of 16 from the
# left it is above 0: the mean over heads, the median head (few heads lead the mean), and the mean for the main
# sinks of the answer's queries. Whether it is the schedule: it falls when the blocks come from the right (paired,
# blocks of 16 minus reversed, above 0), for all queries and for the answer's. Beside: moves that come right after a
# block change are commoner than with the commits shifted circularly within each prompt.
DRIFT = Claim(
    name="drift",
    title="Sinks drift right as blocks are denoised",
    source="§4.2, Fig. 1 and 7",
    says="LLaDA's sinks drift to the right as its blocks are denoised from left to right.",
    expected="rightward with blocks from the left; the schedule, not the model, when it turns with the blocks",
    limits="The sampler's blocks go to the right by design. A drift that turns round with reversed blocks comes from the sampler.",
    parts=(
        Part("drift, blocks of 16 from the left", Number(DIFFUSION, "movement.drift"), "above", 0.0, "drift"),
        Part(
            "drift of the median head, blocks of 16 from the left",
            Number(DIFFUSION, "movement.drift_median"),
            "above",
            0.0,
            "median head",
        ),
        Part(
            "drift of the main sink of the answer's queries, blocks of 16 from the left",
            Number(DIFFUSION, "answer_queries.drift"),
            "above",
            0.0,
            "answer's queries",
        ),
        Part(
            "drift with blocks from the left, minus drift with blocks from the right",
            Number(DIFFUSION, "movement.drift"),
            "above",
            0.0,
            "left minus right",
            minus=Number(REVERSED, "movement.drift"),
        ),
        Part(
            "answer's queries: drift with blocks from the left, minus drift with blocks from the right",
            Number(DIFFUSION, "answer_queries.drift"),
            "above",
            0.0,
            "answer's queries, left minus right",
            minus=Number(REVERSED, "answer_queries.drift"),
        ),
        Part("drift, blocks from the right", Number(REVERSED, "movement.drift"), "below", 0.0),
        Part("heads that drift to the right", Number(DIFFUSION, "movement.drift_right"), "above", 0.5),
        Part(
            "drift of the median head of the answer's queries",
            Number(DIFFUSION, "answer_queries.drift_median"),
            "above",
            0.0,
        ),
        Part(
            "heads whose main sink of the answer's queries drifts to the right",
            Number(DIFFUSION, "answer_queries.drift_right"),
            "above",
            0.5,
        ),
        Part("moves that go to the right, blocks of 16", Number(DIFFUSION, "movement.rightward"), "above", 0.5),
        Part(
            "drift relative to the leftmost mask",
            Number(DIFFUSION, "movement.drift_relative", (("frontier", "leftmost_mask"),)),
            "below",
            0.0,
        ),
        Part(
            "moves in the step after a block change, minus chance",
            Number(DIFFUSION, "triggers.over_chance", (("trigger", "block"),)),
            "above",
            0.0,
        ),
        Part(
            "moves in the step after the token left or entered was committed, minus chance",
            Number(DIFFUSION, "triggers.over_chance", (("trigger", "own"),)),
            "above",
            0.0,
        ),
    ),
)

# Rule: A group's sink is the arg-max of its mean column, from 8 queries on. Where both groups have one, they differ
# in more than a tenth of the steps × heads; the difference lasts (persistence above 0, which is what chance gives);
# and it is not the prompt's doing: masked queries and those written so far differ in more than a tenth as well.
# Switching over: where they differ, the head's largest column is the masked queries' sink more often in the first
# third of the steps than in the last.
QUERY_GROUPS = Claim(
    name="query-groups",
    title="Masked and unmasked queries keep separate sinks",
    source="§4.2, Fig. 6a",
    says="Masked and unmasked queries can have separate sinks, and the head switches from one to the other as tokens are written.",
    expected="separate, lasting, and switching over",
    limits=(
        "Behind a shot and more, most unmasked queries belong to the prompt. The largest column of a head is usually that of "
        "the larger group, so switching over may only show that the groups change in size. Prompt and written queries, "
        "both unmasked, have different sinks nearly as often, and so would any two lasting groups of unlike queries. "
        "So this does not show that being masked is what separates them."
    ),
    parts=(
        Part(
            "masked and unmasked queries have different sinks",
            Number(DIFFUSION, "groups.split"),
            "above",
            0.1,
            "masked, unmasked differ",
        ),
        Part(
            "a group's sink is found one step later in its own group more often than in the other",
            Number(DIFFUSION, "groups.persistence"),
            "above",
            0.0,
            "lasting",
        ),
        Part(
            "masked and written queries have different sinks",
            Number(DIFFUSION, "groups.split_from_written"),
            "above",
            0.1,
            "masked, written differ",
        ),
        Part(
            "the head's largest column is the masked queries' sink: first third of the steps minus last third",
            Number(DIFFUSION, "groups.follows_masked_over_steps", (("third", "first"),)),
            "above",
            0.0,
            "switching",
            minus=Number(DIFFUSION, "groups.follows_masked_over_steps", (("third", "last"),)),
        ),
        Part(
            "masked and prompt queries have different sinks",
            Number(DIFFUSION, "groups.split_from_prompt"),
            "above",
            0.1,
        ),
        Part(
            "prompt and written queries have different sinks",
            Number(DIFFUSION, "groups.split_prompt_written"),
            "above",
            0.1,
        ),
    ),
)

# Rule: Within each head, over the steps: self-attention of the other tokens, as a share of what the sink leaves
# over, falls as the sink grows (slope below 0). A sink that takes from all keys alike gives 0.
ABSORBED_SELF_ATTENTION = Claim(
    name="absorbed-self-attention",
    title="A sink absorbs the self-attention of its queries",
    source="Fig. 4b",
    says="Where a sink grows, its queries attend less to themselves.",
    expected="self-attention is taken first",
    limits="The slope is taken within heads, over the steps. Other things change with the steps too, such as the number of masks.",
    parts=(
        Part(
            "self-attention of the other queries, over what the sink leaves them: slope against the sink's share",
            Number(DIFFUSION, "groups.self_attention_absorbed"),
            "below",
            0.0,
            "slope",
        ),
        Part(
            "part of the sink's column that comes from its own query",
            Number(DIFFUSION, "groups.self_share"),
            "below",
            0.5,
        ),
    ),
)

CLAIMS = (MOVES, DRIFT, QUERY_GROUPS, ABSORBED_SELF_ATTENTION)
