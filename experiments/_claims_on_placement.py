"""Claims on where sinks stand, how much they take, and how small their values are; the rule of each stands above it."""

from collections.abc import Sequence

from _claims import Claim, Number, Part

DIFFUSION, AUTOREGRESSIVE = "blocks-of-16", "autoregressive"


def beside(parts: Sequence[Part]) -> list[Part]:
    """Return the same parts of the autoregressive model, which do not decide."""
    return [
        Part(f"autoregressive model: {one.what}", Number(AUTOREGRESSIVE, one.number.statistic), one.wanted, one.bound)
        for one in parts
    ]


def ratio(token_class: str, what: str) -> Part:
    number = Number(DIFFUSION, "composition.times_expected", (("class", token_class),))
    short = what if token_class in ("newline", "mask", "punctuation") else ""
    return Part(f"{what}: share among sinks over share of the canvas", number, "above", 1.0, short)


# Rule: Eq. 3 holds in more than half of all steps × heads; at least 96 % of the tokens are no sinks at ε = 3 (the
# paper's number); more than half of the attention lies on sinks ("most").
FEW_TOKENS = Claim(
    name="few-tokens",
    title="Few tokens take most attention",
    source="§4.2, Fig. 3, 9 and 10",
    says="Sinks exist in every diffusion language model, and few tokens take most of the attention.",
    expected="a sink in most heads, at least 96 % of the tokens no sinks, most attention on the others",
    limits=(
        "The paper's 96 % is for canvases of 64 tokens. These canvases have 90 (no shots) to 390 tokens (five shots), "
        "where an excess of 3 queries is a smaller share of the attention. The untrained network has about as many heads with a sink "
        "because its scale was so chosen; at the trained weights' scale it has none."
    ),
    parts=(
        Part(
            "steps × heads that have a sink", Number(DIFFUSION, "movement.steps_with_sink"), "above", 0.5, "with a sink"
        ),
        Part(
            "tokens that are no sinks",
            Number(DIFFUSION, "epsilon.not_sinks", (("positions", "any"),)),
            "above",
            0.96,
            "tokens no sinks",
        ),
        Part(
            "attention that sinks receive",
            Number(DIFFUSION, "concentration.share_on_sinks"),
            "above",
            0.5,
            "attention on sinks",
        ),
        Part("sinks per head", Number(DIFFUSION, "concentration.sinks_per_head"), "above", 0.0),
        Part(
            "autoregressive model: steps × heads that have a sink (newest 16 queries)",
            Number(AUTOREGRESSIVE, "movement.steps_with_sink"),
            "above",
            0.5,
        ),
        Part(
            "autoregressive model: attention that sinks receive",
            Number(AUTOREGRESSIVE, "concentration.share_on_sinks"),
            "above",
            0.5,
        ),
        Part(
            "autoregressive model: layers × heads where a key that 64 queries see has a mean α above 0.3 (Gu et al., Sink_*)",
            Number(AUTOREGRESSIVE, "concentration.gu_rate"),
            "above",
            0.5,
        ),
        Part(
            "autoregressive model: the same of the first token (Sink_1)",
            Number(AUTOREGRESSIVE, "concentration.gu_rate_first"),
            "above",
            0.5,
        ),
    ),
)

# Rule: Sinks per head fall with depth (slope from the first layer, 0, to the last, 1, below 0), and the main sink's
# column grows (slope above 0).
BY_DEPTH = (
    Part(
        "sinks per head: slope from the first layer (0) to the last (1)",
        Number(DIFFUSION, "concentration.number_by_depth"),
        "below",
        0.0,
        "number by depth",
    ),
    Part(
        "main sink's column: slope from the first layer (0) to the last (1)",
        Number(DIFFUSION, "concentration.strength_by_depth"),
        "above",
        0.0,
        "strength by depth",
    ),
)
DEPTH = Claim(
    name="depth",
    title="Deeper layers have fewer, stronger sinks",
    source="§4.2, Fig. 5",
    says="The number of sinks falls with depth, and their strength rises.",
    expected="fewer and stronger",
    limits="The model has six layers. A slope says nothing about a single layer that stands out.",
    parts=(*BY_DEPTH, *beside(BY_DEPTH)),
)

