"""Do sinks stand on certain tokens, and is it the token or the place?

Claim     LLaDA's sinks stand on new lines, masks and punctuation (Table 2), and their placement is semantic rather than positional
          (arXiv 2510.15731, §4.2).
Rule      Of each class: its share of the sinks over its share of the canvas is above 1 ("frequent" misleads where much of the canvas is
          masks). Semantic: in a conditional-logit model of which token is the main sink, token class gains more bits per choice on
          held-out prompts, given position and mask state, than position does given class and mask state.
Expected  Above 1 for all three, and class before position.
"""

from _claims import Claim, Number, Part, tell

EXPECTED = "composition.times_expected"

CLAIM = Claim(
    name="placement",
    title="Sinks stand on new lines, masks and punctuation",
    source="§4.2, Table 2",
    says="LLaDA's sinks stand on new lines, masks and punctuation. The token decides where they stand, more than the place.",
    expected="each class oftener than its share of the canvas, token class worth more than position",
    limits="The lab's texts have one new line after each line of working and little other white space. In texts this "
    "regular, class and place go together, and the model can separate them only as far as they vary.",
    parts=(
        Part(
            "new lines: share among sinks over share of the canvas",
            Number("blocks-of-16", EXPECTED, (("class", "newline"),)),
            "above",
            1.0,
            short="new lines",
        ),
        Part(
            "masks: the same ratio", Number("blocks-of-16", EXPECTED, (("class", "mask"),)), "above", 1.0, short="masks"
        ),
        Part(
            "punctuation: the same ratio",
            Number("blocks-of-16", EXPECTED, (("class", "punctuation"),)),
            "above",
            1.0,
            short="punctuation",
        ),
        Part(
            "choice of the sink: gain from the class minus gain from the position",
            Number("blocks-of-16", "choice.class"),
            "above",
            0.0,
            minus=Number("blocks-of-16", "choice.position"),
            short="class minus position, bits",
        ),
        Part(
            "choice of the sink: gain from the class",
            Number("blocks-of-16", "choice.class"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "choice of the sink: gain from the position",
            Number("blocks-of-16", "choice.position"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "choice of the sink: gain from being masked or not",
            Number("blocks-of-16", "choice.mask_state"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "special tokens: the same ratio",
            Number("blocks-of-16", EXPECTED, (("class", "special"),)),
            "above",
            1.0,
            decides=False,
        ),
        Part(
            "digits: the same ratio",
            Number("blocks-of-16", EXPECTED, (("class", "digit"),)),
            "above",
            1.0,
            decides=False,
        ),
        Part(
            "words: the same ratio", Number("blocks-of-16", EXPECTED, (("class", "word"),)), "above", 1.0, decides=False
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
