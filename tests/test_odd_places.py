"""Weights at odd places: they do lie there, they are the same, and a run that asks for it has them everywhere."""

import copy

import odd_places
import pytest
import torch
from closeness import assert_close, terms_of

TOKENS = torch.randint(5, 60, (1, 9), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(network):
    return network(TOKENS, use_cache=False).logits


def test_within_the_context_every_weight_lies_at_an_odd_place(diffusion):
    network = copy.deepcopy(diffusion.network)
    for parameter in network.parameters():
        parameter.data = parameter.data.clone()  # where the allocator puts it
    before, expected = {name: one.detach().clone() for name, one in network.named_parameters()}, logits(network)
    objects = list(network.parameters())
    with odd_places.everywhere():
        found = logits(network)
    assert all(odd_places.is_odd(one) for one in network.parameters())
    assert all(torch.equal(one, before[name]) for name, one in network.named_parameters())
    assert all(one is other for one, other in zip(network.parameters(), objects, strict=True))
    assert_close(found, expected, terms=terms_of(network, TOKENS.shape[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_lay_apart_comes_to_lie_apart(dtype):
    """Otherwise a loaded and a new network would have the same alignment, and nothing would be compared."""
    room = torch.arange(300).to(dtype)
    aligned = -room.data_ptr() % 64 // room.element_size()
    places = set()
    for bytes_ahead in (0, 8, 24, 56):
        first = aligned + bytes_ahead // room.element_size()
        moved = odd_places.oddly(room[first : first + 40].view(5, 8))
        assert torch.equal(moved, room[first : first + 40].view(5, 8)) and odd_places.is_odd(moved)
        places.add(moved.data_ptr() % 64)
    assert len(places) == 4


def test_a_run_that_asks_for_it_has_them(diffusion):
    logits(diffusion.network)
    assert {odd_places.is_odd(one) for one in diffusion.network.parameters()} == {odd_places.wanted()}


def test_another_word_is_refused(monkeypatch):
    monkeypatch.setenv(odd_places.VARIABLE, "yes")
    with pytest.raises(ValueError, match="SINKSCOPE_TEST_PLACES: expected odd or nothing, found 'yes'"):
        odd_places.wanted()
