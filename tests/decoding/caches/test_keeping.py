"""Which stored keys are read: the choice against a plain one, and the attention against a dense mask."""

import pytest
import torch
from closeness import assert_close, terms_of
from seeded_models import seeded_model

from sinkscope.attention import Columns, LayerCall, Prefix, Watcher, subscribed
from sinkscope.decoding import BlockCache, LLaDASettings, parse_cache
from sinkscope.decoding.caches.policy import Moment, loss_without, pick
from sinkscope.decoding.caches.reader import CachedReader
from sinkscope.decoding.canvas import WorkMeter, lay_out

PROMPTS = [[5, 9, 22, 41, 7, 3, 18, 30, 2], [14, 8, 8, 51], [33, 2, 19, 44, 27, 6]]
START, STOP, WIDTH, LAYERS, HEADS = 8, 11, 17, 2, 3
PADDED = 4  # of the second row
SETTINGS = LLaDASettings(length=8, steps=8, block=8)


def moment(**more):
    source = torch.Generator().manual_seed(3)
    scores = [torch.rand(2, 2 * HEADS, WIDTH, generator=source) for _ in range(LAYERS)]
    for layer, head, place in ((0, 0, 2), (1, 2, 14), (1, 2, 6), (0, 4, START)):
        scores[layer][:, head : head + 2, place] += 8
    values = [torch.rand(2, HEADS, WIDTH, generator=source) for _ in range(LAYERS)]
    real = torch.ones(2, WIDTH, dtype=torch.bool)
    real[1, :PADDED] = False
    tokens = torch.zeros(2, WIDTH, dtype=torch.long)
    return Moment(
        0, START, STOP, tokens, tokens.bool(), real, scores=scores, values=values, heads=(LAYERS, HEADS), **more
    )


def chosen(keep, row, layer, head, budget=5, window=2):
    """The positions outside of the block, by loops."""
    seen = moment()
    places = [place for place in range(PADDED * row, WIDTH) if not START <= place < STOP]
    near = sorted(places, key=lambda place: (START - place if place < START else place - STOP + 1, place))
    column = [float(seen.scores[layer][row, 2 * head : 2 * head + 2, place].mean()) for place in range(WIDTH)]
    alive = range(PADDED * row, WIDTH)
    mean = {place: sum(column[other] for other in alive if other != place) / (len(alive) - 1) for place in alive}
    sinks = sorted((place for place in places if column[place] - mean[place] > 3), key=lambda place: -column[place])
    ordered = {
        "first": places,
        "window": near,
        "top": sorted(places, key=lambda place: -column[place]),
        "no-sinks": sorted((place for place in places if place not in sinks), key=lambda place: -column[place]),
        "norm": sorted(places, key=lambda place: -float(seen.values[layer][row, head, place])),
        "sinks": list(dict.fromkeys([*sinks[: budget - window], *near])),
    }
    return sorted([*ordered[keep][:budget], *range(START, STOP)])


@pytest.mark.parametrize("keep", ["first", "window", "top", "no-sinks", "norm", "sinks"])
def test_a_budget_of_keys_is_chosen(keep):
    found = BlockCache(keep=keep, budget=5, window=2).kept(moment())
    assert found.shape[-1] == 5 + STOP - START
    for row in range(2):
        for layer in range(LAYERS):
            for head in range(HEADS):
                mine = found[row, min(layer, found.shape[1] - 1), min(head, found.shape[2] - 1)]
                assert mine.tolist() == chosen(keep, row, layer, head), (keep, row, layer, head)


@pytest.mark.parametrize("cache", ["block:keep=window,budget=4", "block:keep=first,budget=6"])
def test_the_block_reads_the_kept_keys_alone(cache):
    """With two layers and tokens as in the refresh, a step is a whole call whose block sees the kept keys only."""
    model, tokens = seeded_model("llada"), torch.tensor([PROMPTS[0] + [60] * 8])
    real = torch.ones_like(tokens, dtype=torch.bool)
    reader = CachedReader(model, lay_out(real), WorkMeter(model.network, 1), parse_cache(cache), SETTINGS)
    reader.begin_block(9, 13)
    with torch.no_grad():
        for _ in range(2):
            reader.open_places(tokens, tokens == 60)
            found = reader.read(tokens)
            reader.committed(torch.full_like(tokens, -1), torch.full(tokens.shape, torch.nan))
        kept = parse_cache(cache).kept(Moment(0, 9, 13, tokens, tokens == 60, real))
        seen = torch.ones(1, 1, 17, 17, dtype=torch.bool)
        seen[:, :, 9:13] = torch.zeros(17, dtype=torch.bool).index_fill(0, kept[0, 0, 0], True)
        expected = model.network.model(input_ids=tokens, attention_mask=seen).last_hidden_state
    assert_close(found[:, 9:13], expected[:, 9:13], terms=terms_of(model.network, 17))
    whole = model.network.model(input_ids=tokens, attention_mask=torch.ones_like(seen)).last_hidden_state
    assert float((whole - found).detach()[:, 9:13].abs().max()) > 0.01


