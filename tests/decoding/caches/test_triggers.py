"""Triggers of a refresh: what they look at against a dense map, when they fire, and that a row fires alone."""

import pytest
import torch
from closeness import assert_close
from seeded_models import seeded_model, steps_of

from sinkscope.attention import Watcher, subscribed
from sinkscope.decoding import BlockCache
from sinkscope.decoding.caches.block_cache import attention_drifted, commits_open, commits_unsure, sinks_moved
from sinkscope.decoding.caches.policy import Moment

PROMPTS = [[5, 9, 22, 41, 7, 3, 18, 30, 2], [14, 8, 8, 51], [33, 2, 19, 44, 27, 6]]
SETTINGS = {"length": 24, "block": 8, "steps": 12}
ROWS, LAYERS, HEADS, WIDTH = 2, 3, 4, 13


def moment(**known):
    tokens = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    real = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    return Moment(3, 8, 13, tokens, tokens.bool(), real, **known)


def columns(places, height=4.0):
    """Columns of 5 queries: a sink at a place in each layer and head; None for a head without."""
    found = torch.full((ROWS, LAYERS, HEADS, WIDTH), 0.1)
    for row in range(ROWS):
        for head in range(HEADS):
            if places[row][head] is not None:
                found[row, :, head, places[row][head]] = height
    return found


def test_a_moved_sink_is_seen_in_its_row_alone():
    before, now = columns([[2, 2, 5, None], [2, 2, 5, None]]), columns([[2, 2, 5, 9], [2, 3, 5, 7]])
    seen = moment(at_refresh=before, now=now)
    assert sinks_moved(seen, 0.3).tolist() == [False, True]  # one of three heads with a sink; the fourth had none
    assert sinks_moved(seen, 0.34).tolist() == [False, False]
    small = moment(at_refresh=columns([[2] * 4] * 2, 2.9), now=now)
    assert not sinks_moved(small, 0.01).any()  # no sink by Eq. 3, so nothing can move


def test_attention_that_turns_is_drift():
    source = torch.Generator().manual_seed(2)
    before = torch.rand(ROWS, LAYERS, 5, WIDTH, generator=source)
    before[..., 6] += 2
    now = before.clone()
    now[1, 2, :, 6] = before[1, 2, :, 6].flip(-1)
    cosine = float(torch.nn.functional.cosine_similarity(before[1, 2, :, 6], now[1, 2, :, 6], dim=0))
    seen = moment(before=before, now=now)
    assert attention_drifted(seen, cosine + 1e-4).tolist() == [False, True]
    assert attention_drifted(seen, cosine - 1e-4).tolist() == [False, False]
    now[1, 2, 3] = 0  # a query that was not computed does not count
    before[1, 2, 4] = 0
    both = [0, 1, 2]
    cosine = float(torch.nn.functional.cosine_similarity(before[1, 2, both, 6], now[1, 2, both, 6], dim=0))
    assert attention_drifted(seen, cosine + 1e-4).tolist() == [False, True]
    assert attention_drifted(seen, cosine - 1e-4).tolist() == [False, False]
    assert not attention_drifted(moment(now=now), 1.0).any()


def test_an_unsure_commit_is_seen():
    """By its confidence, or by its entropy; a place that was not committed does not count."""
    commits = torch.zeros(ROWS, WIDTH, dtype=torch.bool)
    commits[:, 9] = True
    found = torch.full((ROWS, WIDTH), torch.nan)
    found[0, 9], found[0, 10], found[1, 9] = 0.9, 0.2, 0.4
    assert commits_unsure(moment(confidence=found, commits=(commits,)), 0.5).tolist() == [False, True]
    found[0, 9], found[0, 10], found[1, 9] = 0.1, 3.0, 1.2
    assert commits_open(moment(entropy=found, commits=(commits,)), 1.0).tolist() == [False, True]


class Dense(Watcher):
    """The attention of the block's queries in every call, by a plain softmax."""

    def __init__(self):
        self.calls = []

    def begin_step(self, context):
        self.context = context
        self.calls.append([])

    def watch(self, call, columns):
        rows, places = range(len(call.query)), torch.arange(call.key.shape[2]).expand(len(call.query), -1)
        if call.part is not None:
            rows, places = call.part.rows.tolist(), call.part.queries
        scores = call.query @ call.key.repeat_interleave(call.query.shape[1] // call.key.shape[1], dim=1).transpose(
            -1, -2
        )
        for number, row in enumerate(rows):
            first = call.key.shape[2] - int(self.context.lengths[row])
            weights = (scores[number] / call.query.shape[-1] ** 0.5)[..., first:].softmax(-1)
            self.calls[-1].append((call.index, row, first, places[number].tolist(), weights))


@pytest.mark.parametrize(
    "cache",
    ["block:trigger=sink,level=0.2", "block:trigger=drift,level=0.98", "block:changed,trigger=drift,level=0.98"],
)
def test_triggers_see_the_attention_of_the_block(cache, monkeypatch):
    """What a policy gets after each step, against the softmax of what was computed: rows that refresh, and rows that do
    not.
    """
    dense, plans, plan = Dense(), [], BlockCache.plan

    def spy(self, seen):
        plans.append(seen)
        return plan(self, seen)

    monkeypatch.setattr(BlockCache, "plan", spy)
    model = seeded_model("llada")
    with subscribed(model.network, dense):
        steps = steps_of(model, PROMPTS, cache=cache, **SETTINGS)
    later = [(number, seen) for number, seen in zip([n for n in range(len(steps)) if n % 4], plans, strict=True)]
    assert len(later) == 9
    kinds = set()
    for number, seen in later:
        for layer, row, first, places, weights in dense.calls[number - 1]:
            inside = [index for index, place in enumerate(places) if seen.start <= place < seen.stop]
            kinds.add(len(places) < 33)
            found = seen.now[row, layer]
            if "drift" in cache:
                for index in inside:
                    assert_close(found[places[index] - seen.start, first:], weights[:, index].mean(0), terms=200)
            else:
                assert_close(found[:, first:], weights[:, inside].sum(1), terms=200)
    assert kinds == {True, False}
