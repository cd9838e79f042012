"""A trace with planted sinks that stay, wander and flip, and its autoregressive sibling."""

import numpy as np

from sinkscope.traces import TraceWriter, open_trace

STEPS, LAYERS, HEADS, PROMPT, LENGTH = 19, 2, 3, 11, 18
CAUSAL_STEPS = 17
POSITIONS = PROMPT + LENGTH
MASK = 0
VOCABULARY = ["<|mask|>", "\n", "<script>alert('x')</script>", " Tom", "$x$", "漢", "a very long token"]
STATIC, MOVING, FLIPPING, EMPTY = (0, 1), (1, 2), (1, 0), (0, 2)


def wandering_columns(seed=0):
    """[step, layer, head, key]: a static sink, one that moves a step at a time and stops, one that flips; three heads
    without.
    """
    columns = np.random.default_rng(seed).random((STEPS, LAYERS, HEADS, POSITIONS)).astype(np.float32) / 2
    for step in range(STEPS):
        columns[(step, *STATIC, 4)] = 9.5
        columns[(step, *MOVING, min(PROMPT + step, PROMPT + 12))] = 6 + step / 8
        columns[(step, *FLIPPING, (2, 8)[step % 2])] = 7.25
    return columns


def write_wandering(folder, columns, *, name="org/planted", causal=False, complete=True, **more):
    """A trace that commits one token a step from the left."""
    manifest = {
        "model": {"name": name, "family": "llada", "weight_hash": "0123abcd", "parameters": 12345},
        "causal": causal,
        "sampler": {"name": "llada", "length": LENGTH, "steps": STEPS},
        "prompt": "Is 1 < 2 & 3 > 2? <b>bold</b>",
        "prompt_length": PROMPT,
        "mask_id": MASK,
        "layers": [f"layers.{layer}" for layer in range(columns.shape[1])],
        "heads": columns.shape[2],
        "kv_heads": more["value_norms"].shape[2] if "value_norms" in more else columns.shape[2],
        "level": "columns",
        "dtype": "float32",
        "device": "cpu",
        "versions": {"python": "3.x"},
        "vocabulary": {str(token): text for token, text in enumerate(VOCABULARY)},
    }
    tokens = 1 + np.arange(POSITIONS) % (len(VOCABULARY) - 1)
    commits = [{PROMPT + step: 1 + step % (len(VOCABULARY) - 1)} for step in range(LENGTH)]
    commits += [{}] * (len(columns) - LENGTH)
    steps = [{"column_sums": sums} | {key: one[step] for key, one in more.items()} for step, sums in enumerate(columns)]
    how = {"complete": complete, **({"text": "5 < 6 & so on"} if complete else {})}
    return write_steps(folder, manifest, tokens[:PROMPT], commits[: len(columns)], steps, **how)


def write_steps(folder, manifest, prompt, commits, steps, **how):
    """A trace of a canvas that begins masked behind its prompt; ``commits`` {position: token} and tensors by step."""
    folder.mkdir(parents=True)
    writer, tokens = TraceWriter(folder, manifest), np.full(POSITIONS, MASK, np.int32)
    tokens[: len(prompt)] = prompt
    for commit, tensors in zip(commits, steps, strict=True):
        written = np.full(POSITIONS, -1, np.int32)
        written[list(commit)] = list(commit.values())
        masked, length = (tokens == MASK).astype(np.uint8), np.array(POSITIONS, np.int32)
        writer.add({"tokens": tokens.copy(), "masked": masked, "written": written, "lengths": length, **tensors})
        tokens = np.where(written >= 0, written, tokens)
    writer.close(**how)
    return open_trace(folder)


def write_causal(folder):
    """Columns that never move, and rows of the newest query that go to one token, and soon to another; fewer steps."""
    columns = wandering_columns(1)[:CAUSAL_STEPS]
    columns[:, MOVING[0], MOVING[1]] = 0.1
    columns[:, MOVING[0], MOVING[1], 3] = 8
    rows = np.full((CAUSAL_STEPS, LAYERS, HEADS, POSITIONS), 0.01, np.float32)
    for step in range(CAUSAL_STEPS):
        rows[(step, *MOVING, 3 if step < 7 else 13)] = 0.72
    return write_wandering(folder, columns, name="/somewhere/else/my-llama", causal=True, last_query=rows)
