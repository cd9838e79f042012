"""Traces with sinks planted in them, and null traces: what `sinkscope.sinks` reads of a trace, as plain arrays."""

from types import SimpleNamespace

import numpy as np

MASK, END, NEWLINE, SPACE, DOT, SEVEN, THE, APPLE = range(1, 9)
VOCABULARY = {"1": "<|mask|>", "2": "</s>", "3": "\n", "4": " ", "5": ".", "6": "7", "7": " the", "8": "apple"}


def make_trace(
    columns, *, prompt_length=10, block=5, order="left", seed=0, prompt="", tokens=None, commit_every=1, **more
):
    """A diffusion trace around column sums [step, layer, head, key].

    One token is committed every ``commit_every`` steps, ``order`` left to right, right to left in blocks, or "random".
    """
    steps, _, _, width = columns.shape
    rng = np.random.default_rng([seed, 99])
    answer = np.arange(prompt_length, width)
    if order == "right":
        answer = answer.reshape(-1, block)[::-1].ravel()
    if order == "random":
        answer = rng.permutation(answer)
    final = rng.integers(NEWLINE, APPLE + 1, width) if tokens is None else np.asarray(tokens)
    canvas = np.where(np.arange(width) < prompt_length, final, MASK)
    rows, written = [], np.full((steps, width), -1, np.int32)
    for step in range(steps):
        rows.append(canvas.copy())
        if step % commit_every == 0 and step // commit_every < len(answer):
            at = answer[step // commit_every]
            written[step, at] = canvas[at] = final[at]
    canvases = np.array(rows)
    manifest = {
        "prompt": prompt or str(seed),
        "prompt_length": prompt_length,
        "mask_id": MASK,
        "eos_id": END,
        "sampler": {"block": block},
        "vocabulary": VOCABULARY,
    }
    return SimpleNamespace(
        steps=steps,
        causal=False,
        column_sums=columns.astype(np.float32),
        tokens=canvases,
        masked=(canvases == MASK).astype(np.uint8),
        written=written,
        lengths=np.full(steps, width),
        manifest=manifest,
        **more,
    )


def sink_at(position, layers=2, heads=3, width=30, strength=12.0, noise=0.0, seed=0):
    """Column sums with one sink a step, the same in every head; −1 for none. They add up to ``width``.

    ``position``: [step], or [step, layer, head].
    """
    position = np.asarray(position)
    if position.ndim == 1:
        position = np.broadcast_to(position[:, None, None], (len(position), layers, heads))
    rng = np.random.default_rng(seed)
    columns = 1 + noise * rng.random((*position.shape, width))
    there = position >= 0
    share = strength / width
    planted = columns.copy()
    np.put_along_axis(planted, np.maximum(position, 0)[..., None], 0.0, axis=-1)
    planted *= (1 - share) / planted.sum(axis=-1, keepdims=True)
    np.put_along_axis(planted, np.maximum(position, 0)[..., None], share, axis=-1)
    return width * np.where(there[..., None], planted, columns / columns.sum(axis=-1, keepdims=True))


def random_columns(seed, steps=12, layers=2, heads=3, width=30, sharpness=0.1):
    """Return columns without structure: independent between steps, layers and heads."""
    return width * np.random.default_rng(seed).dirichlet(np.full(width, sharpness), (steps, layers, heads))


def extras(columns, seed=0, kv_heads=1):
    """The other tensors of a trace, random."""
    rng = np.random.default_rng([seed, 5])
    steps, layers, _, width = columns.shape
    return {
        "column_sums_masked": (columns * rng.random(columns.shape)).astype(np.float32),
        "column_sums_prompt": (columns * 0.2 * rng.random(columns.shape)).astype(np.float32),
        "self_attention": (0.05 * rng.random(columns.shape)).astype(np.float32),
        "value_norms": rng.random((steps, layers, kv_heads, width)).astype(np.float32) + 0.5,
        "key_norms": rng.random((steps, layers, kv_heads, width)).astype(np.float32) + 0.5,
        "hidden_norms": rng.random((steps, layers, width)).astype(np.float32) + 0.5,
        "output_norms": rng.random(columns.shape).astype(np.float32) + 0.5,
    }


def write_trace(folder, trace, **more):
    """Write a planted trace as a recorder does; ``more`` goes into its manifest."""
    from sinkscope.traces import TraceWriter

    folder.mkdir(parents=True)
    _, layers, heads, _ = trace.column_sums.shape
    names = [name for name, one in vars(trace).items() if isinstance(one, np.ndarray)]
    about = {"causal": False, "layers": [f"layers.{one}" for one in range(layers)], "heads": heads, "kv_heads": 1}
    writer = TraceWriter(folder, {**trace.manifest, **about, **more})
    types = {"f": np.float32, "u": np.uint8}
    for step in range(trace.steps):
        one = {name: np.asarray(getattr(trace, name)[step]) for name in names}
        writer.add({name: value.astype(types.get(value.dtype.kind, np.int32)) for name, value in one.items()})
        if step == 4:
            writer.flush()
    writer.close(complete=True)
    return folder


def within_binomial(found, trials, rate=0.05, level=0.999):
    """Return whether the number of rejections is consistent with the stated rate (one-sided: fewer is fine)."""
    from scipy.stats import binom

    return found <= binom.ppf(level, trials, rate)


def values_at(statistic, prompt, threshold):
    """The numbers of one statistic at one threshold, without the threshold in their places."""
    found = statistic.values(prompt).items()
    return {(name, place[2:]): value for (name, place), value in found if place[:2] == threshold.place}
