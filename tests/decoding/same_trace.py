"""Compares a trace with that of the same prompt written alone: equal tokens, and numbers as close as another batch
allows.
"""

import numpy as np
import torch
from closeness import assert_close, probabilities_of

MEASURED = {"column_sums", "self_attention", "value_norms", "key_norms", "hidden_norms", "written", "confidence"}


def assert_same_trace(mine, theirs, network):
    assert mine.tensors == theirs.tensors and set(mine.tensors) >= MEASURED
    shares = probabilities_of(network, torch.from_numpy(theirs.tokens[-1:].astype(np.int64)))
    for name in mine.tensors:
        found, expected = getattr(mine, name)[:], getattr(theirs, name)[:]
        if expected.dtype.kind == "f":
            assert_close(found, expected, **shares, what=name)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=name)
