"""What a hider may measure: a layer before it runs, its columns without hiding, and the canvas in another pass without
hiding.
"""

import pytest
import torch
from closeness import assert_close, terms_of
from diary import IDS, Diary, forward, step_events, tiny_llama

from sinkscope.attention import Hider, Prefix, Prepender, Watcher, subscribed

TERMS = terms_of(tiny_llama(), IDS.shape[1])


class Looking(Hider):
    """Measures every layer before it runs; hides one key if told to; keeps what it is shown."""

    def __init__(self, position=None, observing=False):
        self.position, self.observing = position, observing
        self.measured, self.observed = [], []

    def hide(self, call):
        self.measured.append(call.measure())
        return None if self.position is None else (torch.arange(call.key.shape[2]) == self.position)[None, None]

    def observes(self, call):
        return self.observing and call.index == 1

    def observe(self, call, columns):
        self.observed.append((call.index, columns))


class Front(Prepender):
    def prepend(self, call):
        return Prefix(*torch.randn(2, 1, 2, 8, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("front", [False, True])
def test_a_layer_measured_before_it_runs_shows_what_it_shows_without_the_hiding(front):
    network = tiny_llama()
    looking, diary = Looking(position=2), Diary()
    with subscribed(network, diary), subscribed(network, looking), subscribed(network, Front() if front else Diary()):
        forward(network, IDS)
    assert len(looking.measured) == len(diary.columns) == 2
    for measured, columns in zip(looking.measured, diary.columns, strict=True):
        assert_close(measured.sums, columns.local, terms=TERMS)
        assert_close(measured.last_row, columns.last_row, terms=TERMS)
        assert measured.local is None and (columns.sums != columns.local).any()
        assert (measured.prefix is not None) == front


def test_a_hider_sees_columns_where_it_hides_and_where_it_asks():
    network = tiny_llama()
    expected = forward(network, IDS)
    with subscribed(network, idle := Looking()):
        assert torch.equal(forward(network, IDS), expected)
    with subscribed(network, asking := Looking(observing=True)):
        forward(network, IDS)
    with subscribed(network, hiding := Looking(position=1)):
        forward(network, IDS)
    assert idle.observed == []
    assert [index for index, _ in asking.observed] == [1] and asking.observed[0][1].removed is None
    assert [index for index, _ in hiding.observed] == [0, 1]
    for _, columns in hiding.observed:
        assert_close(
            columns.removed[:, :, 1:].sum(-1), columns.local[:, :, 0, 1], terms=TERMS
        )  # query 0 does not see key 1


class Unhidden(Looking):
    """Runs an unhidden pass at the start of every step."""

    def __init__(self, session=None, **more):
        super().__init__(**more)
        self.session, self.seen = session, []

    def begin_step(self, context):
        class Seen(Watcher):
            def watch(_, call, columns):
                self.seen.append(columns.sums)

        self.session.unhidden_pass(Seen())


@pytest.mark.parametrize("causal", [True, False])
def test_an_unhidden_pass_is_the_canvas_without_hiding_and_nobody_is_told(causal):
    network = tiny_llama()
    network.config.is_causal = causal
    padding = torch.ones_like(IDS)
    padding[0, :2] = 0
    with subscribed(network, plain := Diary()):
        forward(network, IDS, attention_mask=padding)
    with subscribed(network, hidden := Diary()), subscribed(network, Looking(position=3)):
        expected = forward(network, IDS, attention_mask=padding)
    unhidden = Unhidden(position=3)
    with subscribed(network, diary := Diary()), subscribed(network, unhidden) as session:
        unhidden.session = session
        found = forward(network, IDS, attention_mask=padding)
    assert torch.equal(found, expected)
    assert diary.events == hidden.events == ["begin_generation", *step_events(2), "end_generation"]
    assert len(unhidden.seen) == 2
    for mine, columns in zip(unhidden.seen, plain.columns, strict=True):
        assert_close(mine, columns.sums, terms=TERMS)


def test_behind_a_cache_an_unhidden_pass_reads_all_tokens_and_leaves_the_cache_alone():
    network = tiny_llama()
    unhidden = Unhidden()
    with subscribed(network, unhidden) as session, torch.no_grad():
        unhidden.session = session
        first = network(IDS[:, :5], use_cache=True)
        unhidden.seen.clear()
        network(IDS[:, 5:6], past_key_values=first.past_key_values, use_cache=True)
    assert first.past_key_values.get_seq_length() == 6
    with subscribed(network, plain := Diary()):
        forward(network, IDS[:, :6], use_cache=False)
    for mine, columns in zip(unhidden.seen, plain.columns, strict=True):
        assert_close(mine, columns.sums, terms=TERMS)
