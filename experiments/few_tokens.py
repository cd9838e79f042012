"""Do few tokens take most attention?

Claim     Sinks exist in every diffusion language model: few tokens take most of the attention (arXiv 2510.15731, §4.2, Fig. 3, 9, 10).
Rule      Eq. 3 holds in more than half of all steps × heads; at least 96 % of the tokens are no sinks at ε = 3 (the paper's number);
          more than half of the attention lies on sinks ("most").
Expected  All three.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="few-tokens",
    title="Few tokens take most attention",
    source="§4.2, Fig. 3, 9 and 10",
    says="Sinks exist in every diffusion language model, and few tokens take most of the attention.",
    expected="a sink in most heads, at least 96 % of the tokens no sinks, most attention on the others",
    limits="The paper's 96 % is for canvases of 64 tokens. These canvases have 260 to 390 tokens, where an excess of 3 "
    "queries is a smaller share of the attention.",
    parts=(
        Part("steps × heads that have a sink", Number("blocks-of-16", "movement.steps_with_sink"), "above", 0.5),
        Part(
            "tokens that are no sinks",
            Number("blocks-of-16", "epsilon.not_sinks", (("positions", "any"), ("unit", "queries"), ("excess", 3.0))),
            "above",
            0.96,
        ),
        Part("attention that sinks receive", Number("blocks-of-16", "concentration.share_on_sinks"), "above", 0.5),
        Part(
            "autoregressive model: steps × heads that have a sink (newest 16 queries)",
            Number("autoregressive", "movement.steps_with_sink"),
            "above",
            0.5,
            decides=False,
        ),
        Part(
            "autoregressive model: attention that sinks receive",
            Number("autoregressive", "concentration.share_on_sinks"),
            "above",
            0.5,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
