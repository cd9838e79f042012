"""Do masked and unmasked queries keep separate sinks, and switch over as tokens are unmasked?

Claim     Masked and unmasked queries can have separate sinks, and switch over as tokens are unmasked (arXiv 2510.15731, §4.2, Fig. 6a).
Rule      A group's sink is the arg-max of its mean column, from 8 queries on. Where both groups have one, they differ in more than a
          tenth of the steps × heads; the difference lasts (persistence above 0, which is what chance gives); and it is not the prompt's
          doing: masked queries and those written so far differ in more than a tenth as well. Switching over: where they differ, the
          head's largest column is the masked queries' sink more often in the first third of the steps than in the last.
Expected  All four.
"""

from claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="query-groups",
    title="Masked and unmasked queries keep separate sinks",
    source="§4.2, Fig. 6a",
    says="Masked and unmasked queries can keep separate sinks, and switch over as tokens are unmasked.",
    expected="separate, lasting, and switching over",
    limits="On these canvases unmasked queries are mostly the prompt's. The largest column of a head is that of the larger group as a "
    "rule, so switching over may say no more than that the groups' sizes change. Prompt and written queries, both unmasked, differ nearly "
    "as often, and any two lasting groups of unlike queries would: this does not show that being masked is what parts them.",
    parts=(
        Part("masked and unmasked queries' sinks differ", Number("blocks-of-16", "groups.split"), "above", 0.1),
        Part("a group's sink is found again in its own group", Number("blocks-of-16", "groups.persistence"), "above", 0.0),
        Part("masked and written queries' sinks differ", Number("blocks-of-16", "groups.split_from_written"), "above", 0.1),
        Part(
            "the head follows its masked queries, first third minus last",
            Number("blocks-of-16", "groups.follows_masked_over_steps", (("third", "first"),)),
            "above",
            0.0,
            minus=Number("blocks-of-16", "groups.follows_masked_over_steps", (("third", "last"),)),
        ),
        Part("masked and prompt queries' sinks differ", Number("blocks-of-16", "groups.split_from_prompt"), "above", 0.1, decides=False),
        Part(
            "prompt and written queries' sinks differ", Number("blocks-of-16", "groups.split_prompt_written"), "above", 0.1, decides=False
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
