"""What subscribers answer: anything but what is documented is refused by name, in a network and in `attend`, and leaves no trace."""

import inspect
import re

import numpy as np
import pytest
import torch
from dense import BATCH, DIM, HEADS, KEYS, KV_HEADS, QUERIES, VALUE_DIM, draw
from diary import IDS, Diary, forward, tiny_llama
from torch import nn

from sinkscope.argument_types import checked
from sinkscope.attention import Hidden, Hider, Prefix, Prepender, Watcher, attend, current_session, foreign, subscribed
from sinkscope.errors import AttentionError, CallError, SinkscopeError

ROWS, LENGTH, OWN_HEADS, WIDE = 2, 7, 3, 8


class Hides(Hider):
    def __init__(self, answer):
        self.answer = answer

    def hide(self, call):
        return self.answer


class Prepends(Prepender):
    def __init__(self, answer):
        self.answer = answer

    def prepend(self, call):
        return self.answer


def bools(*shape, value=False, **more):
    return torch.full((*shape, LENGTH), value, **more)


def changed(record, **fields):
    """Return a record with fields that tests would not let it be made with."""
    for name, value in fields.items():
        object.__setattr__(record, name, value)
    return record


BAD_HIDING = {
    "float": (
        bools(1, 1).float(),
        r"Hides.hide in \S+: expected bool \[1 or 2, 1 or 3, 7\] \(batch, head, key\), found float32 \[1, 1, 7\]",
    ),
    "minus infinity": (torch.full((1, 1, LENGTH), -torch.inf), "found float32"),
    "int": (bools(1, 1).long(), "found int64"),
    "numpy": (np.zeros((1, 1, LENGTH), bool), "expected a bool mask .*, several Hidden, or None, found ndarray"),
    "rows": (bools(3, 1), r"found bool \[3, 1, 7\]"),
    "heads": (bools(1, 2), r"found bool \[1, 2, 7\]"),
    "two axes": (bools(1), r"found bool \[1, 7\]"),
    "four axes": (bools(1, 1, 1), r"found bool \[1, 1, 1, 7\]"),
    "keys": (bools(1, 1)[..., 1:], "over 7 tokens, found 6"),
    "meta": (bools(1, 1, device="meta"), "on the device meta"),
    "sparse": (bools(1, 1).to_sparse(), r"found bool \[1, 1, 7\] in the layout torch.sparse_coo"),
    "number": (5, "several Hidden, or None, found int"),
    "text": ("x", "found str"),
    "numbers": ([1, 2], "found int"),
    "mapping": ({"keys": 1}, "found dict"),
    "masks": ([bools(1, 1)], "found Tensor"),
    "keys of a Hidden": (
        [Hidden(bools(1, 1))],
        r"keys: expected bool \[1 or 2, 1 or 3, 1 or 7, 7\] \(batch, head, query, key\)",
    ),
    "list in a Hidden": (
        [changed(Hidden(bools(1, 1, 1)), keys=[[[True] * LENGTH]])],
        "keys: expected bool .* found list",
    ),
    "queries of a Hidden": (
        [Hidden(bools(1, 1, 1), bools())],
        r"queries: expected bool \[1 or 2, 7\] \(batch, query\), found bool \[7\]",
    ),
    "heads of a Hidden": (
        [Hidden(bools(1, 1, 1), heads=bools())],
        r"heads: expected bool \[3\] \(head\), found bool \[7\]",
    ),
    "switch of a Hidden": ([changed(Hidden(bools(1, 1, 1)), zeroed="no")], "zeroed: expected True or False, found str"),
}
KEYS_OF_PREFIX = torch.zeros(1, 2, WIDE)
BAD_PREFIXES = {
    "number": (5, r"Prepends.prepend in \S+: expected a Prefix or None, found int"),
    "list": (changed(Prefix(KEYS_OF_PREFIX), keys=[[1.0]]), "keys: expected numbers .* found list"),
    "whole numbers": (Prefix(KEYS_OF_PREFIX.long()), "found int64"),
    "width": (
        Prefix(torch.zeros(1, 2, 5)),
        r"keys: expected numbers \[1 or 3, any, 8\] \(kv_head, count, dim\), found float32 \[1, 2, 5\]",
    ),
    "heads": (Prefix(torch.zeros(2, 2, WIDE)), r"found float32 \[2, 2, 8\]"),
    "rows": (Prefix(torch.zeros(3, 1, 2, WIDE)), r"found float32 \[3, 1, 2, 8\]"),
    "axes": (Prefix(torch.zeros(2, WIDE)), r"found float32 \[2, 8\]"),
    "values": (Prefix(KEYS_OF_PREFIX, torch.zeros(1, 3, WIDE)), r"values: expected numbers \[1 or 3, 2, 8\]"),
    "logits": (
        Prefix(logits=torch.zeros(2, 1)),
        r"logits: expected numbers \[3, any\] \(head, count\), found float32 \[2, 1\]",
    ),
    "meta": (Prefix(KEYS_OF_PREFIX.to("meta")), "on the device meta"),
}


