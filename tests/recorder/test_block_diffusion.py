"""Block diffusion behind a cache: what columns, Eq. 3, movement and hiding mean (docs/models.md).

One definition for all samplers: the column of a key is what it received from the newest row of every query. A diffusion
model makes all rows anew in every step, an autoregressive model one, block diffusion those of the running block.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "decoding"))

from seeded_models import seeded_model

import sinkscope
from sinkscope.attention import Watcher, subscribed

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9]


class Maps(Watcher):
    """Dense attention of every layer, by five lines: [layer, head, query, key]."""

    def __init__(self, block):
        self.block, self.found = block, []

    def watch(self, call, columns):
        key = call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1)
        scores = call.query.double() @ key.double().transpose(-1, -2) / call.query.shape[-1] ** 0.5
        number = torch.arange(scores.shape[-1]) // self.block
        self.found.append(scores.masked_fill(number[None, :] > number[:, None], -torch.inf).softmax(-1)[0])


@torch.no_grad()
def dense_maps(network, tokens, block):
    """All maps of one canvas, computed at once and without a cache: float64 [layer, head, query, key]."""
    with network.model.blocks_of(block), subscribed(network, maps := Maps(block)):
        network(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False)
    return torch.stack(maps.found).numpy()


def recorded(model, folder, prompt=PROMPT, **settings):
    with sinkscope.recording(model, out=folder):
        sinkscope.generate(model, prompt, **settings)
    return sinkscope.open_trace(folder)


@pytest.mark.parametrize(("block", "length"), [(4, 14), (3, 7), (32, 20)])
def test_columns_are_those_of_all_queries_so_far(block, length, tmp_path):
    """The finished blocks are read once, yet a step has the columns that one pass over the whole canvas gives."""
    model = seeded_model("sdar", 1)
    trace = recorded(model, tmp_path / "t", length=length, block=block, block_steps=min(block, 3), seed=3)
    assert trace.causal is False and trace.steps > 5 * (block < 32)
    for step in range(trace.steps):
        end = int(trace.lengths[step])
        maps = dense_maps(model.network, trace.tokens[step, :end], block)
        np.testing.assert_allclose(trace.column_sums[step, ..., :end], maps.sum(-2), atol=2e-4)
        np.testing.assert_allclose(trace.column_sums[step, ..., :end].sum(-1), end, atol=1e-3)
        np.testing.assert_allclose(trace.self_attention[step, ..., :end], maps.diagonal(axis1=-2, axis2=-1), atol=2e-4)
        masked = trace.masked[step, :end].astype(bool)
        np.testing.assert_allclose(trace.column_sums_masked[step, ..., :end], maps[:, :, masked].sum(-2), atol=2e-4)
        prompt = np.arange(end) < len(PROMPT)
        np.testing.assert_allclose(trace.column_sums_prompt[step, ..., :end], maps[:, :, prompt].sum(-2), atol=2e-4)
        assert not np.isnan(trace.hidden_norms[step, :, :end]).any()


def test_the_newest_columns_are_those_of_sixteen_queries_in_whole_blocks(tmp_path):
    model, block = seeded_model("sdar", 2), 3
    trace = recorded(model, tmp_path / "t", length=40, block=block, block_steps=2, seed=4)
    widths = set()
    for step in range(trace.steps):
        end = first = int(trace.lengths[step])
        while end - first < 16 and first > 0:  # the prompt is read at once, and counts as one block
            first = first - block if first > len(PROMPT) else 0
        widths.add(end - first)
        maps = dense_maps(model.network, trace.tokens[step, :end], block)
        np.testing.assert_allclose(trace.newest_columns[step, ..., :end], maps[:, :, first:].sum(-2), atol=2e-4)
    assert max(widths) == 24 and 18 in widths and min(widths) < 16


def test_of_a_long_prompt_only_the_newest_row_is_known(tmp_path):
    model = seeded_model("sdar", 2)
    trace = recorded(model, tmp_path / "t", prompt=list(range(1, 30)), length=8, seed=4)
    np.testing.assert_allclose(trace.newest_columns[0, ..., :28].sum(-1), 1, atol=1e-4)
    np.testing.assert_allclose(trace.newest_columns[1, ..., :32].sum(-1), 1 + 4, atol=1e-4)
    assert trace.newest_columns.shape[-1] == 40 and np.isnan(trace.newest_columns[0, ..., 28:]).all()


@pytest.mark.parametrize("rule", ["top:2", "window:2+4"])
def test_hiding_is_in_force_behind_the_cache(rule, tmp_path):
    """Hidden keys change what is written, and what is stored: a later block reads what the finished one computed with
    the keys hidden.
    """
    model = seeded_model("sdar", 1)
    plain = sinkscope.generate(model, PROMPT, length=20, temperature=0.0).tokens
    with sinkscope.parse_rule(rule)(model), sinkscope.recording(model, out=tmp_path / "t"):
        hidden = sinkscope.generate(model, PROMPT, length=20, temperature=0.0).tokens
    again = sinkscope.generate(model, PROMPT, length=20, temperature=0.0).tokens
    assert torch.equal(plain, again)
    trace, bare = sinkscope.open_trace(tmp_path / "t"), recorded(model, tmp_path / "bare", length=20, temperature=0.0)
    assert not torch.equal(plain, hidden) or not np.allclose(trace.column_sums[:], bare.column_sums[:], equal_nan=True)
    if rule == "top:2":
        running = trace.column_sums[
            2, ..., :12
        ]  # the second step of the first block, behind the 8 tokens that were read
        running[..., :8] -= trace.column_sums[0, ..., :8]
        assert ((np.abs(running) < 1e-5).sum(-1) == 2).all()
