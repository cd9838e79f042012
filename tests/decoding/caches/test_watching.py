"""Recording under a cache: a column has the computed queries only, and every number is that of a dense map of these
queries.
"""

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of
from seeded_models import seeded_model

import sinkscope
from sinkscope.attention import Watcher, subscribed
from sinkscope.sinks.followed_columns import followed_queries

PROMPTS = [[5, 9, 22, 41, 7, 3, 18, 30, 2], [14, 8, 8, 51], [33, 2, 19, 44, 27, 6]]
SETTINGS = {"length": 16, "block": 8, "steps": 8}
POLICIES = ["fast-dllm-dual", "fast-dllm-prefix", "block:changed", "dkv-decode:every=3", "block:every=2"]
POLICIES += ["d2cache:masks=4"]


class Dense(Watcher):
    """Column sums by the plain softmax of each call, over the queries that it computes."""

    groups = ("all", "masked", "prompt")

    def __init__(self):
        self.steps, self.compared, self.partial = 0, 0, 0

    def begin_generation(self, start):
        self.prompts = start.prompt_lengths

    def begin_step(self, context):
        self.context, self.steps = context, self.steps + 1

    def watch(self, call, columns):
        length = self.context.tokens.shape[1]
        places = torch.arange(length).expand(len(call.query), -1) if call.part is None else call.part.queries
        rows = range(len(call.query)) if call.part is None else call.part.rows.tolist()
        self.partial += call.part is not None
        for number, row in enumerate(rows):
            first = length - int(self.context.lengths[row])
            queries = [index for index, place in enumerate(places[number].tolist()) if place >= first]
            chosen = places[number, queries]
            assert len(set(chosen.tolist())) == len(queries)
            if not queries:  # a row that has finished its block, beside others that have not
                assert not columns.sums[number].any()
                continue
            scores = call.query[number][:, queries] @ call.key[number].transpose(-1, -2) / call.query.shape[-1] ** 0.5
            scores[..., :first] = -torch.inf
            weights = scores.softmax(-1)
            members = {
                "all": torch.ones(len(queries)),
                "masked": self.context.masked[row, chosen].float(),
                "prompt": (chosen < first + self.prompts[row]).float(),
            }
            for group, name in enumerate(call.groups):
                expected = (weights * members[name][None, :, None]).sum(1)
                found = columns.sums[number, :, group]
                assert_close(found, expected, terms=length * 4, scores=(float(scores[..., first:].abs().max()), 8))
            self.compared += 1


@pytest.mark.parametrize("more", [{}, {"threshold": 0.4}], ids=["quota", "threshold"])
@pytest.mark.parametrize("cache", POLICIES)
def test_columns_are_those_of_the_computed_queries(cache, more):
    model, dense = seeded_model("llada"), Dense()
    with subscribed(model.network, dense):
        watched = sinkscope.generate(model, PROMPTS, cache=cache, **SETTINGS, **more)
    alone = sinkscope.generate(model, PROMPTS, cache=cache, **SETTINGS, **more)
    assert [one.tokens.tolist() for one in watched] == [one.tokens.tolist() for one in alone]
    assert [one.work for one in watched] == [one.work for one in alone]
    assert dense.partial > 0
    if more:  # prompts are written one after the other
        assert dense.compared == 2 * dense.steps == 2 * sum(one.work.forwards for one in alone)
    else:
        assert dense.compared > 2 * dense.steps


@pytest.mark.parametrize("cache", POLICIES)
def test_a_trace_says_what_was_computed(cache, tmp_path):
    model = seeded_model("llada")
    with sinkscope.recording(model, out=tmp_path / "cached"):
        generation = sinkscope.generate(model, PROMPTS[0], cache=cache, **SETTINGS)
    trace = sinkscope.open_trace(tmp_path / "cached")
    assert trace.manifest["sampler"]["cache"] == cache
    computed = ~np.isnan(trace.hidden_norms[:])
    assert (computed == computed[:, :1]).all()
    queries = computed[:, 0].sum(-1)
    assert queries.sum() == generation.work.rows and queries[0] == 25 and queries.min() < 25
    assert followed_queries(trace).tolist() == queries.tolist()
    for number, count in enumerate(queries):
        sums = trace.column_sums[number].sum(-1)
        assert_close(sums, np.full_like(sums, count), terms=4 * 25)
    partial = queries < 25
    assert np.isnan(trace.self_attention[:][partial]).all() and not np.isnan(trace.self_attention[:][~partial]).any()
    assert not np.isnan(trace.value_norms[:]).any()


def test_a_cache_that_refreshes_everything_records_what_no_cache_records(tmp_path):
    model = seeded_model("llada")
    for name in ("none", "block:every=1"):
        with sinkscope.recording(model, out=tmp_path / name):
            sinkscope.generate(model, PROMPTS[0], cache=name, **SETTINGS)
    one, other = (sinkscope.open_trace(tmp_path / name) for name in ("none", "block:every=1"))
    for name in ("column_sums", "self_attention", "hidden_norms", "value_norms", "output_norms"):
        assert_close(getattr(one, name)[:], getattr(other, name)[:], terms=terms_of(model.network, 25), what=name)


TRIGGERED = [
    "block:trigger=sink,level=0.05",
    "block:trigger=drift,level=0.99",
    "block:trigger=entropy,fresh=changed",
    "block:trigger=confidence,level=0.2",
]


@pytest.mark.parametrize("cache", TRIGGERED)
def test_rows_that_are_refreshed_alone_are_recorded_as_without_neighbours(cache, tmp_path):
    """A trigger refreshes some rows of a batch: the step computes them in one call and the others in a second."""
    model = seeded_model("llada")
    with sinkscope.recording(model, out=tmp_path / "batch"):
        together = sinkscope.generate(model, PROMPTS, cache=cache, **SETTINGS)
    for number, (prompt, row) in enumerate(zip(PROMPTS, together, strict=True)):
        with sinkscope.recording(model, out=tmp_path / f"alone-{number}"):
            alone = sinkscope.generate(model, prompt, cache=cache, **SETTINGS)
        assert alone.tokens.tolist() == row.tokens.tolist()
        batch, single = (
            sinkscope.open_trace(tmp_path / folder) for folder in (f"batch/{number:06d}", f"alone-{number}")
        )
        assert batch.tensors == single.tensors
        for name in batch.tensors:
            assert_close(
                getattr(batch, name)[:], getattr(single, name)[:], terms=terms_of(model.network, 25), what=name
            )