def refused(network, subscriber, message):
    with pytest.raises(AttentionError, match=message), subscribed(network, subscriber):
        forward(network, IDS)
    assert current_session(network) is None


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("case", BAD_HIDING)
def test_what_hides_nothing_that_can_be_hidden_is_refused(case, watched):
    """Also where nothing is True, so that nothing would be hidden."""
    network, (answer, message) = tiny_llama(), BAD_HIDING[case]
    plain = forward(network, IDS)
    if watched:
        with subscribed(network, Diary()):
            refused_within(network, Hides(answer), message)
    else:
        refused(network, Hides(answer), message)
    assert torch.equal(forward(network, IDS), plain)


def refused_within(network, subscriber, message):
    with pytest.raises(AttentionError, match=message), subscribed(network, subscriber):
        forward(network, IDS)


@pytest.mark.parametrize("case", BAD_PREFIXES)
def test_what_is_no_prefix_is_refused(case):
    answer, message = BAD_PREFIXES[case]
    refused(tiny_llama(), Prepends(answer), message)


GOOD_HIDING = {
    "nothing": None,
    "one for all": bools(1, 1),
    "every row and head": bools(ROWS, OWN_HEADS),
    "no Hidden": [],
    "a tuple": (
        Hidden(bools(1, 1, 1)),
        Hidden(bools(ROWS, OWN_HEADS, LENGTH), bools(1), heads=torch.ones(OWN_HEADS, dtype=torch.bool)),
    ),
}


@pytest.mark.parametrize("case", GOOD_HIDING)
def test_what_may_be_answered_is_taken(case):
    network = tiny_llama()
    with subscribed(network, Hides(GOOD_HIDING[case])):
        found = forward(network, IDS)
    assert torch.equal(found, forward(network, IDS))  # every mask above is False


@pytest.mark.parametrize("needs", [torch.zeros(3), "yes", None, 1])
def test_whether_columns_are_needed_is_said_by_a_truth_value(needs):
    class Observes(Hides):
        def observes(self, call):
            return needs

    refused(tiny_llama(), Observes(None), r"Observes.observes in \S+: expected True or False, found")


def test_several_hidden_may_be_generated():
    network, answer = tiny_llama(), bools(1, 1, 1)
    answer[..., 2] = True

    class Generates(Hider):
        def hide(self, call):
            yield Hidden(answer)

    found = []
    for hider in (Generates(), Hides(answer[:, :, 0])):
        with subscribed(network, hider):
            found.append(forward(network, IDS))
    assert torch.equal(*found) and not torch.equal(found[0], forward(network, IDS))


@pytest.mark.parametrize("groups", [5, None, "all", ("all", 5), [None]])
def test_groups_that_are_none_are_refused(groups):
    class Watches(Watcher):
        def watch(self, call, columns):
            pass

    watcher, network = Watches(), tiny_llama()
    watcher.groups = groups
    refused(network, watcher, "Watches.groups: expected query groups among all, masked, unmasked, prompt, found")


class Model:
    """What holds a network, as a Model does."""

    network = tiny_llama()


