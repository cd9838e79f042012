"""`experiments/compression.py`: masks and weights of published code, dense versions of its numbers, a run goes on."""

import json
from pathlib import Path
from types import SimpleNamespace

import _compressing
import compression
import numpy as np
import pytest
import torch
from compression import Arm
from compression_verdict import breaking, restoring
from torch import nn

from sinkscope.errors import SinkscopeError

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


@pytest.fixture(scope="module", params=["lab-autoregressive", "lab-diffusion"])
def bench(request):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"TEXTS": 6, "CALIBRATION": 5, "WIDTH": 24}.items():
            patch.setattr(compression, name, value)
        texts = compression.read(None)
        yield compression.Bench(request.param, texts, texts[::-1])


def test_rounding_keeps_the_kept_and_takes_the_nearest_of_each_groups_grid():
    weight = torch.randn(3, 128, generator=torch.Generator().manual_seed(0))
    weight[:, 70] = 50.0
    kept = _compressing.kept_weights("q_proj", weight, 70)
    found = _compressing.rounded(weight, 3, kept)
    for row in range(3):
        for start in (0, 64):
            group = [one for one in range(start, start + 64) if one != 70]
            low, high = weight[row, group].min(), weight[row, group].max()
            scale = (high - low) / 7
            steps = [(number - round(float(-low / scale))) * scale for number in range(8)]
            for column in group:
                nearest = min(steps, key=lambda step: abs(float(step - weight[row, column])))
                assert float(found[row, column]) == pytest.approx(float(nearest), abs=1e-5)
    assert torch.equal(found[:, 70], weight[:, 70])
    assert _compressing.kept_weights("down_proj", weight, 2).nonzero()[:, 0].unique().tolist() == [2]


def test_what_is_kept_counts_for_no_scale_of_activations(bench):
    model, bench_tokens = bench.model, bench.watched.tokens
    layer = model.network.model.layers[0].self_attn.q_proj
    seen, tokens = [], torch.zeros_like(bench_tokens, dtype=torch.bool)
    tokens[:, 1] = True
    heard = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with _compressing.rounded_activations(model, 4, "tensor", tokens, dimension=7), torch.no_grad():
        rounding = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        model.network.model(input_ids=bench_tokens, use_cache=False)
    heard.remove(), rounding.remove()
    before, after = seen
    assert torch.equal(after[:, 1], before[:, 1]) and torch.equal(after[..., 7], before[..., 7])
    others = [one for one in range(before.shape[-1]) if one != 7]
    for canvas in range(len(before)):
        some = np.delete(before[canvas].numpy(), 1, axis=0)[:, others]
        scale = np.abs(some).max() / 7
        np.testing.assert_allclose(
            np.delete(after[canvas].numpy(), 1, axis=0)[:, others], np.round(some / scale) * scale, rtol=1e-5
        )


