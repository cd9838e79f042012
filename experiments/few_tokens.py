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
    limits="The paper's 96 % is for canvases of 64 tokens. These canvases have 90 (no shots) to 390 tokens (five shots), "
    "where an excess of 3 queries is a smaller share of the attention.",
    parts=(
        Part(
            "steps × heads that have a sink",
            Number("blocks-of-16", "movement.steps_with_sink"),
            "above",
            0.5,
            short="with a sink",
        ),
        Part(
            "tokens that are no sinks",
            Number("blocks-of-16", "epsilon.not_sinks", (("positions", "any"),)),
            "above",
            0.96,
            short="tokens no sinks",
        ),
        Part(
            "attention that sinks receive",
            Number("blocks-of-16", "concentration.share_on_sinks"),
            "above",
            0.5,
            short="attention on sinks",
        ),
        Part("sinks per head", Number("blocks-of-16", "concentration.sinks_per_head"), "above", 0.0, decides=False),
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
        Part(
            "autoregressive model: layers × heads where a key that 64 queries see has a mean α above 0.3 (Gu et al., Sink_*)",
            Number("autoregressive", "concentration.gu_rate"),
            "above",
            0.5,
            decides=False,
        ),
        Part(
            "autoregressive model: the same of the first token (Sink_1)",
            Number("autoregressive", "concentration.gu_rate_first"),
            "above",
            0.5,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
