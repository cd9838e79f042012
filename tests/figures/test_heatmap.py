"""How one attention map is drawn."""

from types import SimpleNamespace

import numpy as np
from sudden import POSITIONS

from sinkscope.figures import attention_map


def test_a_causal_map_is_empty_above_its_diagonal(sudden):
    causal = as_causal(sudden)
    figure = attention_map(causal, 0, 0, 1, np.tri(POSITIONS, dtype=np.float32) / POSITIONS)
    image = figure.axes[0].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[np.triu_indices(POSITIONS, 1)].all()
    assert not np.ma.getmaskarray(image)[np.tril_indices(POSITIONS)].any()


def as_causal(trace):
    manifest = {**trace.manifest, "causal": True}
    same = {name: getattr(trace, name) for name in ("tokens", "token_text", "lengths", "steps", "layers", "heads", "folder")}
    return SimpleNamespace(manifest=manifest, causal=True, **same)
