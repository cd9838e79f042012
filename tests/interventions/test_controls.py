"""The controls: as many keys, none of them a sink, seeded; matched in mass, in time, in rank, in class."""

import dataclasses

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from dense_maps import Seen

import sinkscope
from sinkscope.attention import subscribed
from sinkscope.errors import CallError
from sinkscope.interventions import (
    HidePositions,
    MassMatchedKeys,
    NextRanks,
    PersistentRandomKeys,
    RandomKeys,
    RowMatchedKeys,
    SameClassKeys,
)
from sinkscope.interventions.rule_context import FEW, class_in, excess_of, pool, rank_of, spread
from sinkscope.sinks import excess_of as defined_excess
from sinkscope.sinks import is_sink
from sinkscope.sinks.definition import CLASSES

LENGTH, K = 10, 3
WRITE = {"length": LENGTH}


def columns_before(seen, step, layer):
    before = seen.columns[step - 1][layer]
    return (before.sums if before.local is None else before.local)[:, :, 0]


def top(columns, k, skip=0):
    order = columns.sort(dim=-1, descending=True, stable=True).indices[..., skip : skip + k]
    return torch.zeros_like(columns, dtype=torch.bool).scatter(-1, order, True)


def each(seen, layers=6):
    for step in range(1, len(seen.columns)):
        for layer in range(layers):
            yield step, layer, columns_before(seen, step, layer), seen.hidden(step, layer)


def test_random_keys_are_as_many_and_no_sinks(lab_diffusion, run, question):
    _, seen, running = run(lab_diffusion, RandomKeys(K, seed=3), question, **WRITE)
    sinks, drawn = 0, set()
    for _, _, columns, hidden in each(seen):
        assert (hidden.sum(-1) == K).all()
        assert not (hidden & top(columns, K)).any()
        found = torch.from_numpy(is_sink(columns.numpy(), 3.0))
        sinks += int(found.sum())
        assert not (hidden & found).any()
        drawn.add(tuple(hidden.flatten().tolist()))
    assert sinks > 50
    assert len(drawn) == (LENGTH - 1) * 6, "anew in every step and layer"
    assert (hidden[0] != hidden[0, :1]).any(), "and in every head"
    assert running.effect.hit_rate < 0.05


@pytest.mark.parametrize("kind", [RandomKeys, PersistentRandomKeys])
def test_a_seed_decides(diffusion, run, question, kind):
    hidden = {}
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        _, seen, _ = run(diffusion, kind(2, seed=seed), question, length=4)
        hidden[name] = seen.hidden(1, 0)
    assert torch.equal(hidden["one"], hidden["again"])
    assert (hidden["one"] != hidden["two"]).any()


def test_mass_matched_keys_hold_as_much_as_the_sinks(lab_diffusion, run, question):
    """The top keys of the step before, by what they and the others hold in the step that loses them."""
    _, seen, _ = run(lab_diffusion, MassMatchedKeys(1, seed=4), question, **WRITE)
    gaps, counts = [], []
    for step, layer, columns, hidden in each(seen):
        sink = top(columns, 1)
        assert not (hidden & sink).any()
        now = seen.columns[step][layer].local[:, :, 0]
        aim, mass = (now * sink).sum(-1), (now * hidden).sum(-1)
        reachable = now.sum(-1) - aim > aim
        gaps.append((mass - aim).abs()[reachable] / aim[reachable])
        counts.append(hidden.sum(-1).flatten())
        assert (hidden.sum(-1)[~reachable] == columns.shape[-1] - 1).all()
    assert torch.cat(gaps).mean() < 0.15
    assert torch.cat(counts).float().mean() > 2


class Rows(Seen):
    """Keeps of every layer the whole map with nothing hidden in it, and of every step who could commit and who did."""

    def __init__(self):
        super().__init__()
        self.maps, self.could, self.did, self.written = [], [], [], []

    def begin_step(self, context):
        super().begin_step(context)
        self.maps.append({})
        self.could.append(context.readers)

    def watch(self, call, columns):
        super().watch(call, columns)
        repeat = call.query.shape[1] // call.key.shape[1]
        scores = call.query @ call.key.repeat_interleave(repeat, 1).mT * call.query.shape[-1] ** -0.5
        self.maps[-1][call.index] = torch.softmax(scores, -1)

    def end_step(self, result):
        super().end_step(result)
        self.did.append(result.readers)
        self.written.append(result.written)


def rows(model, rule, prompts, **settings):
    with subscribed(model.network, seen := Rows()), rule(model) as running:
        sinkscope.generate(model, prompts, **settings)
    return seen, running


