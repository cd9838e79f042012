"""Verdicts on networks whose truth is known, because their weights were set by hand."""

import json
from dataclasses import asdict

import _networks_by_hand
import numpy as np
import pytest
import torch
from _networks_by_hand import KINDS, SETTINGS, SIZES

from sinkscope.errors import CallError
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.roles import Estimate, HeadRole, Roles, Rules, find_roles, read_roles, roles_for
from sinkscope.roles.find import count_to_hide
from sinkscope.roles.head_roles import decide
from sinkscope.roles.probes import make_probes
from sinkscope.roles.removal import look, removals_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("by-hand")


@pytest.mark.parametrize(("kind", "size"), [(kind, SIZES[at % len(SIZES)]) for at, kind in enumerate(KINDS)])
def test_the_verdict_on_a_network_set_by_hand_is_the_truth(folder, kind, size):
    layers, heads = size
    model, place, prompts = _networks_by_hand.make(folder / f"{layers}-{heads}", kind, layers, heads, 0)
    found = find_roles(model, prompts, **SETTINGS)
    (head,) = found.heads
    assert (head.layer, head.head) == place and not found.failed
    assert head.role == kind.partition(" ")[0], head
    assert head.substitutes == head.substitutes_at_least == KINDS[kind].sources
    assert head.to_hide == str(KINDS[kind].sources)
    assert found.settings["length"] == 40 and found.settings["canvases"] == 2 and found.together == {}
    substitute = kind == "idle with a substitute"
    assert (head.need == "dispensable") == substitute and head.measured[
        "to_substitutes" if substitute else "to_text"
    ].mean > 0.9


def test_sinks_of_an_untrained_network_stay_undecided(diffusion):
    prompts = [[5 + number, 30, 31, 32, 33 + number, 40, 41] for number in range(10)]
    rules = Rules(excess=0.3, lasting=0.5)
    found = find_roles(diffusion, prompts, length=16, steps=8, block=16, canvases=1, rules=rules)
    assert found.heads and {one.role for one in found.heads} == {"undecided"}


def estimate(low, high):
    return Estimate((low + high) / 2, low, high)


@pytest.mark.parametrize(
    ("lasting", "zeroed", "matched", "over", "norm", "even", "role"),
    [
        (1.0, (0.0, 0.001), (0.0, 0.0), (0.0, 0.0), (0.1, 0.2), (0.9, 1.0), "idle"),  # small norms
        (1.0, (0.0, 0.001), (0.0, 0.1), (0.002, 0.09), (1.0, 2.0), (0.9, 1.0), "idle"),  # as much of other keys matters
        (1.0, (0.0, 0.001), (0.0, 0.1), (-0.001, 0.09), (1.0, 2.0), (0.9, 1.0), "undecided"),  # not in every prompt
        (1.0, (0.0, 0.001), (0.001, 0.004), (0.001, 0.003), (1.0, 2.0), (0.9, 1.0), "undecided"),  # too little
        (1.0, (0.0, 0.01), (0.0, 0.1), (0.0, 0.09), (0.1, 0.2), (0.9, 1.0), "undecided"),
        (1.0, (0.01, 0.02), (0.0, 0.1), (0.0, 0.0), (1.0, 2.0), (0.85, 0.9), "broadcast"),
        (1.0, (0.01, 0.02), (0.0, 0.1), (0.0, 0.0), (1.0, 2.0), (0.2, 0.4), "carrier"),
        (1.0, (0.01, 0.02), (0.0, 0.1), (0.0, 0.0), (1.0, 2.0), (0.7, 0.9), "undecided"),
        (0.5, (0.01, 0.02), (0.0, 0.1), (0.0, 0.0), (1.0, 2.0), (0.2, 0.4), "undecided"),
    ],
)
def test_the_rules(lasting, zeroed, matched, over, norm, even, role):
    taken = estimate(0.1, 0.2)
    assert decide(lasting, *(estimate(*one) for one in (zeroed, matched, over, norm, even)), taken, Rules())[0] == role


