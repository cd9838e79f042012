"""What hiding did, as `Effect` counts it."""

import numpy as np

import sinkscope
from sinkscope.interventions import HidePositions, compose


def test_rules_together_are_judged_by_what_they_hide_together(diffusion):
    """The same keys, by one rule, by two, or by two that both name some of them."""
    ways = (HidePositions([3, 4]), compose(HidePositions([3]), HidePositions([4])), compose(HidePositions([3, 4]), HidePositions([4])))
    effects = []
    for rule in ways:
        with rule(diffusion) as hiding:
            sinkscope.generate(diffusion, "Q: Tom has 7 apples.\nA:", length=8)
        effects.append(hiding.effect)
    for effect in effects[1:]:
        for name in ("hits", "ranked", "hidden"):
            np.testing.assert_array_equal(getattr(effect, name), getattr(effects[0], name))
    assert 0 < effects[0].hits.sum() < effects[0].ranked.sum() == effects[0].hidden.sum()
