"""Does a head keep its pattern from prompt to prompt?

Claim     LLaDA's patterns are consistent (arXiv 2510.15731, §4.2).
Rule      The main sinks of one head in two prompts fall into the same tenth of the canvas, and on the same class of token, more often than
          those of two different heads (percentile interval over prompts above 0, both).
Expected  Both.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="consistency",
    title="A head keeps its pattern from prompt to prompt",
    source="§4.2",
    says="LLaDA's patterns are consistent from prompt to prompt.",
    expected="a head agrees with itself in another prompt more than with other heads",
    limits="All prompts are word problems. They vary less than the paper's prompts.",
    parts=(
        Part(
            "main sinks of one head in two prompts stand in the same tenth of the canvas, minus the same for two different heads",
            Number("blocks-of-16", "agreement.prompts_place_over_other_heads"),
            "above",
            0.0,
            short="same place",
        ),
        Part(
            "main sinks of one head in two prompts stand on the same class of token, minus the same for two different heads",
            Number("blocks-of-16", "agreement.prompts_class_over_other_heads"),
            "above",
            0.0,
            short="same class",
        ),
        Part(
            "main sinks of one head in two prompts stand in the same tenth of the canvas",
            Number("blocks-of-16", "agreement.prompts_place"),
            "above",
            0.1,
            decides=False,
        ),
        Part(
            "main sinks of one head in two prompts stand on the same class of token",
            Number("blocks-of-16", "agreement.prompts_class"),
            "above",
            0.5,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
