"""Are sinks small in value space, so that attending to one is close to doing nothing?

Claim     Sinks have low value norms, so attention to them is close to a no-op (arXiv 2601.19657, Fig. 1).
Rule      More than half of the other tokens have a larger value than a head's largest sink; and sinks contribute less to Σ c·‖v‖ than
          their share of the attention (ratio below 1). The same of ‖W_O v‖, what the head's output projection makes of a value: these
          two parts came after the first run of the others, with the bounds of the others.
Expected  Both.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="small-values",
    title="Sinks have small values",
    source="paper 2, Fig. 1",
    says="Sinks have low value norms, so attending to one is close to a no-op.",
    expected="small values, less contribution than attention",
    limits="A norm says how much a token adds, not whether anything reads it; `sinkscope roles` tests that head by head.",
    parts=(
        Part(
            "other tokens whose value norm is larger than the main sink's",
            Number("blocks-of-16", "norms.value_norm_auc"),
            "above",
            0.5,
            short="others with larger values",
        ),
        Part(
            "what sinks contribute, over what they would with the mean value norm of their head",
            Number("blocks-of-16", "norms.contribution_over_attention"),
            "below",
            1.0,
            short="contribution over attention",
        ),
        Part(
            "other tokens whose output norm is larger than the main sink's",
            Number("blocks-of-16", "norms.output_norm_auc"),
            "above",
            0.5,
            short="others with larger output norms",
        ),
        Part(
            "what sinks contribute behind the output projection, over what they would with the mean output norm of their head",
            Number("blocks-of-16", "norms.output_contribution_over_attention"),
            "below",
            1.0,
            short="contribution of output norms over attention",
        ),
        Part(
            "effect size of the value norm, sinks minus others",
            Number("blocks-of-16", "norms.value_norm_effect"),
            "below",
            0.0,
            decides=False,
        ),
        Part(
            "effect size of the key norm", Number("blocks-of-16", "norms.key_norm_effect"), "below", 0.0, decides=False
        ),
        Part(
            "effect size of the hidden state's norm",
            Number("blocks-of-16", "norms.hidden_norm_effect"),
            "above",
            0.0,
            decides=False,
        ),
        Part(
            "autoregressive model: other tokens whose value norm is larger than the main sink's",
            Number("autoregressive", "norms.value_norm_auc"),
            "above",
            0.5,
            decides=False,
        ),
        Part(
            "autoregressive model: what sinks contribute, over what they would with the mean value norm",
            Number("autoregressive", "norms.contribution_over_attention"),
            "below",
            1.0,
            decides=False,
        ),
        Part(
            "autoregressive model: other tokens whose output norm is larger than the main sink's",
            Number("autoregressive", "norms.output_norm_auc"),
            "above",
            0.5,
            decides=False,
        ),
        Part(
            "autoregressive model: what sinks contribute behind the output projection, over what they would with the mean output norm",
            Number("autoregressive", "norms.output_contribution_over_attention"),
            "below",
            1.0,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
