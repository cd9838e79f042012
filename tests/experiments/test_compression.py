"""`experiments/compression.py`: masks and weights of published code, dense versions of its numbers, a run that goes on."""

import json
from pathlib import Path
from types import SimpleNamespace

import _compressing
import compression
import numpy as np
import pytest
import torch
from torch import nn

import sinkscope

PUBLISHED = json.loads((Path(__file__).parent / "fixtures" / "compression.json").read_text())
METHODS = [(method, share) for method in ("magnitude", "wanda", "sink-aware") for share in (0.3, 0.5, 0.6)]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 20, bias=False), nn.Linear(20, 12, bias=False)

    def forward(self, hidden):
        return hidden + self.down(torch.tanh(self.up(hidden)))


class Body(nn.Module):
    """The two layers that the published code pruned; weights drawn in the order of its parameters."""

    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(30, 12), nn.ModuleList([Block(), Block()])
        source = torch.Generator().manual_seed(7)
        for weight in self.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=source))

    def forward(self, input_ids, use_cache):
        hidden = self.embed(input_ids)
        for block in self.layers:
            hidden = block(hidden)
        return hidden


@pytest.mark.parametrize(("method", "share"), METHODS)
def test_masks_are_those_of_the_published_code(method, share, monkeypatch):
    monkeypatch.setattr(_compressing, "attention_mass", lambda *_: torch.tensor(PUBLISHED["mass"]))
    body, canvases = Body(), torch.tensor(PUBLISHED["tokens"])
    with _compressing.compressed(SimpleNamespace(network=SimpleNamespace(model=body)), method, share, canvases):
        for name, layer in _compressing.linears_of(body.layers).items():
            found = [f"1{''.join('01'[int(one == 0)] for one in row)}" for row in layer.weight]
            assert [f"{int(row, 2):x}" for row in found] == PUBLISHED[f"{method} {share}"][name]


@pytest.mark.parametrize("bits", [8, 4, 3])
def test_gptq_gives_the_published_codes_weights(bits):
    source = torch.Generator().manual_seed(9)
    weight, inputs = torch.randn(3, 128, generator=source), torch.randn(40, 128, generator=source)
    inputs[:, 5] *= 6
    found = _compressing.gptq(weight, inputs, bits, torch.zeros_like(weight, dtype=torch.bool))
    torch.testing.assert_close(found, torch.tensor(PUBLISHED[f"gptq {bits}"]), atol=2e-4, rtol=0)
