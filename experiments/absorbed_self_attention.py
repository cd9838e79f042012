"""Does a sink take the attention that its queries would pay themselves?

Claim     A sink absorbs the self-attention of its queries (arXiv 2510.15731, Fig. 4b).
Rule      Within each head, over the steps: self-attention of the other tokens, as a share of what the sink leaves over, falls as the sink
          grows (slope below 0). A sink that takes from all keys alike gives 0.
Expected  Below 0.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="absorbed-self-attention",
    title="A sink absorbs the self-attention of its queries",
    source="Fig. 4b",
    says="Where a sink grows, its queries attend less to themselves.",
    expected="self-attention is taken first",
    limits="The slope is taken within heads, over the steps. Other things change with the steps too, such as the number of masks.",
    parts=(
        Part(
            "self-attention of the other queries, over what the sink leaves them: slope against the sink's share",
            Number("blocks-of-16", "groups.self_attention_absorbed"),
            "below",
            0.0,
            short="slope",
        ),
        Part(
            "part of the sink's column that comes from its own query",
            Number("blocks-of-16", "groups.self_share"),
            "below",
            0.5,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