@pytest.mark.parametrize(
    ("rule", "who"), [(RowMatchedKeys(1, seed=4), "could"), (RowMatchedKeys(1, seed=4, queries="prompt"), "prompt")]
)
def test_row_matched_keys_hold_as_much_as_the_sinks_of_the_queries_being_committed(lab_diffusion, question, rule, who):
    """Dense: whole maps, the rows of the masked positions of the running block, or of the prompt."""
    seen, running = rows(lab_diffusion, rule, question, length=12, block=6)
    prompt, misses, aims, elsewhere = len(lab_diffusion.encode(question)), [], [], []
    for step, layer, columns, hidden in each(seen):
        position = torch.arange(columns.shape[-1])
        block = (position >= prompt + step // 6 * 6) & (position < prompt + (step // 6 + 1) * 6)
        of = position < prompt if who == "prompt" else seen.contexts[step].masked[0] & block
        if who == "could":
            assert torch.equal(seen.could[step][0], of)
        sink, whole, removed = top(columns, 1), seen.maps[step][layer], seen.columns[step][layer].removed
        assert not (hidden & sink).any()
        now = whole[:, :, of].sum(-2)
        aim = (now * sink).sum(-1)
        fitting = (now * ~sink).masked_fill(now > aim[..., None], 0).sum(-1)
        reachable = (fitting > aim) & (aim > 0)
        misses.append((removed[..., of].sum(-1) - aim)[reachable])
        aims.append(aim[reachable])
        elsewhere.append((removed.sum(-1) - (whole.sum(-2) * sink).sum(-1))[reachable])
    misses, aims, elsewhere = map(torch.cat, (misses, aims, elsewhere))
    assert len(aims) > 200 and misses.abs().sum() < 0.06 * aims.sum() and misses.sum().abs() < 0.01 * aims.sum()
    assert elsewhere.abs().sum() > 0.3 * aims.sum(), "over all queries they do not match"
    assert running.effect.removed_share > 0


@pytest.mark.parametrize(("kind", "guidance"), [("diffusion", 1.0), ("autoregressive", 0.0), ("lab-shifted", 0.0)])
def test_what_was_removed_where_tokens_were_committed(request, question, short, kind, guidance):
    """Dense: the hidden keys' entries in the rows from which each written token was read, left padding and guidance
    included.
    """
    model = sinkscope.load(kind) if kind == "lab-shifted" else request.getfixturevalue(kind)
    more = {"guidance": guidance} if guidance else {}
    seen, running = rows(model, HidePositions((1, 3)), [question, short], length=8, **more)
    left = int(kind != "diffusion")
    removed, committed = torch.zeros(2, model.card.layers, model.card.heads), torch.zeros(2)
    for step, context in enumerate(seen.contexts):
        width = context.tokens.shape[1]
        for row in context.rows:
            start = width - int(context.lengths[row])
            readers = [int(place) - left * (place > start) for place in (seen.written[step][row] >= 0).nonzero()]
            committed[row] += len(readers)
            assert seen.did[step][row].nonzero().flatten().tolist() == sorted(readers)
            for layer, whole in seen.maps[step].items():
                seeing = whole[row][:, [place - width for place in readers]]
                seeing[..., :start] = 0
                seeing = seeing / seeing.sum(-1, keepdim=True)
                removed[row, layer] += seeing[..., [start + 1, start + 3]].sum((-1, -2))
    effect = running.effect
    assert torch.equal(torch.from_numpy(effect.committed).float(), committed[:, None, None].expand_as(removed))
    assert committed.tolist() == [8, 8] or model.family.causal
    how = {"terms": terms_of(model.network, 64), "dtype": torch.float32}
    assert_close(torch.from_numpy(effect.removed_committed), removed.double(), **how)
    share = float(removed.sum() / committed.sum() / removed[0].numel())
    assert effect.removed_share_committed == pytest.approx(share, rel=1e-4)


def test_persistent_keys_stay_as_long_as_their_sinks(lab_diffusion, run, question):
    _, seen, _ = run(lab_diffusion, PersistentRandomKeys(K), question, **WRITE)
    stayed = changed = moved = 0
    for step, layer, columns, hidden in each(seen):
        assert (hidden.sum(-1) == K).all() and not (hidden & top(columns, K)).any()
        if step < 2:
            continue
        before, sinks_before = seen.hidden(step - 1, layer), top(columns_before(seen, step - 1, layer), K)
        sinks = top(columns, K)
        found = torch.from_numpy(is_sink(columns.numpy(), 3.0))
        usable = ~(before & (sinks | found)).any(-1)  # none of the stand-ins has become a sink
        same = (sinks == sinks_before).all(-1) & usable
        assert torch.equal(hidden[same], before[same])
        gone = (sinks_before & ~sinks).sum(-1)
        assert ((hidden & before).sum(-1) >= K - gone)[usable].all()
        stayed, changed = stayed + int(same.sum()), changed + int((gone > 0).sum())
        moved += int((hidden & ~before).sum(-1)[gone > 0].sum())
    assert stayed > 20 and changed > 20 and moved >= changed


def test_next_ranks_follow_the_top(lab_diffusion, run, question):
    _, seen, running = run(lab_diffusion, NextRanks(K, only_sinks=True), question, **WRITE)
    for _, _, columns, hidden in each(seen):
        sinks = torch.from_numpy(is_sink(columns.numpy(), 3.0)) & top(columns, K)
        assert torch.equal(hidden.sum(-1), sinks.sum(-1))
        assert not (hidden & ~top(columns, K, skip=K)).any()
    assert 0 < running.effect.keys_per_head < K


def test_same_class_keys_are_of_the_sinks_class(lab_diffusion, run, question):
    _, seen, running = run(lab_diffusion, SameClassKeys(K, seed=2), question, **WRITE)
    for step, _, columns, hidden in each(seen):
        names = [class_in(lab_diffusion, token) for token in seen.canvases[step][0].tolist()]
        sinks = top(columns, K)[0]
        for head in range(6):
            for name in CLASSES:
                alike = torch.tensor([one == name for one in names])
                wanted, free = int((sinks[head] & alike).sum()), int((~sinks[head] & alike).sum())
                assert int((hidden[0, head] & alike).sum()) == min(wanted, free)
        assert not (hidden[0] & sinks).any()
    assert running.effect.keys_per_head <= K


def test_a_likelihood_commits_nothing(diffusion):
    ids = torch.arange(5, 25)[None]
    with HidePositions((1,))(diffusion) as running, torch.no_grad():
        diffusion.network(ids)
    assert running.effect.removed_share > 0 and running.effect.removed_share_committed is None
    rule = RowMatchedKeys(1, observe="current")
    message = "rowmass: this call has neither tokens to commit nor an answer; name queries="
    with pytest.raises(CallError, match=message), rule(diffusion), torch.no_grad():
        diffusion.network(ids)
    effects = []  # in a likelihood the answer's queries are those that write
    for one in (rule, dataclasses.replace(rule, queries="answer")):
        with one(diffusion) as running:
            sinkscope.log_likelihood(diffusion, ids[0, :12], ids[0, 12:], samples=2)
        effects.append(running.effect)
    assert (
        0 < effects[1].removed_share < effects[0].removed_share
        and (effects[0].hidden[:, 0] == effects[1].hidden[:, 0]).all()
    )


VALUES = torch.tensor([[[2.0, 5.0, 5.0, 1.0, 5.0], [0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]]])


def test_only_candidates_are_ranked_first():
    candidates = torch.tensor([[[True, False, True, True, False]]])
    assert rank_of(VALUES, candidates)[0].tolist() == [[1, 3, 0, 2, 4], [0, 3, 1, 2, 4], [2, 3, 1, 0, 4]]


def test_excess_is_that_of_the_definition():
    columns = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(0)) * 9
    real = torch.ones(2, 7, dtype=torch.bool)
    real[0, :2] = False
    expected = defined_excess(np.where(real[:, None].expand_as(columns), columns, np.nan))
    found = excess_of(columns, real)
    assert_close(found[1], expected[1], terms=7, what="all")
    assert_close(found[0, :, 2:], expected[0, :, 2:], terms=7, what="without padding")


