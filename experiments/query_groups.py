"""Do masked and unmasked queries keep separate sinks, and switch over as tokens are unmasked?

Claim     Masked and unmasked queries can have separate sinks, and switch over as tokens are unmasked (arXiv 2510.15731, §4.2, Fig. 6a).
Rule      A group's sink is the arg-max of its mean column, from 8 queries on. Where both groups have one, they differ in more than a
          tenth of the steps × heads; the difference lasts (persistence above 0, which is what chance gives); and it is not the prompt's
          doing: masked queries and those written so far differ in more than a tenth as well. Switching over: where they differ, the
          head's largest column is the masked queries' sink more often in the first third of the steps than in the last.
Expected  All four.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="query-groups",
    title="Masked and unmasked queries keep separate sinks",
    source="§4.2, Fig. 6a",
    says="Masked and unmasked queries can have separate sinks, and the head switches from one to the other as tokens are written.",
    expected="separate, lasting, and switching over",
    limits="Behind a shot and more, most unmasked queries belong to the prompt. The largest column of a head is usually that of "
    "the larger group, so switching over may only show that the groups change in size. Prompt and written queries, "
    "both unmasked, have different sinks nearly as often, and so would any two lasting groups of unlike queries. "
    "So this does not show that being masked is what separates them.",
    parts=(
        Part(
            "masked and unmasked queries have different sinks",
            Number("blocks-of-16", "groups.split"),
            "above",
            0.1,
            short="masked, unmasked differ",
        ),
        Part(
            "a group's sink is found one step later in its own group more often than in the other",
            Number("blocks-of-16", "groups.persistence"),
            "above",
            0.0,
            short="lasting",
        ),
        Part(
            "masked and written queries have different sinks",
            Number("blocks-of-16", "groups.split_from_written"),
            "above",
            0.1,
            short="masked, written differ",
        ),
        Part(
            "the head's largest column is the masked queries' sink: first third of the steps minus last third",
            Number("blocks-of-16", "groups.follows_masked_over_steps", (("third", "first"),)),
            "above",
            0.0,
            minus=Number("blocks-of-16", "groups.follows_masked_over_steps", (("third", "last"),)),
            short="switching",
        ),
        Part(
            "masked and prompt queries have different sinks",
            Number("blocks-of-16", "groups.split_from_prompt"),
            "above",
            0.1,
            decides=False,
        ),
        Part(
            "prompt and written queries have different sinks",
            Number("blocks-of-16", "groups.split_prompt_written"),
            "above",
            0.1,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
