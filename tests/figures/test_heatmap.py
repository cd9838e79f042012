"""How one attention map is drawn."""

from types import SimpleNamespace

import numpy as np
from sudden import POSITIONS

from sinkscope.figures import single_map


def test_a_causal_map_is_empty_above_its_diagonal(sudden):
    causal = as_causal(sudden)
    figure = single_map(causal, np.tri(POSITIONS, dtype=np.float32) / 9, 0, 0, 1)
    image = figure.axes[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[np.triu_indices(POSITIONS, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(POSITIONS)].any()


def as_causal(trace):
    manifest = {**trace.manifest, "causal": True}
    return SimpleNamespace(manifest=manifest, causal=True, tokens=trace.tokens, token_text=trace.token_text)
