"""Verdicts on networks whose truth is known, because their weights were set by hand."""

import json
from pathlib import Path

import _networks_by_hand
import numpy as np
import pytest
from _networks_by_hand import KINDS, SETTINGS, SIZES

import sinkscope
from sinkscope.errors import CallError, EvaluationError
from sinkscope.roles import Estimate, Roles, Rules, find_roles, read_roles, roles_for
from sinkscope.roles.find import MATCHED_OVER
from sinkscope.roles.prompt_store import open_store
from sinkscope.roles.verdict import decide


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("by-hand")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_on_a_network_set_by_hand_is_the_truth(folder, kind, size):
    layers, heads = size
    model, place, prompts = _networks_by_hand.make(folder / f"{layers}-{heads}", kind, layers, heads, 0)
    found = find_roles(model, prompts, **SETTINGS)
    (head,) = found.heads
    assert (head.layer, head.head) == place and not found.failed
    assert head.role == kind.partition(" ")[0], head
    assert head.substitutes == KINDS[kind].sources
    assert head.removable == (kind == "idle with a substitute")
    if kind == "idle with a substitute":
        assert head.measured["to_substitutes"].mean > 0.99
    else:
        assert head.measured["to_text"].mean > 0.9


def test_sinks_of_an_untrained_network_stay_undecided(diffusion):
    prompts = [[5 + number, 30, 31, 32, 33 + number, 40, 41] for number in range(10)]
    found = find_roles(diffusion, prompts, length=24, steps=24, block=24, canvases=2, rules=Rules(excess=0.3, lasting=0.5))
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
    assert decide(lasting, *(estimate(*one) for one in (zeroed, matched, over, norm, even)), Rules())[0] == role


def test_no_interval_no_verdict():
    nothing = Estimate(0.1, None, None)
    assert decide(1.0, nothing, nothing, nothing, nothing, nothing, Rules()) == ("undecided", "too few prompts with a sink for an interval")


def test_too_few_prompts_are_refused(diffusion):
    with pytest.raises(CallError, match="expected at least 10 prompts, half to choose heads and half to judge them, found 9"):
        find_roles(diffusion, [[5, 6, 7]] * 9)
    with pytest.raises(CallError, match="canvases: expected at least 1, found 0"):
        find_roles(diffusion, [[5, 6, 7]] * 10, canvases=0)


def test_a_prompt_that_fails_does_not_lose_the_others(folder):
    model, place, prompts = _networks_by_hand.make(folder / "1-3", "idle", 1, 3, 0)
    prompts = [*prompts, [30] * 1000, [30] * 1000]
    told = []
    found = find_roles(model, prompts, on_prompt=told.append, **SETTINGS)
    assert sorted(told) == list(range(12)), "progress counts those that failed too"
    assert set(found.failed) == {10, 11} and all("does not fit" in why for why in found.failed.values())
    assert found.judged == 5 and [(one.layer, one.head) for one in found.heads] == [place]