def test_evenness_says_nothing_of_a_sink_at_which_the_queries_that_predict_hardly_look():
    known = [estimate(*one) for one in ((0.01, 0.02), (0.0, 0.0), (0.0, 0.0), (1.0, 2.0), (0.2, 0.4))]
    role, reason = decide(1.0, *known, estimate(0.001, 0.009), Rules())
    assert (
        role == "undecided"
        and "through other queries: those that predict give it under 1 % of their attention" in reason
    )
    assert decide(1.0, *known, estimate(0.001, 0.011), Rules())[0] == "carrier"
    assert decide(1.0, *known, estimate(0.001, 0.009), Rules(faint=0.0))[0] == "carrier", (
        "files that are older than the rule"
    )
    role, reason = decide(1.0, estimate(0.0, 0.001), *known[1:], estimate(0.001, 0.009), Rules())
    assert role == "undecided" and "give it under 1 % of their attention" in reason


@pytest.mark.parametrize(
    ("intervals", "count", "shown"),
    [
        ([(0.0, 0.001), (0.01, 0.02)], (2, 2), "2"),
        ([(0.001, 0.01), (0.01, 0.02)], (2, 1), "1–2"),
        ([(0.0, 0.001)] * 4 + [(0.01, 0.02)], (6, 5), "5–6"),
        ([(0.0, 0.001)] * 6, (None, 9), "> 8"),
        ([(0.0, 0.001)] * 5 + [(0.001, 0.01)], (None, 7), "≥ 7"),
        ([(0.001, 0.01)] * 6, (None, 1), "?"),
        ([], (None, 1), "?"),
    ],
)
def test_eight_keys_are_not_enough_only_where_hiding_eight_is_shown_to_change_nothing(intervals, count, shown):
    names = ("kl.sink", "kl.top.2", "kl.top.3", "kl.top.4", "kl.top.6", "kl.top.8")
    measured = {name: estimate(*one) for name, one in zip(names, intervals, strict=False)}
    assert count_to_hide(measured, Rules()) == count
    assert HeadRole(0, 0, "open", "idle", "", 1.0, 0.0, 0, None, measured, *count).to_hide == shown


def test_too_few_prompts_and_a_prompt_given_twice_are_refused(diffusion):
    with pytest.raises(CallError, match="expected at least 10 prompts, half to choose and half to judge, found 9"):
        find_roles(diffusion, [[5, 6, 7]] * 9)
    prompts = [torch.tensor([5, 6, number]) for number in range(7, 16)]
    with pytest.raises(CallError, match=r"prompts: expected each prompt once, .* found prompt 2 again as prompt 9"):
        find_roles(diffusion, [*prompts, prompts[2]])


def test_a_prompt_that_fails_does_not_lose_the_others_unless_too_few_are_left(folder):
    model, place, prompts = _networks_by_hand.make(folder / "1-3", "idle", 1, 3, 0)
    found = find_roles(model, [*prompts, [30] * 1000], **SETTINGS)
    assert set(found.failed) == {10} and "does not fit" in found.failed[10]
    assert found.judged == 5 and [(one.layer, one.head) for one in found.heads] == [place]
    expected = "at least 5 prompts that judge heads, found 4 .*, of 5; prompt 1 failed with: "
    with pytest.raises(CallError, match=expected):
        find_roles(model, [prompts[0], [30] * 1000, *prompts[2:]], **SETTINGS)


def test_without_memory_fewer_rows_share_a_call_and_no_prompt_fails(folder, monkeypatch):
    model, _, prompts = _networks_by_hand.make(folder / "1-3", "idle", 1, 3, 0)
    expected = find_roles(model, prompts, **SETTINGS)
    forward, most, refused = type(model.network.model).forward, 3, []

    def with_little_memory(self, input_ids=None, **others):
        if len(input_ids) > most:
            refused.append(len(input_ids))
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return forward(self, input_ids=input_ids, **others)

    monkeypatch.setattr(type(model.network.model), "forward", with_little_memory)
    found = find_roles(model, prompts, rows=32, **SETTINGS)
    assert set(refused) == {4} and not found.failed, "four, then two to a call"
    assert [one.role for one in found.heads] == [one.role for one in expected.heads] and found.judged == 5
    most = 0
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        find_roles(model, prompts, **SETTINGS)


