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
        one, length = {name: np.asarray(getattr(trace, name)[step]) for name in names}, int(trace.lengths[step])
        one = {name: value[..., :length] if value.ndim and name != "written" else value for name, value in one.items()}
        writer.add({name: value.astype(types.get(value.dtype.kind, np.int32)) for name, value in one.items()})
        if step == 4:
            writer.flush()
    writer.close(complete=True)
    return folder


def within_binomial(found, trials, rate=0.05, level=0.999):
    """Return whether the number of rejections is consistent with the stated rate (one-sided: fewer is fine)."""
    from scipy.stats import binom

    return found <= binom.ppf(level, trials, rate)


def causal_map(width, sink=None, share=0.5, window=None):
    """Uniform causal attention [query, key], but for a key that gets a share from every query that sees it."""
    query, key = np.indices((width, width))
    seen = (key <= query) & (key > query - (window or width))
    others = seen & (key != sink)
    maps = others / np.maximum(others.sum(axis=1, keepdims=True), 1)
    if sink is not None:
        to_sink = seen[:, sink] * np.where(others.any(axis=1), share, 1)
        maps *= 1 - to_sink[:, None]
        maps[:, sink] = to_sink
    return maps


def causal_trace(steps, *layers):
    """A causal trace of the maps of each layer [head, query, key]; its last step holds all queries."""
    maps = np.array(layers, np.float32)
    width, lengths = maps.shape[-1], np.arange(maps.shape[-1] - steps + 1, maps.shape[-1] + 1)
    columns = np.full((steps, *maps.shape[:2], width), np.nan, np.float32)
    rows = columns.copy()
    for step, length in enumerate(lengths):
        columns[step, ..., :length] = maps[..., :length, :length].sum(axis=-2)
        rows[step, ..., :length] = maps[..., length - 1, :length]
    trace = make_trace(columns, prompt_length=int(lengths[0]), seed=width)
    trace.lengths, trace.causal, trace.last_query = lengths, True, rows
    trace.tokens = np.where(np.arange(width) < lengths[:, None], NEWLINE + np.arange(width) % 6, -1)
    trace.masked = np.zeros(trace.tokens.shape, np.uint8)
    return trace


def dense_uniform(trace, excess, unit="queries"):
    """Sinks by the rule ``uniform`` in a causal trace, by loops: of column sums, of the newest 16 queries where they
    count; and the excess of both.
    """
    lengths = (~np.isnan(trace.column_sums[:, 0, 0])).sum(axis=-1)
    first, window = min(15, (trace.steps + 1) // 2 - 1), np.nan_to_num(trace.last_query)
    window = np.array([window[max(0, step - 15) : step + 1].sum(axis=0) for step in range(trace.steps)])
    expected = np.full((2, trace.steps, 1, 1, trace.column_sums.shape[-1]), np.nan)
    for step, length in enumerate(lengths):
        rows = lengths[max(0, step - 15) : step + 1]
        for key in range(length):
            expected[0, step, ..., key] = sum(1 / (query + 1) for query in range(key, length))
            expected[1, step, ..., key] = sum(1 / row for row in rows if key < row)
    found = []
    for columns, uniform, full in (
        (trace.column_sums, expected[0], 1),
        (window, expected[1], np.minimum(np.arange(trace.steps) + 1, 16) / 16),
    ):
        over = (columns - uniform) * (lengths / np.maximum(lengths - 1, 1))[:, None, None, None]
        total = np.nansum(np.where(np.isnan(uniform), np.nan, columns), axis=-1, keepdims=True)
        found.append(over * 100 / total if unit == "percent" else over / np.reshape(full, (-1, 1, 1, 1)))
    with np.errstate(invalid="ignore"):
        selected, moving = (one > excess for one in found)
    moving[:first] = False
    return selected, moving, *found


def values_at(statistic, prompt, threshold):
    """The numbers of one statistic at one threshold, without the threshold in their places."""
    found = statistic.values(prompt).items()
    return {(name, place[2:]): value for (name, place), value in found if place[:2] == threshold.place}
