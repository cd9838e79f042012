"""How one attention map is drawn."""

import numpy as np
from wandering import POSITIONS

from sinkscope.figures import attention_map


def test_a_causal_map_is_empty_above_its_diagonal(causal):
    seen = np.tri(POSITIONS)
    figure = attention_map(causal, 0, 1, 2, seen * causal.column_sums[0, 1, 2] / seen.sum(axis=0))
    image = figure.axes[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[np.triu_indices(POSITIONS, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(POSITIONS)].any()