def fronts(source):
    """Constant keys in front: none, two with values, a logit without."""
    keys, values = (torch.randn(HEADS, 2, 6, generator=source) for _ in range(2))
    return {
        "none": None,
        "keys": Prefix(keys=keys, values=values),
        "logits": Prefix(logits=torch.randn(2 * HEADS, 1, generator=source)),
    }


@pytest.mark.parametrize("front", ["none", "keys", "logits"])
def test_the_loss_without_a_key_is_that_of_attention_without_it(front):
    source, seen = torch.Generator().manual_seed(9), moment()
    query, key = (
        torch.randn(2, 2 * HEADS, WIDTH, 6, generator=source),
        torch.randn(2, HEADS, WIDTH, 6, generator=source),
    )
    value, own = torch.randn(2, HEADS, WIDTH, 6, generator=source), fronts(source)[front]

    def output(row, head, place, without=()):
        own_keys = [] if own is None or own.keys is None else list(own.keys[head // 2])
        scores = [float(query[row, head, place] @ one) / 6**0.5 for one in own_keys] + (
            [float(own.logits[head, 0])] if front == "logits" else []
        )
        values = list(own.values[head // 2]) if own_keys else [torch.zeros(6)] * len(scores)
        for other in range(PADDED * row, WIDTH):
            if other not in without:
                scores.append(float(query[row, head, place] @ key[row, head // 2, other]) / 6**0.5)
                values.append(value[row, head // 2, other])
        weights = torch.tensor(scores).softmax(-1)
        return sum(weight * one for weight, one in zip(weights, values, strict=True))

    found = loss_without(LayerCall("layer", 0, query, key, value, None, own=own), seen)
    assert found.shape == (2, 2 * HEADS, WIDTH)
    for row, head in ((0, 0), (0, 5), (1, 3)):
        for place in (PADDED + 1, START, WIDTH - 1):
            moved = [
                output(row, head, query_place, (place,)) - output(row, head, query_place)
                for query_place in range(START, STOP)
            ]
            assert_close(found[row, head, place], sum(one.square().sum() for one in moved), terms=WIDTH * 40)


class Sums(Watcher):
    def __init__(self):
        self.found = []

    def watch(self, call, columns: Columns):
        self.found.append(columns.sums[:, :, 0])


def test_scores_are_the_column_sums_of_the_refresh():
    model, tokens = seeded_model("llada"), torch.tensor([PROMPTS[0] + [60] * 8])
    real, seen = torch.ones_like(tokens, dtype=torch.bool), []

    class Spy(BlockCache):
        def kept(self, moment):
            seen.append(moment)
            return super().kept(moment)

    reader = CachedReader(model, lay_out(real), WorkMeter(model.network, 1), Spy(keep="top", budget=4), SETTINGS)
    reader.begin_block(9, 13)
    with torch.no_grad(), subscribed(model.network, reader):
        reader.open_places(tokens, tokens == 60)
        reader.read(tokens)
    sums = Sums()
    with torch.no_grad(), subscribed(model.network, sums):
        model.network.model(input_ids=tokens, attention_mask=torch.ones(1, 1, 17, 17, dtype=torch.bool))
    for one, other in zip(seen[0].scores, sums.found, strict=True):
        assert_close(one, other, terms=terms_of(model.network, 17))


def test_of_equal_keys_the_lower_position_is_picked_whatever_the_padding():
    found = []
    for padding in (0, 3):
        real = torch.ones(1, WIDTH + padding, dtype=torch.bool)
        real[:, :padding] = False
        tokens = torch.zeros(1, WIDTH + padding, dtype=torch.long)
        there = Moment(0, START + padding, STOP + padding, tokens, tokens.bool(), real, heads=(1, 1))
        found.append(pick(torch.ones(1, 1, 1, WIDTH + padding), there, 4).flatten() - padding)
    assert found[0].tolist() == found[1].tolist() == [0, 1, 2, 3, *range(START, STOP)]
