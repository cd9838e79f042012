"""A trace with planted sinks that jump, drift, flash and split, and maps that fit it."""

import numpy as np
from wandering import write_steps

STEPS, LAYERS, HEADS, KV_HEADS, PROMPT, LENGTH, MASK = 12, 2, 4, 2, 13, 16, 0
POSITIONS = PROMPT + LENGTH
ORDER = PROMPT + np.random.default_rng(1).permutation(LENGTH)
"""The positions in the order in which they are committed, one a step."""


def sudden_columns():
    """Layer 0: head 0 stands, head 1 jumps once, head 2 drifts left; layer 1: head 3 flashes in step 6, head 1 splits
    in step 5.
    """
    rng = np.random.default_rng(2)
    columns = rng.random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32) * 0.4
    masked_columns = columns * 0.3
    for step in range(STEPS):
        columns[step, 0, 0, 4] = 9
        columns[step, 0, 1, 3 if step < 7 else 25] = 8
        columns[step, 0, 2, 24 - step] = 7
        columns[step, 1, 2, (11, 12)[step % 2]] = 6
    columns[6, 1, 3, 19] = 11
    columns[5, 1, 1, [2, 20]] = 3
    masked_columns[5, 1, 1, [2, 20]] = [0.1, 2.9]
    return columns, masked_columns


def write_sudden(folder, columns, masked_columns, newest=None, sink_token=None, **more):
    """Write a trace; with ``newest`` columns one of block diffusion, whose sinks are followed in these."""
    rng = np.random.default_rng(5)
    manifest = {
        "model": {"name": "org/planted"},
        "causal": False,
        "prompt_length": PROMPT,
        "mask_id": MASK,
        "layers": ["a.0", "a.1"],
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "vocabulary": {str(token): f"w{token}" for token in range(9)},
        **more,
    }

    def tensors(step):
        value_norms = rng.random((LAYERS, KV_HEADS, POSITIONS)).astype(np.float32) + 5
        found = {"column_sums": columns[step], "column_sums_masked": masked_columns[step], "value_norms": value_norms}
        found["self_attention"] = rng.random((LAYERS, HEADS, POSITIONS)).astype(np.float32)
        found["hidden_norms"] = rng.random((LAYERS, POSITIONS)).astype(np.float32)
        beside = {"newest_columns": newest, "sink_token_columns": sink_token}
        return found | {name: one[step] for name, one in beside.items() if one is not None}

    commits = [{ORDER[step]: 1 + step % 8} for step in range(len(columns))]
    steps = map(tensors, range(len(columns)))
    return write_steps(folder, manifest, 1 + np.arange(PROMPT) % 8, commits, steps, complete=True)


def map_of(trace, step, layer, head):
    """A map with the recorded columns: every masked query has the same row, and so has every other one."""
    columns, masked = trace.column_sums[step, layer, head], trace.masked[step].astype(bool)
    if "column_sums_masked" not in trace.tensors or not masked.any():
        return np.tile(columns / len(columns), (len(columns), 1))
    of_masked = trace.column_sums_masked[step, layer, head]
    return np.where(masked[:, None], of_masked / masked.sum(), (columns - of_masked) / (~masked).sum())
