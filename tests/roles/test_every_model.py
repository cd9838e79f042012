"""What a head does is seen in every family and with every sink token: the rows of all queries add up to the columns."""

import copy
import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from closeness import assert_close, terms_of

from sinkscope.models import add_sink_token
from sinkscope.models.sink_token import VARIANTS
from sinkscope.roles.head_roles import Rules
from sinkscope.roles.probes import Probe, make_probes
from sinkscope.roles.removal import (
    REMOVALS,
    Removal,
    Sights,
    described_head,
    divergences,
    look,
    measure_heads,
    measure_together,
    sinks_by_head,
)
from sinkscope.runs.folder import Items

sys.path.append(str(Path(__file__).parents[1] / "decoding"))

from seeded_models import NETWORKS, seeded_model

PROMPT = [5, 30, 31, 32, 40, 41, 7]


def everyone(model):
    """A canvas that every query reads."""
    everywhere = np.ones(24, bool)
    return Probe(0, 0, np.random.default_rng(0).integers(5, 50, 24).astype(np.int32), everywhere, everywhere)


def check(model):
    probe = everyone(model)
    sight = look(model, probe)
    assert_close(sight.reader_rows * 24, sight.columns, terms=terms_of(model.network, 24))
    assert_close(sight.committed_rows, sight.reader_rows, terms=24)
    assert np.isfinite(sight.output_norms).all() and (sight.output_norms > 0).all()
    shares = sight.moved.sum(-1) + sight.sink_token
    assert_close(shares, np.ones_like(shares), terms=terms_of(model.network, 24))
    assert (sight.itself >= 0).all() and (sight.itself <= sight.moved + 1e-6).all()
    for layer, head in np.ndindex(shares.shape):
        # By this rule half of the keys are substitutes.
        described = described_head(sight, probe, (layer, head), np.ones(24, bool), Rules(small=1.0))
        to = [described[f"to_{name}"] for name in ("substitutes", "itself", "text", "sink_token")]
        assert min(to) >= 0 and sum(to) == pytest.approx(1, abs=1e-4)
    nobody = [[Removal("nothing", 0, 0, np.zeros(24, bool), zeroed)] for zeroed in (False, True)]
    one = [[Removal("one", layer, 0, np.arange(24) == order[0, 0])] for layer, order in enumerate(sight.order)]
    assert sight.outputs
    kl, kept = divergences(model, probe, sight, [*nobody, *one], rows=3)
    from_the_start = divergences(model, probe, dataclasses.replace(sight, outputs=()), [*nobody, *one], rows=1)[0]
    assert kl == pytest.approx(from_the_start, rel=1e-3, abs=1e-6)
    assert kl[:2].max() < 1e-6 and kept[:2].tolist() == [1, 1] and kl[2:].min() > 1e-7
    return sight


@pytest.mark.parametrize("family", NETWORKS)
def test_every_family(family, tmp_path):
    model = seeded_model(family)
    assert_close(check(model).columns.sum(-1), 24.0, terms=terms_of(model.network, 24), dtype=torch.float32)
    check_files(model, tmp_path)
    probe = make_probes(model, PROMPT, canvases=1, length=12)[0]
    assert probe.committed.any() and (probe.committed <= probe.readers).all()
    if not model.family.causal:
        masked = np.flatnonzero(probe.tokens == model.card.mask_id) - int(model.family.shift)
        assert np.flatnonzero(probe.readers).tolist() == masked.tolist()


def check_files(model, folder):
    """Write what is measured of a prompt, and read it back."""
    probes, rules = make_probes(model, PROMPT, canvases=1, length=8), Rules(excess=0.0, lasting=0.0)
    heads = [(layer, 0) for layer in range(model.card.layers)]
    found = {
        "choose": sinks_by_head(probes, model, rules),
        "judge": measure_heads(probes, heads, Sights(model), rules, REMOVALS, 0),
        "together": measure_together(probes, {"all": heads}, Sights(model), rules, 0),
    }
    for kind, rows in found.items():
        stored = Items(folder / kind, "a run")
        stored.commit(0, {"rows": rows})
        assert stored.read(0)["rows"] == rows
    assert any("kl.sink" in row for row in found["judge"])


@pytest.mark.parametrize("variant", [name for name, one in VARIANTS.items() if one is not None])
def test_every_sink_token(diffusion, variant, tmp_path):
    torch.manual_seed(0)
    network = add_sink_token(copy.deepcopy(diffusion.network), variant)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "sink" in name:
                parameter.normal_()
    sight = check(model := dataclasses.replace(diffusion, network=network.eval()))
    check_files(model, tmp_path)
    assert (sight.sink_token > 0.001).all() == (variant != "gate"), "a gate has no key; the others take attention too"


def test_a_canvas_is_seen_in_the_blocks_that_it_was_written_in():
    model = seeded_model("sdar")
    probe = make_probes(model, PROMPT, length=16, block=8, block_steps=8, temperature=0)[1]
    assert probe.block == 8
    plain = dataclasses.replace(probe, block=None)
    with model.network.model.blocks_of(8):
        expected = look(model, plain)
    found, other = look(model, probe), look(model, plain)
    assert_close(found.columns, expected.columns, terms=terms_of(model.network, 24))
    assert np.abs(found.columns - other.columns).max() > 0.01
    hidden = Removal("one", 0, 0, np.arange(len(probe.tokens)) == 2)
    with model.network.model.blocks_of(8):
        wanted = divergences(model, plain, expected, [[hidden]])
    assert divergences(model, probe, found, [[hidden]])[0] == pytest.approx(wanted[0], rel=1e-4)
    assert make_probes(model, PROMPT, length=16)[0].block == 4
