"""The controls: as many keys, none of them a sink, seeded; matched in mass, in time, in rank, in class."""

import pytest
import torch

import sinkscope
from sinkscope.interventions import HideTopSinks, MassMatchedKeys, NextRanks, PersistentRandomKeys, RandomKeys, SameClassKeys, compose
from sinkscope.interventions.step_canvas import class_in
from sinkscope.sinks import is_sink
from sinkscope.sinks.token_classes import CLASSES

LENGTH, K = 12, 3
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


def test_random_keys_are_spread_evenly_over_what_may_be_drawn(lab_diffusion, run, question):
    _, seen, _ = run(lab_diffusion, RandomKeys(K), question, **WRITE)
    expected, found = 0, 0
    for _, _, columns, hidden in each(seen):
        free = ~top(columns, K) & ~torch.from_numpy(is_sink(columns.numpy(), 3.0))
        expected = expected + free / free.sum(-1, keepdim=True) * K
        found = found + hidden
    expected, found = expected.sum((0, 1)), found.sum((0, 1))
    assert ((found - expected) ** 2 / expected).sum() < 1.7 * len(expected), "chi square"


@pytest.mark.parametrize("kind", [RandomKeys, MassMatchedKeys, PersistentRandomKeys, SameClassKeys])
def test_a_seed_decides(diffusion, run, question, kind):
    hidden = {}
    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        _, seen, _ = run(diffusion, kind(2, seed=seed), question, length=4)
        hidden[name] = seen.hidden(1, 0)
    assert torch.equal(hidden["one"], hidden["again"])
    assert (hidden["one"] != hidden["two"]).any()


def test_where_sinks_are_all_there_is_others_are_taken(diffusion, run):
    """Ten keys of a canvas of 13: only three are left beside the top ten, and as many are hidden as there are."""
    _, seen, running = run(diffusion, RandomKeys(10), [5, 6, 7, 8, 9], length=8)
    assert (seen.hidden(1, 0).sum(-1) == 3).all()
    assert running.effect.keys_per_head == 3


def test_mass_matched_keys_hold_as_much_as_the_sinks(lab_diffusion, run, question):
    """The top keys of the step before, by what they and the others hold in the step that loses them."""
    _, seen, running = run(lab_diffusion, MassMatchedKeys(1, seed=4), question, **WRITE)
    gaps, counts = [], []
    for step, layer, columns, hidden in each(seen):
        sink = top(columns, 1)
        assert not (hidden & sink).any()
        now = seen.columns[step][layer].local[:, :, 0]
        aim, mass = (now * sink).sum(-1), (now * hidden).sum(-1)
        reachable = now.sum(-1) - aim > aim
        gaps.append((mass - aim).abs()[reachable] / aim[reachable])
        counts.append(hidden.sum(-1).flatten())
        assert torch.equal(hidden.sum(-1)[~reachable], torch.full_like(hidden.sum(-1)[~reachable], columns.shape[-1] - 1))
    assert torch.cat(gaps).mean() < 0.15
    assert torch.cat(counts).float().mean() > 2
    _, _, sinks = run(lab_diffusion, HideTopSinks(1), question, **WRITE)
    assert running.effect.removed_share == pytest.approx(sinks.effect.removed_share, rel=0.5)


def test_mass_is_matched_in_what_the_new_query_loses(autoregressive, run, question):
    _, seen, _ = run(autoregressive, MassMatchedKeys(1), question, length=8)
    running, gaps = 0, []
    for step, columns in enumerate(seen.columns[:-1]):
        local = columns[0].sums if columns[0].local is None else columns[0].local
        running = local[:, :, 0] + (torch.nn.functional.pad(running, (0, 1)) if step else 0)
        row, hidden = seen.columns[step + 1][0].last_row[..., :-1], seen.hidden(step + 1, 0)[..., :-1]
        aim = (row * top(running, 1)).sum(-1)
        reachable = aim < 0.3
        gaps.append(((row * hidden).sum(-1) - aim).abs()[reachable])
    assert torch.cat(gaps).mean() < 0.05


