"""Objects of ours that are made by hand, or changed by `dataclasses.replace`, are refused where they are made, or where they are used."""

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.decoding import Batch
from sinkscope.emergence import HeldOut, Moment, hold_out, measure
from sinkscope.emergence.history import Emergence
from sinkscope.errors import CallError
from sinkscope.figures import OpenedStatistics
from sinkscope.roles import Estimate, HeadRole, Probe, Roles, Rules, find_roles_on
from sinkscope.roles.head_roles import Together
from sinkscope.sinks import find_sinks
from sinkscope.statistics import Analysis, Summary
from sinkscope.statistics.analysis import Estimate as Mean
from sinkscope.work_items import Share

NUMBER = Estimate(0.5, 0.25, 0.75)
HEAD = HeadRole(0, 1, "idle", "adds nothing", 1.0, 0.5, " has", {"kl.sink": NUMBER}, 2, 1, True)
ROLES = Roles("lab", "0" * 64, 2, 3, Rules(), (HEAD, replace(HEAD, layer=1)), 4, 2, {})
KEYS = (("movement.drift", (("excess", 3.0), ("unit", "queries"))), ("concentration.gini", ()))
ANALYSIS = Analysis(
    (Mean("concentration.gini", {}, 0.5, None, None, 3),), 3, 2, 3, 0, ("a", "b", "c"), KEYS, np.zeros((3, 2))
)
BATCH = Batch(torch.tensor([[0, 4], [5, 6]]), torch.tensor([[False, True], [True, True]]), ("a", None))
READ = np.array([False, True, True, False])
PROBE = Probe(0, 0, np.arange(4), READ, READ)
HELD = HeldOut(PROBE, np.array([7, 8]), "1-2")
PLACES, SHARES = np.zeros((2, 1, 3), int), np.full((2, 1, 3), 0.5)
MOMENT = Moment(np.ones(2), np.ones(2), np.ones(2), PLACES, SHARES, SHARES, SHARES, SHARES, SHARES, PLACES)
EMERGENCE = Emergence({"name": "by hand"}, (0, 10), (MOMENT, MOMENT))
MANIFEST = {"format": 1, "level": "statistics", "complete": True, "prompts": 1, "expected": 1, "run": {}}
COLUMNS = np.ones((2, 1, 1, 4), np.float32)
SINKS = find_sinks(SimpleNamespace(steps=2, causal=False, column_sums=COLUMNS, tokens=np.ones((2, 4), int)))
STATISTICS = OpenedStatistics(MANIFEST, Summary(2, 3))

REFUSED = [
    (NUMBER, {"mean": "0.5"}, "mean: expected a number or None, found '0.5'"),
    (NUMBER, {"mean": float("nan")}, "mean: expected a finite number or None, found nan"),
    (NUMBER, {"low": 0.9}, "low, high: expected an interval, found 0.9 to 0.75"),
    (HEAD, {"layer": "0"}, "layer: expected a whole number, found '0'"),
    (HEAD, {"head": -1}, "head: expected a whole number from 0 upwards, found -1"),
    (HEAD, {"role": "lazy"}, "role: expected idle, broadcast, carrier or undecided, found 'lazy'"),
    (HEAD, {"lasting": 1.5}, "lasting: expected a share from 0 to 1, found 1.5"),
    (HEAD, {"place": float("nan")}, "place: expected a share from 0 to 1, found nan"),
    (HEAD, {"measured": {"kl.sink": 0.5}}, "measured['kl.sink']: expected Estimate, found 0.5"),
    (HEAD, {"substitutes": 0}, "substitutes: expected at least substitutes_at_least, 1, found 0"),
    (ROLES, {"heads": [HEAD, HEAD]}, "heads: expected each of 2 layers × 3 heads at most once, found 0.1"),
    (ROLES, {"heads": (replace(HEAD, head=3),)}, "heads: expected each of 2 layers × 3 heads at most once, found 0.3"),
    (ROLES, {"heads": ({"layer": 0},)}, "heads[0]: expected HeadRole, found dict"),
    (
        ROLES,
        {"together": Together(((5, 0),), {})},
        "heads: expected each of 2 layers × 3 heads at most once, found 5.0",
    ),
    (ROLES, {"judged": 5}, "judged: expected at most the 4 prompts, found 5"),
    (ROLES, {"canvas_tokens": (9, 3)}, "canvas_tokens: expected the shortest, then the longest, found [9, 3]"),
    (ROLES, {"canvas_tokens": (9,)}, "canvas_tokens: expected 2 items, found 1"),
    (ROLES, {"rules": None}, "rules: expected Rules, found null"),
    (ANALYSIS, {"statistics": [{"name": "a"}]}, "statistics[0]: expected Estimate, found dict"),
    (ANALYSIS, {"prompts": 4}, "values: expected [4, 2], as there are prompts and keys, found ndarray float64 [3, 2]"),
    (ANALYSIS, {"keys": KEYS[:1]}, "values: expected [3, 1], as there are prompts and keys"),
    (ANALYSIS, {"keys": ("movement.drift", "concentration.gini")}, "keys[0]: expected "),
    (ANALYSIS, {"values": [["a"]]}, "values: expected ndarray [prompt key]"),
    (ANALYSIS, {"prompt_texts": ("a",)}, "prompt_texts: expected one for each of 3 prompts, found 1"),
    (BATCH, {"tokens": [[0, 4], [5, 6]]}, "tokens: expected a tensor int64 [batch, position], found list"),
    (
        BATCH,
        {"tokens": torch.zeros(2, 2)},
        "tokens: expected a tensor int64 [batch, position], found Tensor float32 [2, 2]",
    ),
    (
        BATCH,
        {"real": torch.ones(2, 3, dtype=torch.bool)},
        "expected real [2, 2] and 2 texts, as there are tokens, found real [2, 3]",
    ),
    (
        BATCH,
        {"real": torch.tensor([[True, False], [True, True]])},
        "real: expected False on padding, which is left of each prompt",
    ),
    (BATCH, {"texts": ("a",)}, "found real [2, 2] and 1 texts"),
    (BATCH, {"texts": (1, 2)}, "texts[0]: expected text or None, found 1"),
    (PROBE, {"block": 0}, "block: expected None or at least 1 token, found 0"),
    (HELD, {"targets": [7]}, "targets: expected a token for each of the 2 readers, found 1"),
    (HELD, {"targets": [0.5, 0.5]}, "targets: expected ndarray [reader]"),
    (HELD, {"queries": "2-3"}, "queries: expected 'masked', or the readers '1-2', found '2-3'"),
    (MOMENT, {"share": SHARES[:, :, :2]}, "along the axis head"),
    (EMERGENCE, {"updates": (10, 10)}, "updates: expected at least one, each above the one before it, found [10, 10]"),
    (EMERGENCE, {"updates": (1, 2, 3)}, "moments: expected one for each of 3 updates, found 2"),
    (EMERGENCE, {"moments": (MOMENT, None)}, "moments[1]: expected Moment, found null"),
    (SINKS, {"position": np.zeros(1, int)}, "along the axis sink"),
    (SINKS, {"token": None}, "token: expected ndarray [sink], found null"),
    (SINKS, {"shape": (2, 1, 1, 5)}, "columns: expected the shape [2, 1, 1, 5], found ndarray float32 [2, 1, 1, 4]"),
    (SINKS, {"columns": np.ones((2, 1, 1, 5))}, "moving: expected 5 along the axis key, as columns has, found 4"),
    (SINKS, {"vocabulary": {1: "a"}}, "vocabulary: expected text as each key, found 1"),
    (STATISTICS, {"manifest": {**MANIFEST, "prompts": "1"}}, "manifest: prompts"),
    (STATISTICS, {"manifest": {}}, "manifest: "),
    (STATISTICS, {"summary": None}, "summary: expected Summary, found null"),
    (Share(0, 2), {"index": 2}, "share: expected an index from 0 to below its count, found 2 of 2"),
    (Share(0, 2), {"count": 1.5}, "count: expected a whole number, found 1.5"),
]


