"""The catalogue: what every statistic is, its unit, and which claim of paper 1 (or 2) it answers.

Names that end in ``_in`` are told for every layer, those in ``_over_steps`` for each third of the steps; they share the
definition of the name without the ending. The interval is that of the mean over prompts (BCa bootstrap), if not said.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Definition:
    """What a number means.

    Attributes:
        claim: the paper's words or figure it puts a number on.
    """

    text: str
    unit: str
    claim: str


MOVING = "moving sinks: the position changes over steps, or the sink vanishes (§4.2, Fig. 7)"
DRIFT = "LLaDA drifts right as blocks are denoised, Dream left, MMaDA stays (§4.2, Fig. 1, 7, 8)"
DEPTH = "deeper layers have fewer, stronger sinks (Fig. 5)"
FEW = "few tokens take most attention (Fig. 3, 9)"
MADE_OF = "sinks are new lines, punctuation, masks (Table 2)"
PLACED = "placement is semantic in LLaDA, positional in Dream (§4.2)"
SPLIT = "masked and unmasked queries keep separate sinks and switch over (Fig. 6a)"
NOOP = "sinks have small values: attending to one is close to a no-op (paper 2, Fig. 1)"
SAME = "LLaDA's patterns are consistent (§4.2)"

DEFINITIONS: dict[str, Definition] = {
    "movement.steps_with_sink": Definition("steps × heads in which Eq. 3 holds", "share", FEW),
    "movement.moves_per_head": Definition(
        "how often the main sink stands elsewhere than in the step before; heads with a sink in at least two steps", "moves", MOVING
    ),
    "movement.moves": Definition("moves per head of one layer", "moves", MOVING),
    "movement.distance": Definition("mean distance of a move", "positions", MOVING),
    "movement.rightward": Definition("moves that go to the right", "share of moves", DRIFT),
    "movement.residence": Definition("steps in a row that the main sink stays at one position", "steps", MOVING),
    "movement.track_steps": Definition("mean length of a track, all sinks of a head", "steps", MOVING),
    "movement.tracks": Definition("tracks of each kind", "share of tracks", MOVING),
    "movement.heads": Definition("heads by the kind of their longest track", "share of heads", MOVING),
    "movement.drift": Definition("least-squares slope of the main sink's position, mean over heads", "positions per step", DRIFT),
    "movement.drift_relative": Definition(
        "the same slope of the position minus that of a frontier of the masks", "positions per step", DRIFT
    ),
    "movement.drift_by_depth": Definition("slope of a layer's drift from the first (0) to the last layer (1)", "positions per step", DRIFT),
    "movement.moves_by_depth": Definition("slope of a layer's moves per head from the first (0) to the last layer (1)", "moves", DEPTH),
    "triggers.share": Definition("moves by what happened in the step before: own commit, block change, neither", "share of moves", MOVING),
    "triggers.over_chance": Definition("that share minus its mean over all circular shifts of the commits", "share of moves", MOVING),
    "agreement.same_layer": Definition("two heads of a layer have their main sink at one position", "probability", FEW),
    "agreement.other_layers": Definition("two heads of different layers have their main sink at one position", "probability", FEW),
    "agreement.prompts_place": Definition(
        "main sinks of one head in two prompts stand in the same tenth of the canvas; percentile interval over prompts", "probability", SAME
    ),
    "agreement.prompts_place_over_other_heads": Definition("that minus the same for two different heads", "probability", SAME),
    "agreement.prompts_class": Definition(
        "main sinks of one head in two prompts stand on the same class of token; percentile interval over prompts", "probability", SAME
    ),
    "agreement.prompts_class_over_other_heads": Definition("that minus the same for two different heads", "probability", SAME),
    "composition.share_of_sinks": Definition("sinks that are of a class", "share of sinks", MADE_OF),
    "composition.share_of_canvas": Definition("canvas that is of a class, all steps", "share of canvas", MADE_OF),
    "composition.times_expected": Definition("share of the sinks over share of the canvases they stand on, step by step", "ratio", MADE_OF),
    "composition.times_training": Definition("share of the sinks over share of the training corpus", "ratio", MADE_OF),
    "composition.frequency_correlation": Definition(
        "rank correlation, over distinct tokens but the mask, of sinks per occurrence with frequency in training", "Spearman's ρ", MADE_OF
    ),
    "composition.token": Definition("sinks that are a token; prompts without it count 0", "share of sinks", MADE_OF),
    "composition.token_on_canvas": Definition("canvas that is that token", "share of canvas", MADE_OF),
    "choice.all": Definition("held-out gain of the whole conditional-logit model over equal probabilities", "bits per choice", PLACED),
    "choice.class": Definition("held-out gain by token class, given position and mask state", "bits per choice", PLACED),
    "choice.position": Definition(
        "held-out gain by position (left, right, frontier), given class and mask state", "bits per choice", PLACED
    ),
    "choice.mask_state": Definition("held-out gain by mask state, given class and position", "bits per choice", PLACED),
    "groups.both": Definition("steps × heads in which masked and unmasked queries (8 at least each) both have a sink", "share", SPLIT),
    "groups.split": Definition("of those, where the two sinks differ", "share", SPLIT),
    "groups.split_from_prompt": Definition(
        "of those where masked and prompt queries both have a sink, where the two differ", "share", SPLIT
    ),
    "groups.split_from_written": Definition("the same for masked queries and written ones (unmasked, not the prompt's)", "share", SPLIT),
    "groups.split_prompt_written": Definition("the same for prompt queries and written ones", "share", SPLIT),
    "groups.persistence": Definition(
        "how much oftener a group's sink is the same one step later in its own group than in the other; 0 for chance splits", "share", SPLIT
    ),
    "groups.follows_masked": Definition("where they differ, the head's largest column is the masked queries' sink", "share", SPLIT),
    "groups.self_share": Definition("part of the largest sink's column that is its own query's", "share", "Fig. 4b"),
    "groups.self_attention_absorbed": Definition(
        "slope of the others' self-attention, over what the sink leaves, against the sink's share, within heads; negative: absorbed first",
        "share per share",
        "the sink absorbs the self-attention of its queries (Fig. 4b)",
    ),
    "concentration.sinks_per_head": Definition("sinks in a step and head", "sinks", DEPTH),
    "concentration.share_on_sinks": Definition("attention that lies on sinks", "share", FEW),
    "concentration.layers_without": Definition("steps × layers without a sink in any head", "share", DEPTH),
    "concentration.number_by_depth": Definition("slope of sinks per head from the first (0) to the last layer (1)", "sinks", DEPTH),
    "concentration.strength_by_depth": Definition(
        "slope of the main sink's column from the first (0) to the last layer (1)", "queries", DEPTH
    ),
    "concentration.strength": Definition("main sink's column, where there is a sink", "queries", DEPTH),
    "concentration.entropy": Definition("entropy of the columns over that of equal ones", "share", FEW),
    "concentration.gini": Definition("Gini coefficient of the columns", "0 to 1", FEW),
    "concentration.gu_rate": Definition("steps × layers × heads in which a key's mean α exceeds 0.3 (Gu et al., Sink_*)", "share", FEW),
    "epsilon.not_sinks": Definition(
        "tokens × heads × steps that are not sinks at ε = 0, ½, … 10, for all canvases and by their length",
        "share",
        "≥ 96 % at ε = 3 (Fig. 10)",
    ),
    "norms.contribution": Definition("part of Σ_j c_j·‖v_j‖ that comes from sinks, in heads with one", "share", NOOP),
    "norms.contribution_over_attention": Definition(
        "what sinks contribute over what they would with the mean value norm of their head (by attention); below 1 a step towards a no-op",
        "ratio",
        NOOP,
    ),
}

for _kind, _what in (("value_norm", "value norm"), ("key_norm", "key norm"), ("hidden_norm", "norm of the hidden state")):
    DEFINITIONS |= {
        f"norms.{_kind}_of_sinks": Definition(f"mean {_what} of sinks", "norm", NOOP),
        f"norms.{_kind}_of_others": Definition(f"mean {_what} of all other tokens", "norm", NOOP),
        f"norms.{_kind}_effect": Definition(f"Cohen's d of the {_what}, sinks minus others; mean over layers", "standard deviations", NOOP),
        f"norms.{_kind}_auc": Definition(
            f"other tokens of the canvas whose {_what} is above the largest sink's; ½ is no difference", "share", NOOP
        ),
    }


def definition_of(name: str) -> Definition:
    """The definition of a statistic, its ending for layers or steps aside."""
    return DEFINITIONS[name.removesuffix("_over_steps").removesuffix("_in")]


_ORDER = {name: number for number, name in enumerate(DEFINITIONS)}


def order_of(name: str) -> int:
    """Place in the catalogue, by which statistics are sorted."""
    return _ORDER[name.removesuffix("_over_steps").removesuffix("_in")]
