"""Do deeper layers have fewer and stronger sinks?

Claim     Deeper layers have fewer sinks, and stronger ones (arXiv 2510.15731, §4.2, Fig. 5).
Rule      Sinks per head fall with depth (slope from the first layer, 0, to the last, 1, below 0), and the main sink's column grows
          (slope above 0).
Expected  Both.
"""

from _claims import Claim, Number, Part, tell

CLAIM = Claim(
    name="depth",
    title="Deeper layers have fewer, stronger sinks",
    source="§4.2, Fig. 5",
    says="The number of sinks falls with depth, and their strength rises.",
    expected="fewer and stronger",
    limits="The model has six layers. A slope says nothing about a single layer that stands out.",
    parts=(
        Part(
            "sinks per head: slope from the first layer (0) to the last (1)",
            Number("blocks-of-16", "concentration.number_by_depth"),
            "below",
            0.0,
            short="number by depth",
        ),
        Part(
            "main sink's column: slope from the first layer (0) to the last (1)",
            Number("blocks-of-16", "concentration.strength_by_depth"),
            "above",
            0.0,
            short="strength by depth",
        ),
        Part(
            "autoregressive model: the slope of the sinks per head",
            Number("autoregressive", "concentration.number_by_depth"),
            "below",
            0.0,
            decides=False,
        ),
        Part(
            "autoregressive model: the slope of the main sink's column",
            Number("autoregressive", "concentration.strength_by_depth"),
            "above",
            0.0,
            decides=False,
        ),
    ),
)

if __name__ == "__main__":
    tell(CLAIM, __file__)
