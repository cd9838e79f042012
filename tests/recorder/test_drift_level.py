"""`--keep drift`: every number against loops over the keys and values of each step."""

import csv
import json

import numpy as np
import pytest
import torch
from closeness import assert_close

import sinkscope
from sinkscope.attention import Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.recorder.drift_recorder import CLASSES, MEASURES, DriftRecorder, drift_document, drift_table

PROMPTS = ["Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:", "Q: Tom has 9 apples.\nA:"]
SETTINGS = {"length": 12, "block": 4, "steps": 6}


class Everything(Watcher):
    """Keys, values and columns of every step and layer."""

    def __init__(self):
        self.steps = []

    def begin_step(self, context):
        self.steps.append((context.masked.clone(), context.lengths.clone(), []))

    def watch(self, call, columns):
        self.steps[-1][2].append((call.key.clone(), call.value.clone(), columns.sums[:, :, 0].clone()))


def kind_of(before, now, sums):
    mean_of_others = (sums.sum() - sums) / (len(sums) - 1)
    for place in range(len(sums)):
        if before[place] and not now[place]:
            yield "new"
        elif sums[place] - mean_of_others[place] > 3:
            yield "sink"
        else:
            yield "mask" if now[place] else "text"


def test_drift_is_that_of_the_keys_of_each_step(diffusion):
    lags = (1, 3)
    recorder, seen = DriftRecorder(diffusion, lags), Everything()
    with subscribed(diffusion.network, recorder), subscribed(diffusion.network, seen):
        sinkscope.generate(diffusion, PROMPTS, **SETTINGS)
    assert len(recorder.sums) == 2 and len(seen.steps) == 6
    layers, heads = diffusion.card.layers, diffusion.card.kv_heads
    kinds = set()
    for row in range(2):
        sums, counts = np.zeros((4, len(lags), 4, layers, heads)), np.zeros((len(lags), 4, layers, heads))
        for number, lag in enumerate(lags):
            for step in range(lag, 6):
                (before, _, then), (now, lengths, later) = seen.steps[step - lag], seen.steps[step]
                first = now.shape[1] - int(lengths[row])
                for layer in range(layers):
                    for head in range(heads):
                        classes = kind_of(before[row, first:], now[row, first:], later[layer][2][row, head, first:])
                        for offset, kind in enumerate(classes):
                            place, at = first + offset, CLASSES.index(kind)
                            kinds.add(kind)
                            counts[number, at, layer, head] += 1
                            for which in (0, 1):
                                old, new = (one[layer][which][row, head, place] for one in (then, later))
                                sums[which, number, at, layer, head] += float(
                                    torch.nn.functional.cosine_similarity(old, new, dim=0)
                                )
                                sums[2 + which, number, at, layer, head] += abs(float(new.norm() / old.norm()) - 1)
        assert np.array_equal(recorder.counts[row], counts)
        assert_close(recorder.sums[row].astype(np.float32), sums.astype(np.float32), terms=4000)
    assert {"new", "mask", "text"} <= kinds


def test_means_and_intervals_are_over_prompts():
    source = np.random.default_rng(4)
    counts = [np.full((1, 4, 2, 3), 5.0) for _ in range(6)]
    sums = [source.random((4, 1, 4, 2, 3)) * 5 for _ in range(6)]
    for one in counts:
        one[0, 1] = 0  # no sinks anywhere
    for one in sums:
        one[:, 0, 1] = 0
    document = drift_document(sums, counts, [1])
    rows = {(row["measure"], row["class"]): row for row in document["drift"]}
    assert rows["key_norm", "sink"]["by_layer"]["mean"] == [None, None] and rows["key_norm", "sink"]["positions"] == 0
    assert rows["key_norm", "mask"]["positions"] == 6 * 2 * 5  # prompts × layers × positions
    values = np.stack(sums)[:, MEASURES.index("value_cosine"), 0, CLASSES.index("mask")] / 5
    found = rows["value_cosine", "mask"]
    assert_close(np.array(found["by_layer"]["mean"]), values.mean((0, 2)), terms=10)
    assert_close(np.array(found["by_layer_and_head"]), values.mean(0), terms=10)
    assert all(
        low < mean < high
        for low, mean, high in zip(*(found["by_layer"][name] for name in ("low", "mean", "high")), strict=True)
    )
    assert f"| 1 | mask | {np.mean(rows['key_cosine', 'mask']['by_layer']['mean']):.4f} |" in drift_table(document)
    assert "| 1 | sink | – | – | – | – |" in drift_table(document)


def test_the_command_writes_numbers_and_a_figure(run, diffusion_folder, tmp_path):
    command = ["trace", diffusion_folder, "--prompt", PROMPTS[0], "--keep", "drift", "--length", 12]
    command += ["--out", tmp_path / "d"]
    status, out, err = run(*command, "--json")
    assert status == 0, err
    document = json.loads(out)
    assert document == json.loads((tmp_path / "d" / "drift.json").read_text())
    assert (document["prompts"], document["lags"]) == (1, [1, 8])
    rows = list(csv.DictReader((tmp_path / "d" / "drift-by-layer.csv").read_text().splitlines()))
    drawn = {(row["measure"], row["lag"], row["class"], row["layer"]): float(row["mean"]) for row in rows}
    for row in document["drift"]:
        for layer, mean in enumerate(row["by_layer"]["mean"]):
            if mean is not None:
                assert drawn.pop((row["measure"], str(row["lag"]), row["class"], str(layer))) == pytest.approx(mean)
    assert not drawn
    assert (tmp_path / "d" / "drift-by-layer.pdf").read_bytes().startswith(b"%PDF")
    status, _, err = run(*command)
    assert status == 2 and "already holds files" in err


def test_what_has_no_drift_is_refused(diffusion, autoregressive, tmp_path):
    refused = pytest.raises(CallError, match="drift needs a canvas that every step computes again")
    with refused, sinkscope.recording(autoregressive, out=tmp_path / "a", keep="drift"):
        sinkscope.generate(autoregressive, PROMPTS[0], length=4)
    with refused, sinkscope.recording(diffusion, out=tmp_path / "c", keep="drift"):
        sinkscope.generate(diffusion, PROMPTS[0], length=4, cache="block")


@pytest.mark.parametrize("keep", ["drift", "statistics"])
def test_generations_with_other_settings_or_rules_are_not_added_up(diffusion, tmp_path, keep):
    def under(rule, **settings):
        with sinkscope.parse_rule(rule)(diffusion):
            sinkscope.generate(diffusion, PROMPTS[0], **{"length": 8, "block": 8, "steps": 8, **settings})

    others = (
        ("none", "none", {"steps": 4}, "sampler.steps"),
        ("top:1", "top:2", {}, "hide"),
        ("none", "top:1", {}, "hide"),
    )
    for number, (first, second, settings, what) in enumerate(others):
        refused = pytest.raises(
            CallError, match=f"keep='{keep}' .* prompts of one setting: expected {what} .* as for the first prompt"
        )
        with refused, sinkscope.recording(diffusion, out=tmp_path / str(number), keep=keep):
            under(first)
            under(second, **settings)
    with sinkscope.recording(diffusion, out=tmp_path / "same", keep=keep):
        under("top:1")
        under("top:1", seed=3)
    if keep == "drift":
        (rules,) = json.loads((tmp_path / "same" / "drift.json").read_text())["hidden"]
        assert "HideTopSinks" in rules[0]
