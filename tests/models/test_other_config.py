"""The same weights under another config.json are another model, wherever what two runs wrote comes together."""

import dataclasses
import shutil

import pytest
from damage import configure

import sinkscope
from sinkscope.errors import CallError
from sinkscope.evaluation import results, tables
from sinkscope.figures.explorer import explore
from sinkscope.recorder.attention_map import recompute_map
from sinkscope.roles import Roles, Rules, roles_for
from sinkscope.statistics import analyse
from sinkscope.traces import open_trace

SETTINGS = {"length": 4, "steps": 4, "block": 4}


@pytest.fixture
def two(folder, tmp_path):
    """Two models that differ in one number of their config.json, each with a trace."""
    other = shutil.copytree(folder, tmp_path / "other")
    configure(other, rms_norm_eps=0.5)
    models = [sinkscope.load(folder), sinkscope.load(other)]
    for number, model in enumerate(models):
        with sinkscope.recording(model, out=tmp_path / f"trace-{number}"):
            sinkscope.generate(model, [5 + number, 9, 11, 7], **SETTINGS)
    return models, [open_trace(tmp_path / f"trace-{number}") for number in range(2)]


def test_their_traces_are_not_pooled(two):
    models, traces = two
    assert models[0].card.weight_hash == models[1].card.weight_hash
    with pytest.raises(CallError, match=r"expected traces of one model \(config.json\), found "):
        analyse(traces, choice=False)


def test_roles_of_one_are_not_those_of_the_other(two):
    models, traces = two
    card = models[0].card
    named = (card.name, card.weight_hash, card.layers, card.heads)
    roles = Roles(*named, Rules(), (), 2, 1, {}, config_hash=card.config_hash)
    assert explore(traces, roles=roles) and Roles.from_dict(roles.as_dict()) == roles
    with pytest.raises(CallError, match=r"found traces of other weights or another config\.json"):
        explore(traces[1:], roles=roles)
    cards = [trace.manifest["model"] for trace in traces]
    assert roles_for(cards[0]["weight_hash"], roles, cards[0]["config_hash"]) is roles
    with pytest.raises(CallError, match=r"the trace is of weights .*; find the roles of this model"):
        roles_for(cards[1]["weight_hash"], roles, cards[1]["config_hash"])


def test_a_map_is_not_computed_by_the_other(two):
    models, traces = two
    assert recompute_map(models[0], traces[0], step=1, layer=0, head=0).attention.shape == (8, 8)
    with pytest.raises(
        CallError, match=r"was written by these weights under the config\.json [0-9a-f]{12}…, .* has [0-9a-f]{12}…"
    ):
        recompute_map(models[1], traces[0], step=1, layer=0, head=0)


def test_their_results_are_not_paired(two, tmp_path):
    found = []
    for number, (model, hide) in enumerate(zip(two[0], ["none", "top:1"], strict=True)):
        renamed = dataclasses.replace(model, card=dataclasses.replace(model.card, name="m"))
        more = {"hide": [hide], "limit": 2, "shots": 0, "settings": SETTINGS, "progress": False}
        found += sinkscope.evaluate(renamed, tasks=["lab-arith"], out=tmp_path / f"results-{number}", **more)
    plain, other = found
    assert plain.config_hash == two[0][0].card.config_hash != other.config_hash
    assert [row["change"] for row in tables.compare(found)] == [None, None]
    same = dataclasses.replace(other, config_hash="")
    assert tables.compare([plain, same])[1]["change"] is not None and results.cell_of(plain) != results.cell_of(same)