@pytest.mark.parametrize(
    ("made", "change", "message"), REFUSED, ids=[f"{type(one).__name__}-{'-'.join(c)}" for one, c, _ in REFUSED]
)
def test_an_object_with_a_wrong_field_is_refused_where_it_is_made(made, change, message):
    assert type(replace(made)) is type(made), "as it stands it is taken"
    with pytest.raises(CallError) as refused:
        replace(made, **change)
    assert message in str(refused.value)


def test_wrong_tracks_are_refused(tmp_path):
    """In a process of its own, because the tests check this module's types before the module does."""
    script = tmp_path / "replaces_tracks.py"
    script.write_text(
        "import dataclasses, types, numpy, sinkscope\n"
        "steps = types.SimpleNamespace(steps=2, causal=False, column_sums=numpy.ones((2, 1, 1, 4), 'f'), tokens=numpy.ones((2, 4), int))\n"
        "found = sinkscope.track(sinkscope.find_sinks(steps))\n"
        "for change in ({'tracks': (None,)}, {'heads': ({'layer': 0},)}, {'main': numpy.zeros(3)}):\n"
        "    try:\n"
        "        print(dataclasses.replace(found, **change))\n"
        "    except sinkscope.errors.CallError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "tracks[0]: expected Track, found null",
        "heads[0]: expected HeadMovement, found dict",
        "main: expected ndarray [step layer head], found ndarray float64 [3]",
    ], done.stderr


@pytest.mark.parametrize("below", [True, False])
def test_targets_that_the_network_does_not_have_are_refused(below):
    model = sinkscope.load("lab-diffusion")
    size = model.card.vocabulary
    token = -1 if below else size
    (held,) = hold_out([np.arange(20, 60)], mask_id=model.card.mask_id, seed=3)
    wrong = replace(held, targets=np.where(np.arange(len(held.targets)) == 1, token, held.targets))
    with pytest.raises(CallError, match=f"targets of canvas 0: expected token ids from 0 to {size - 1}, found {token}"):
        measure(model, [wrong])


def test_blocks_are_refused_by_a_network_without_blocks():
    model = sinkscope.load("lab-diffusion")
    (held,) = hold_out([np.arange(20, 60)], mask_id=model.card.mask_id, seed=3)
    with pytest.raises(CallError, match="canvas 0: expected block=None, as lab-diffusion sees no blocks, found 2"):
        measure(model, [replace(held, probe=replace(held.probe, block=2))])
    probes = [replace(PROBE, prompt=number, block=2) for number in range(8)]
    with pytest.raises(CallError, match="probe 0: expected block=None, as lab-diffusion sees no blocks, found 2"):
        find_roles_on(model, probes)