@pytest.mark.parametrize(
    ("network", "subscriber", "message"),
    [
        (Model(), Diary(), "network: expected a torch module, found Model; pass its network"),
        ("x", Diary(), "network: expected a torch module, found 'x'"),
        (None, Diary(), "network: expected a torch module, found null"),
        (nn.Linear, Diary(), "network: expected a torch module, found the class Linear"),
        (Model.network, None, "subscriber: expected Subscriber, found null"),
        (Model.network, Diary, "subscriber: expected Subscriber, found the class Diary"),
        (Model.network, [Diary()], "subscriber: expected Subscriber, found list"),
    ],
)
def test_who_cannot_subscribe_is_told(network, subscriber, message):
    with pytest.raises(CallError, match=f"^{message}$"), subscribed(network, subscriber):
        pass
    assert current_session(Model.network) is None


@pytest.mark.parametrize("network", ["x", None, Model(), {}])
def test_what_is_no_module_has_no_session(network):
    for call in (current_session, foreign):
        with pytest.raises(CallError, match="network: expected a torch module, found"), call(network):
            pass


FLOATS = torch.zeros
BAD_INPUTS = {
    "query of three axes": ({"query": FLOATS(BATCH, QUERIES, DIM)}, "query"),
    "key of other rows": ({"key": FLOATS(BATCH + 1, KV_HEADS, KEYS, DIM)}, "key"),
    "key of other width": ({"key": FLOATS(BATCH, KV_HEADS, KEYS, DIM + 1)}, "key"),
    "value of other keys": ({"value": FLOATS(BATCH, KV_HEADS, KEYS + 1, VALUE_DIM)}, "value"),
    "value of whole numbers": ({"value": FLOATS(BATCH, KV_HEADS, KEYS, VALUE_DIM).long()}, "value"),
    "groups of other queries": ({"groups": FLOATS(BATCH, 1, QUERIES + 1)}, "groups"),
    "groups of truths": ({"groups": torch.ones(BATCH, 1, QUERIES, dtype=torch.bool)}, "groups"),
    "mask of two axes": ({"mask": torch.ones(QUERIES, KEYS, dtype=torch.bool)}, "mask"),
    "mask of whole numbers": ({"mask": torch.ones(BATCH, 1, QUERIES, KEYS, dtype=torch.long)}, "mask"),
    "mask of text": ({"mask": "x"}, "mask"),
    "scale of text": ({"scale": "x"}, "scale"),
    "causal of text": ({"causal": "no"}, "causal"),
    "no queries": ({"query": FLOATS(BATCH, HEADS, 0, DIM)}, "query: expected at least one number on each axis"),
    "no key heads": ({"key": FLOATS(BATCH, 0, KEYS, DIM)}, "key: expected at least one number on each axis"),
    "no queries in a block": ({"block": 0}, "block"),
    "hidden of fractions": ({"hidden": FLOATS(1, 1, KEYS)}, "hidden"),
    "hidden of other keys": ({"hidden": torch.ones(1, 1, KEYS + 1, dtype=torch.bool)}, "hidden"),
    "hidden of text": ({"hidden": "x"}, "hidden"),
    "prefix of text": ({"prefix": "x"}, "prefix"),
    "prefix of other width": ({"prefix": Prefix(FLOATS(KV_HEADS, 2, DIM + 1))}, "prefix"),
    "prefix of other heads": ({"prefix": Prefix(logits=FLOATS(HEADS + 1, 2))}, "prefix"),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_inputs_that_do_not_fit_are_refused_by_name(case):
    more, name = BAD_INPUTS[case]
    plain = inspect.unwrap(attend)  # of what checks shapes in tests only
    with pytest.raises(SinkscopeError, match=f"^{re.escape(name)}"):
        checked(plain)(**{**vars(draw()), **more})


@pytest.mark.parametrize("name", ["sums", "diagonal", "last_row", "key", "value"])
def test_a_watcher_that_changes_what_others_see_is_refused(name):
    class Changes(Watcher):
        def watch(self, layer, columns):
            (getattr(layer, name) if name in ("key", "value") else getattr(columns, name)).zero_()

    network, diary = tiny_llama(), Diary()
    message = rf"Changes\.watch in .*layers\.0\..*: expected the tensors that it is shown to stay as they are, found {name} changed in place; "
    with (
        torch.no_grad(),
        subscribed(network, Changes()),
        subscribed(network, diary),
        pytest.raises(AttentionError, match=message),
    ):
        forward(network, IDS)