def test_sinks_that_can_be_hidden_alone_are_hidden_together(folder):
    """Two heads add the same vector, and one of them is enough: alone each can go, together they cannot."""
    model, (layer, head), prompts = _networks_by_hand.make(folder / "1-3", "broadcast", 1, 3, 0)
    other, attention = (head + 1) % 3, model.network.model.layers[layer].self_attn
    here, there = slice(8 * head, 8 * head + 8), slice(8 * other, 8 * other + 8)
    with torch.no_grad():
        attention.v_proj.weight[here, _networks_by_hand.IS_SOURCE] *= 20
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(attention, name).weight[there] = getattr(attention, name).weight[here]
        attention.o_proj.weight[:, there] = attention.o_proj.weight[:, here]
    found = find_roles(model, prompts, **SETTINGS)
    together = found.together["dispensable"]
    assert [one.need for one in found.heads] == ["dispensable"] * 2
    assert together["kl.sink"].low > 1 > together["kept.sink"].high
    assert together["kl.sink.zero"].low > 1 and {*found.together} == {"dispensable", found.heads[0].role}
    assert Roles.from_dict(json.loads(json.dumps(found.as_dict()))) == found


@pytest.mark.parametrize("sinks", [0, 5])
def test_controls_hold_as_much_attention_as_the_sink_and_are_no_sinks(diffusion, sinks):
    """Where the keys that are no sinks hold less than the sink, the control is all of them."""
    (probe,) = make_probes(diffusion, [5, 30, 31, 32, 40, 41], canvases=1, length=24, steps=24, block=24)
    sight = look(diffusion, probe)
    for layer, head in np.ndindex(sight.evenness.shape):
        rows = sight.reader_rows[layer, head]
        is_sink = np.isin(np.arange(len(rows)), sight.order[layer, head, :sinks])
        by_name = {one.name: one for one in removals_of(sight, is_sink, layer, head, seed=0)}
        (top,), matched = np.flatnonzero(by_name["sink"].keys), by_name["rowmass"].keys
        assert not matched[top]
        assert np.array_equal(matched, by_name["rowmass.zero"].keys) and not (matched & is_sink).any()
        assert by_name["rowmass.zero"].zeroed and not by_name["rowmass"].zeroed
        wanted = min(rows[top], rows[~is_sink].sum() - (0 if sinks else rows[top]))
        largest = rows[matched | (np.arange(len(rows)) == top)].max()
        assert abs(rows[matched].sum() - wanted) <= largest + 1e-6
        assert by_name["top.4"].keys.sum() == 4 and by_name["top.4"].keys[top]


def test_roles_are_read_as_they_were_written(folder, tmp_path):
    model, place, prompts = _networks_by_hand.make(folder / "1-3", "carrier", 1, 3, 0)
    found = find_roles(model, [*prompts, [30] * 1000], **SETTINGS)
    (tmp_path / "roles.json").write_text(json.dumps(found.as_dict()))
    assert read_roles(tmp_path) == read_roles(tmp_path / "roles.json") == found
    assert found.of_head(*place) is found.heads[0] and found.of_head(place[0], place[1] + 3) is None
    assert roles_for(weight_hash_of(model), found) is found and roles_for("0" * 64, None) is None
    with pytest.raises(CallError, match=r"the roles are of .* with weights .*, the trace is of weights 000000000000…"):
        roles_for("0" * 64, found)
    with pytest.raises(CallError, match=r"roles\.json: heads\.0\.role: "):
        Roles.from_dict(found.as_dict() | {"heads": [asdict(found.heads[0]) | {"role": "king"}]})


def test_canvases_of_other_lengths_are_told(folder):
    model, _, prompts = _networks_by_hand.make(folder / "1-3", "idle", 1, 3, 0)
    found = find_roles(model, prompts, **SETTINGS)
    least, most = min(map(len, prompts)) + 40, max(map(len, prompts)) + 40
    assert found.canvas_tokens == (least, most)
    trace = {"model": {"weight_hash": found.weight_hash}, "prompt_length": most - 30, "sampler": {"length": 40}}
    doubt = found.doubt([trace, trace | {"prompt_length": least - 40}])
    assert doubt is not None and f"; 1 of 2 traces have {most + 10}, where" in doubt
    for known in ({"model": {"weight_hash": "0" * 64}}, {"prompt_length": least - 40}, {"sampler": {}}):
        assert found.doubt([trace | known]) is None, known
