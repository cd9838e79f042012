"""Layers, steps, keys and queries; fixed positions, windows and thresholds, each against what it says."""

import pytest
import torch
from closeness import assert_close, terms_of
from dense_maps import Seen

import sinkscope
from sinkscope.attention import subscribed
from sinkscope.interventions import HidePositions, HideSinksAbove, KeepWindow, calibrate_excess, compose
from sinkscope.sinks import excess_of, in_unit, is_sink


@pytest.mark.parametrize(("queries", "effect"), [("masked", "mask"), ((6,), "zero")])
def test_a_key_that_no_query_loses_is_not_hidden(diffusion, queries, effect):
    rule = HidePositions((2, 5), queries=queries, effect=effect)
    with rule(diffusion) as running, torch.no_grad():
        diffusion.network(torch.arange(5, 11)[None])  # nothing is masked here
        diffusion.network(torch.arange(5, 12)[None])
    effect = running.effect
    lost = 2 * (queries == (6,))  # the second call has a position 6, the first has none
    assert effect.hidden[:, 0, 0].tolist() == effect.ranked[:, 0, 0].tolist() == [lost]
    assert (effect.removed[:, 0, 0] > 0).tolist() == [lost > 0]


@pytest.mark.parametrize(("sinks", "recent"), [(0, 1), (2, 4)])
def test_a_window_equals_a_dense_mask(model, question, sinks, recent):
    """Logits of one call against transformers' own attention with a mask of whole maps."""
    ids = torch.tensor([model.encode(question)])
    length = ids.shape[1]
    place = torch.arange(length)
    visible = ((place[:, None] - place).abs() < recent) | (place < sinks)
    if model.family.causal:
        visible &= place <= place[:, None]
    with torch.no_grad():
        expected = model.network(ids, attention_mask=visible[None, None]).logits
        with KeepWindow(sinks, recent)(model):
            found = model.network(ids).logits
    assert_close(found, expected, terms=terms_of(model.network, length))


def test_a_window_behind_a_cache_equals_one_call(autoregressive, question):
    ids = torch.tensor([autoregressive.encode(question)])
    with torch.no_grad(), KeepWindow(2, 5)(autoregressive):
        expected = autoregressive.network(ids, use_cache=False).logits[:, -3:]
    with torch.no_grad(), KeepWindow(2, 5)(autoregressive):
        first = autoregressive.network(ids[:, :-3], use_cache=True)
        how = {"past_key_values": first.past_key_values, "use_cache": True}
        found = [autoregressive.network(ids[:, at : at + 1 or None], **how).logits for at in (-3, -2, -1)]
    assert_close(torch.cat(found, 1), expected, terms=terms_of(autoregressive.network, ids.shape[1]))


@pytest.mark.parametrize(("excess", "unit"), [(3.0, "queries"), (8.0, "percent")])
def test_above_hides_what_eq_3_calls_a_sink(lab_diffusion, run, question, excess, unit):
    _, seen, running = run(lab_diffusion, HideSinksAbove(excess, unit=unit), question, length=6)
    for step in range(1, 6):
        for layer in range(6):
            before = seen.columns[step - 1][layer]
            columns = (before.sums if before.local is None else before.local)[:, :, 0]
            expected = is_sink(columns.numpy(), excess, unit)
            near = torch.from_numpy(abs(excess_of(in_unit(columns.numpy(), unit)) - excess) < 1e-4)
            assert torch.equal(seen.hidden(step, layer) | near, torch.from_numpy(expected) | near)
    assert running.effect.removed_share > 0.05


@pytest.mark.parametrize("kind", ["guidance", "rows that end"])
def test_what_is_not_recorded_is_not_calibrated_on(request, question, kind):
    """Half of a call with guidance has no prompt; in a batch rows end before others."""
    model = request.getfixturevalue("lab_diffusion" if kind == "guidance" else "lab_autoregressive")
    answered = [f"{question}{more}" for more in ("", " 7 + 5 = 12.\n#### 12")]
    given, more = answered, {"length": 24}
    if kind == "guidance":
        given, more = question, {"length": 8, "block": 8, "guidance": 2.0}

    def write():
        return sinkscope.generate(model, given, **more)

    rule = calibrate_excess(model, write, 1.5, observe="current")
    with subscribed(model.network, seen := Seen()):
        write()
    counts, before = [], torch.zeros(0)
    for context, columns in zip(seen.contexts, seen.columns, strict=True):
        sums = torch.stack([one.sums[:, :, 0] for one in columns.values()], dim=1)  # in causal models of the new query
        sums[..., : before.shape[-1]] += before
        before = sums if kind == "rows that end" else before
        for row in context.rows:
            counts.append(is_sink(sums[row, ..., -int(context.lengths[row]) :].numpy(), rule.excess).sum(-1).mean())
    assert len(counts) < len(seen.contexts) * len(seen.contexts[0].lengths)
    assert sum(counts) / len(counts) == pytest.approx(1.5, rel=0.03)


def test_a_threshold_for_some_heads_is_calibrated_on_these(lab_diffusion, question):
    heads, wanted = {(3, 2), (5, 1)}, 2.0

    def write():
        return sinkscope.generate(lab_diffusion, question, length=8, block=8)

    rule = calibrate_excess(lab_diffusion, write, wanted, heads=heads)
    with subscribed(lab_diffusion.network, seen := Seen()):
        write()
    counts = []
    for step in range(7):
        for layer, head in heads:
            columns = seen.columns[step][layer].sums[0, head, 0]
            counts.append(is_sink(columns.numpy()[None, None, None], rule.excess).sum())
    assert sum(counts) / len(counts) == pytest.approx(wanted, abs=0.5 / 7)


@pytest.mark.parametrize("rules", ["all but one", "together"])
def test_keys_that_every_query_keeps_are_not_counted_as_hidden(model, run, question, rules):
    """A query that would lose its last key keeps all; two rules may take it together."""
    length = len(model.encode(question)) + 4
    parts = {"all but one": [range(1, 64)], "together": [range(5), range(5, 64)]}[rules]
    rule = compose(*(HidePositions(tuple(part)) for part in parts))
    _, _, running = run(model, rule, question, length=4)
    effect = running.effect
    if rules == "all but one":
        assert 0 < effect.keys_per_head <= length - 1 and effect.hit_rate is not None and effect.removed_share > 0
    else:
        assert (effect.keys_per_head, effect.hit_rate, effect.removed_share) == (0, None, 0)
        assert effect.hidden.sum() == effect.hits.sum() == 0 < effect.steps.sum()
