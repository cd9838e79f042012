"""Ranks, excess and pooling on numbers small enough to read."""

import numpy as np
import pytest
import torch
from closeness import assert_close

from sinkscope.interventions.rule_context import FEW, excess_of, pool, rank_of, spread
from sinkscope.sinks import excess_of as defined_excess

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
    assert bool((first[~asked.expand_as(first)] >= most).all()) or most > FEW