# Rule: Of each class: its share of the sinks over its share of the canvas is above 1 ("frequent" misleads where
# much of the canvas is masks). Semantic: in a conditional-logit model of which token is the main sink, token class
# gains more bits per choice on held-out prompts, given position and mask state, than position does given class and
# mask state.
PLACEMENT = Claim(
    name="placement",
    title="Sinks stand on new lines, masks and punctuation",
    source="§4.2, Table 2",
    says="LLaDA's sinks stand on new lines, masks and punctuation. The token decides where they stand, more than the place.",
    expected="each class oftener than its share of the canvas, token class worth more than position",
    limits=(
        "The lab's texts have one new line after each line of working and little other white space. In texts this "
        "regular, class and place go together, and the model can separate them only as far as they vary."
    ),
    parts=(
        *(ratio(*one) for one in (("newline", "new lines"), ("mask", "masks"), ("punctuation", "punctuation"))),
        Part(
            "choice of the sink: gain from the class minus gain from the position",
            Number(DIFFUSION, "choice.class"),
            "above",
            0.0,
            "class minus position, bits",
            minus=Number(DIFFUSION, "choice.position"),
        ),
        Part("choice of the sink: gain from the class", Number(DIFFUSION, "choice.class"), "above", 0.0),
        Part("choice of the sink: gain from the position", Number(DIFFUSION, "choice.position"), "above", 0.0),
        Part("choice of the sink: gain from being masked or not", Number(DIFFUSION, "choice.mask_state"), "above", 0.0),
        *(ratio(*one) for one in (("special", "special tokens"), ("digit", "digits"), ("word", "words"))),
    ),
)

# Rule: The main sinks of one head in two prompts fall into the same tenth of the canvas, and on the same class of
# token, more often than those of two different heads (percentile interval over prompts above 0, both).
CONSISTENCY = Claim(
    name="consistency",
    title="A head keeps its pattern from prompt to prompt",
    source="§4.2",
    says="LLaDA's patterns are consistent from prompt to prompt.",
    expected="a head agrees with itself in another prompt more than with other heads",
    limits="All prompts are word problems. They vary less than the paper's prompts.",
    parts=(
        Part(
            "main sinks of one head in two prompts stand in the same tenth of the canvas, minus the same for two different heads",
            Number(DIFFUSION, "agreement.prompts_place_over_other_heads"),
            "above",
            0.0,
            "same place",
        ),
        Part(
            "main sinks of one head in two prompts stand on the same class of token, minus the same for two different heads",
            Number(DIFFUSION, "agreement.prompts_class_over_other_heads"),
            "above",
            0.0,
            "same class",
        ),
        Part(
            "main sinks of one head in two prompts stand in the same tenth of the canvas",
            Number(DIFFUSION, "agreement.prompts_place"),
            "above",
            0.1,
        ),
        Part(
            "main sinks of one head in two prompts stand on the same class of token",
            Number(DIFFUSION, "agreement.prompts_class"),
            "above",
            0.5,
        ),
    ),
)

# Rule: More than half of the other tokens have a larger value than a head's largest sink; and sinks contribute less
# to Σ c·‖v‖ than their share of the attention (ratio below 1). The same of ‖W_O v‖, what the head's output
# projection makes of a value: these two parts came after the first run of the others, with the bounds of the
# others.
VALUES = (
    Part(
        "other tokens whose value norm is larger than the main sink's",
        Number(DIFFUSION, "norms.value_norm_auc"),
        "above",
        0.5,
        "others with larger values",
    ),
    Part(
        "what sinks contribute, over what they would with the mean value norm of their head",
        Number(DIFFUSION, "norms.contribution_over_attention"),
        "below",
        1.0,
        "contribution over attention",
    ),
    Part(
        "other tokens whose output norm is larger than the main sink's",
        Number(DIFFUSION, "norms.output_norm_auc"),
        "above",
        0.5,
        "others with larger output norms",
    ),
    Part(
        "what sinks contribute behind the output projection, over what they would with the mean output norm of their head",
        Number(DIFFUSION, "norms.output_contribution_over_attention"),
        "below",
        1.0,
        "contribution of output norms over attention",
    ),
)
SMALL_VALUES = Claim(
    name="small-values",
    title="Sinks have small values",
    source="paper 2, Fig. 1",
    says="Sinks have low value norms, so attending to one is close to a no-op.",
    expected="small values, less contribution than attention",
    limits="A norm says how much a token adds, not whether anything reads it; `sinkscope roles` tests that head by head.",
    parts=(
        *VALUES,
        Part(
            "effect size of the value norm, sinks minus others",
            Number(DIFFUSION, "norms.value_norm_effect"),
            "below",
            0.0,
        ),
        Part("effect size of the key norm", Number(DIFFUSION, "norms.key_norm_effect"), "below", 0.0),
        Part("effect size of the hidden state's norm", Number(DIFFUSION, "norms.hidden_norm_effect"), "above", 0.0),
        *beside(VALUES),
    ),
)

CLAIMS = (FEW_TOKENS, DEPTH, PLACEMENT, CONSISTENCY, SMALL_VALUES)