def test_losses_and_sinks_are_those_of_whole_logits_and_dense_maps(bench):
    row, model = bench.row(None), bench.model
    for name, canvases in bench.canvases.items():
        logits = model.network(canvases.tokens, use_cache=False).logits.detach()
        for canvas in range(6):
            asked = [one for one in range(24) if canvases.judged[canvas, one]]
            read = [one - 1 if model.family.causal else one for one in asked]
            each = torch.nn.functional.cross_entropy(logits[canvas, read], canvases.targets[canvas, asked])
            assert row["loss"][name][canvas] == pytest.approx(float(each), abs=1e-4)
    model.network.set_attn_implementation("eager")
    found = model.network.model(
        bench.watched.tokens, use_cache=False, output_attentions=True, output_hidden_states=True
    )
    model.network.set_attn_implementation("sdpa")
    maps, hidden = torch.stack(found.attentions, 1).detach(), found.hidden_states
    columns = maps.sum(-2)
    np.testing.assert_allclose(row["sinks"]["first"], columns[..., 0].mean((1, 2)) / 24, atol=1e-4)
    np.testing.assert_allclose(row["sinks"]["largest"], columns.amax(-1).mean((1, 2)) / 24, atol=1e-4)
    if model.family.causal:
        even = torch.tril(torch.ones(24, 24)) / torch.arange(1, 25)[:, None]
        excess = (columns - even.sum(0)) * 24 / 23
    else:
        excess = columns - (24 - columns) / 23
    np.testing.assert_allclose(row["sinks"]["heads"], (excess > 3).any(-1).float().mean((1, 2)), atol=1e-4)
    stream = compression.residuals_of(model, bench.watched.tokens)
    for found, layer in zip(stream[:-1], hidden[1:-1], strict=True):  # behind the last layer transformers adds the norm
        for canvas, one in enumerate(layer.detach().abs().numpy()):
            middle = np.sort(one.ravel())[(one.size - 1) // 2]  # torch takes the lower of two
            np.testing.assert_allclose(found[canvas], one / middle, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        row["sinks"]["peak"], np.max([one.amax((1, 2)).numpy() for one in stream], axis=0), rtol=1e-4
    )
    assert set(row["sinks"]["stay"]) == {1.0}


@pytest.mark.parametrize("arm", [*compression.arms()[::3], Arm("activations", "w4a4", "tokens")], ids=str)
def test_an_arm_bites_and_leaves_no_trace(bench, arm):
    plain, changed, again = bench.row(None), bench.row(arm), bench.row(None)
    assert changed["loss"] != plain["loss"] == again["loss"]


def test_massive_tokens_hold_half_of_their_canvases_largest_value_and_random_ones_are_as_many_others(
    bench, monkeypatch
):
    stream = torch.ones(6, 24, 5)
    stream[:, 3, 2], stream[:, 9, 2], stream[1:, 4, 2], stream[:, 5, 1], stream[5, :, 2] = 900, 451, 449, 999, 99
    monkeypatch.setattr(compression, "residuals_of", lambda *_: [stream, torch.ones_like(stream)])
    monkeypatch.setattr(compression, "MASSIVE", 100)
    for one in compression.canvases_of(bench.model, bench.watched.targets, 2).values():
        assert one.massive.nonzero().tolist() == [[canvas, place] for canvas in range(5) for place in (3, 9)]
        assert one.random.sum(1).tolist() == [2, 2, 2, 2, 2, 0] and not (one.massive & one.random).any()
    assert bench.random_dimension != bench.dimension


def test_a_run_goes_on_and_refuses_another_ones_table(tmp_path, monkeypatch):
    for name, value in {"TEXTS": 5, "CALIBRATION": 5, "WIDTH": 24, "OUT": tmp_path, "PROBLEMS": 2}.items():
        monkeypatch.setattr(compression, name, value)
    monkeypatch.setattr(compression, "arms", lambda: [Arm("rtn", "3"), Arm("magnitude", "0.6")])
    texts, path = compression.read(None), tmp_path / "lab-autoregressive.json"
    compression.run(["lab-autoregressive"], texts, texts[::-1])
    first = json.loads(path.read_text())
    path.write_text(json.dumps({**first, "rows": first["rows"][:-1]}))
    compression.run(["lab-autoregressive"], texts, texts[::-1])
    assert json.loads(path.read_text())["rows"] == first["rows"] and len(first["rows"]) == 3
    with pytest.raises(SinkscopeError, match="other texts"):
        compression.run(["lab-autoregressive"], texts[3:], texts[::-1])


def test_the_verdict_follows_its_rules():
    noise = np.random.default_rng(0).normal(0, 0.05, 16)
    arm, kept, control = (Arm("rtn", "3", one) for one in ("nothing", "dimension", "random dimension"))
    causal = {arm: 1 + noise, kept: 0.3 + noise[::-1], control: 0.9 + noise[3]}
    [found] = breaking(causal, {arm: 0.1 - noise})
    assert found["alone"] and found["difference"].mean == pytest.approx(float(np.mean(0.9 + 2 * noise)))
    assert not breaking(causal, {arm: 0.5 + noise})[0]["alone"]
    [one] = restoring(causal)
    assert one["reason"] and one["share"] == pytest.approx(1 - causal[kept].mean() / causal[arm].mean())
    assert not restoring({**causal, control: 0.25 + noise})[0]["reason"]
    assert not restoring({**causal, kept: 0.6 + noise})[0]["reason"]