CURRENT = {"observe": "current"}


@pytest.mark.parametrize("rule", [MassMatchedKeys(1, **CURRENT), compose(HideTopSinks(1, **CURRENT), RandomKeys(1, **CURRENT))])
def test_what_is_measured_in_the_running_step_is_measured_once(diffusion, run, question, rule, monkeypatch):
    from sinkscope.attention import call

    compute, sweeps = call.compute, []
    monkeypatch.setattr(call, "compute", lambda *given, **more: (sweeps.append(1), compute(*given, **more))[1])
    run(diffusion, rule, question, length=4)
    assert len(sweeps) == 2 * 4 * diffusion.card.layers


def test_mass_is_matched_behind_the_last_row_too(lab_autoregressive, question):
    """Whose next query wants something else: random keys with the mass of the row before took away five times as much."""
    removed = {}
    for rule in (HideTopSinks(1, decide="last_row"), MassMatchedKeys(1, decide="last_row")):
        with rule(lab_autoregressive) as running:
            sinkscope.generate(lab_autoregressive, question, length=24)
        removed[type(rule)] = running.effect.removed_share
    assert 0.4 < removed[MassMatchedKeys] / removed[HideTopSinks] <= 1.05


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


@pytest.mark.parametrize("only_sinks", [False, True])
def test_next_ranks_follow_the_top(lab_diffusion, run, question, only_sinks):
    _, seen, running = run(lab_diffusion, NextRanks(K, only_sinks=only_sinks), question, **WRITE)
    for _, _, columns, hidden in each(seen):
        if only_sinks:
            sinks = torch.from_numpy(is_sink(columns.numpy(), 3.0)) & top(columns, K)
            assert torch.equal(hidden.sum(-1), sinks.sum(-1))
            assert not (hidden & ~top(columns, K, skip=K)).any()
        else:
            assert torch.equal(hidden, top(columns, K, skip=K))
    assert (running.effect.keys_per_head == K) != only_sinks


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


def test_classes_can_be_given(diffusion, run, question):
    rule = SameClassKeys(2, classify=lambda token: "even" if token % 2 == 0 else "odd")
    _, seen, _ = run(diffusion, rule, question, length=3)
    even = seen.canvases[1][0] % 2 == 0
    sinks = top(columns_before(seen, 1, 0), 2)
    assert torch.equal((seen.hidden(1, 0) & even).sum(-1), (sinks & even).sum(-1))


def test_two_ways_to_tell_classes_do_not_mix(diffusion, run, question):
    ways = (lambda token: "even" if token % 2 == 0 else "odd", lambda token: "all")
    alone = [run(diffusion, SameClassKeys(2, classify=way, layers=(layer,)), question, length=2)[1] for layer, way in enumerate(ways)]
    rules = [SameClassKeys(2, classify=way, layers=(layer,)) for layer, way in enumerate(ways)]
    _, together, _ = run(diffusion, compose(*rules), question, length=2)
    assert torch.equal(together.hidden(1, 0), alone[0].hidden(1, 0))
    expected = columns_before(together, 1, 1)
    assert (together.hidden(1, 1).sum(-1) == 2).all() and not (together.hidden(1, 1) & top(expected, 2)).any()
    even = together.canvases[1][0] % 2 == 0
    assert ((together.hidden(1, 1) & even).sum(-1) != (top(expected, 2) & even).sum(-1)).any(), "of one class all are alike"


def test_token_classes(diffusion):
    ids = {text: diffusion.encode(text)[-1] for text in ("\n", " ", "7", ".", "apples", "####")}
    assert [class_in(diffusion, ids[text]) for text in ids] == ["newline", "white space", "digit", "punctuation", "word", "punctuation"]
    special = [diffusion.card.mask_id, diffusion.card.eos_id, diffusion.tokenizer.bos_token_id, 10_000, -1]
    assert [class_in(diffusion, token) for token in special] == ["mask", "special", "special", "special", "special"]