def test_a_run_that_was_cut_off_goes_on_to_the_same_roles(folder, tmp_path):
    model, _, prompts = _networks_by_hand.make(folder / "1-3", "idle with a substitute", 1, 3, 1)
    whole = find_roles(model, prompts, out=tmp_path / "whole", **SETTINGS)

    class Cut(Exception):
        pass

    def cut(number):
        if number == 3:
            raise Cut

    with pytest.raises(Cut):
        find_roles(model, prompts, out=tmp_path / "cut", on_prompt=cut, **SETTINGS)
    done = []
    again = find_roles(model, prompts, out=tmp_path / "cut", on_prompt=done.append, **SETTINGS)
    assert again == whole and len(done) == 10
    with pytest.raises(CallError, match="holds the roles of another run: its prompts_sha256 is"):
        find_roles(model, prompts[::-1], out=tmp_path / "cut", **SETTINGS)
    identity = json.loads((tmp_path / "cut/run.json").read_text())
    del identity["checksum"]
    with open_store(tmp_path / "cut", identity), pytest.raises(EvaluationError, match="another run is writing into it"):
        find_roles(model, prompts, out=tmp_path / "cut", **SETTINGS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("")
    with pytest.raises(CallError, match=r"holds something else \(file …\); choose a new or empty folder"):
        find_roles(model, prompts, out=tmp_path / "other", **SETTINGS)


@pytest.mark.parametrize("sinks", [0, 5])
def test_controls_hold_as_much_attention_as_the_sink_and_are_no_sinks(diffusion, sinks):
    """Where the keys that are no sinks hold less than the sink, the control is all of them."""
    from sinkscope.roles.find import removals_of
    from sinkscope.roles.probes import make_probes
    from sinkscope.roles.sight import look

    (probe,) = make_probes(diffusion, [[5, 30, 31, 32, 40, 41]], canvases=1, length=24, steps=24, block=24)
    sight = look(diffusion, probe)
    for layer, head in np.ndindex(sight.evenness.shape):
        rows = sight.reader_rows[layer, head]
        is_sink = np.isin(np.arange(len(rows)), sight.order[layer, head, :sinks])
        by_name = {one.name: one for one in removals_of(sight, is_sink, layer, head, seed=0)}
        top = int(np.flatnonzero(by_name["sink"].keys)[0])
        matched = by_name["rowmass"].keys
        assert not matched[top] and not by_name["random"].keys[top] and by_name["random"].keys.sum() == 1
        assert np.array_equal(matched, by_name["rowmass.zero"].keys) and by_name["rowmass.zero"].zeroed and not by_name["rowmass"].zeroed
        assert not (matched & is_sink).any()
        reachable = rows[~is_sink].sum() - (0 if sinks else rows[top])
        wanted = min(rows[top], reachable)
        assert abs(rows[matched].sum() - wanted) <= rows[matched | (np.arange(len(rows)) == top)].max() + 1e-6
        assert by_name["top.4"].keys.sum() == 4 and by_name["top.4"].keys[top]


def test_roles_are_read_as_they_were_written(folder, tmp_path):
    model, place, prompts = _networks_by_hand.make(folder / "1-3", "carrier", 1, 3, 0)
    found = find_roles(model, [*prompts, [30] * 1000], **SETTINGS)
    (tmp_path / "roles.json").write_text(json.dumps(found.as_dict()))
    assert read_roles(tmp_path) == read_roles(tmp_path / "roles.json") == found
    assert found.of_head(*place) is found.heads[0] and found.of_head(place[0], place[1] + 3) is None
    assert roles_for(model.card.weight_hash, found) is found and roles_for("0" * 64, None) is None
    with pytest.raises(CallError, match=r"the roles are of .* with weights .*, the trace is of weights 000000000000…"):
        roles_for("0" * 64, found)
    with pytest.raises(CallError, match=r"heads\[0\]\.role: expected 'idle', .* found 'king'"):
        Roles.from_dict(found.as_dict() | {"heads": [found.heads[0].as_dict() | {"role": "king"}]})


def test_the_roles_in_the_results_are_those_of_the_bundled_weights_by_the_rules_of_today():
    model, path = sinkscope.load("lab-diffusion"), Path(__file__).parents[2] / "results/roles/lab-diffusion-0-shots.json"
    if not path.exists():
        pytest.skip("results/ is not part of an installed package")
    found = read_roles(path)
    assert (found.model, found.weight_hash, found.judged) == ("lab-diffusion", model.card.weight_hash, 24)
    assert found.count("carrier") and {one.removable for one in found.heads} == {True, False, None}
    for one in found.heads:
        estimates = (one.measured.get(name) for name in ("kl.sink.zero", "kl.rowmass.zero", MATCHED_OVER, "norm_ratio", "evenness"))
        assert decide(one.lasting, *estimates, found.rules) == (one.role, one.reason)