def test_heads_that_share_a_ranking_are_neighbours():
    values = torch.arange(2 * 6 * 4.0).view(2, 6, 4)
    assert torch.equal(pool(values, "head", 2), values)
    assert torch.equal(pool(values, "kv_head", 2), torch.stack([values[:, :3].mean(1), values[:, 3:].mean(1)], 1))
    assert torch.equal(pool(values, "layer", 2), values.mean(1, keepdim=True))
    chosen = pool(values, "kv_head", 2) > 20
    assert torch.equal(spread(chosen, 6), chosen[:, [0, 0, 0, 1, 1, 1]])
    assert spread(chosen[:, :1], 6).shape == (2, 1, 4)


@pytest.mark.parametrize("most", [1, 2, 3, FEW, FEW + 1])
def test_the_first_ranks_are_those_of_the_whole_order(most):
    source = torch.Generator().manual_seed(most)
    values = torch.randint(0, 6, (3, 4, 11), generator=source).float()  # many ties
    candidates = torch.rand(3, 1, 11, generator=source) < 0.4
    candidates[0, 0, 1:] = False  # fewer than are asked for
    whole, first = rank_of(values, candidates), rank_of(values, candidates, most)
    asked = (whole < most) & candidates
    assert torch.equal(first[asked.expand_as(first)], whole[asked.expand_as(whole)])
    behind = candidates & (whole >= most)
    assert bool((first[behind.expand_as(first)] >= most).all())
