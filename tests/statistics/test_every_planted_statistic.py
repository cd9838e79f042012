"""Every statistic of `analyse` against what was planted. A statistic is planted here, or in the test file of its
module (`test_second_column.py` for `second_column.py`); one that is planted in neither fails here.

The scene: 12 steps, a canvas of 40, the sinks take 0.35 of the attention. Layer 0: heads 0 and 2 have one that stays at
3, head 1 one that stands where the last token was committed (9, 10 … 20). Layer 1: head 0 has one at 3 for 6 steps,
heads 1 and 2 have none. Groups: masked queries give half their attention to 30, those of the prompt to 4, those written
to 17. Newlines: one in each prompt, at a place of its own, and the sink is there.
"""

import inspect
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from planted import APPLE, NEWLINE, THE, make_trace, sink_at

from sinkscope.statistics import Threshold, all_statistics, analyse

WIDTH, STRENGTH = 40, 14.0
TRAINING = {NEWLINE: 6, APPLE: 3, THE: 1}
NORMS = np.where(np.arange(WIDTH) % 2 == 0, 1.0, 3.0)  # position 3 is odd; 19 other odd ones
NORMS[3] = 0.5


def scene(seed):
    steps = np.arange(12)
    position = np.full((12, 2, 3), -1)
    position[:, 0, [0, 2]] = 3
    position[:, 0, 1] = 9 + steps
    position[:6, 1, 0] = 3
    tokens = np.where(np.arange(WIDTH) < 10, THE, APPLE)
    tokens[3] = NEWLINE
    columns = sink_at(position, width=WIDTH, strength=STRENGTH)
    norms = np.broadcast_to(NORMS, (12, 2, 1, WIDTH)).astype(np.float32)
    more = {"value_norms": norms, "key_norms": 2 * norms, "hidden_norms": 3 * norms[:, :, 0]}
    more["output_norms"] = 4 * np.repeat(norms, 3, axis=2)
    return make_trace(columns, tokens=tokens, seed=seed, **more)


def groups(seed):
    trace = make_trace(np.ones((24, 2, 3, WIDTH)), seed=seed)
    step = np.arange(24)
    sums = []
    for queries, place in ((30 - step, 30), (np.full(24, 10), 4), (step, 17)):
        mean = np.full(WIDTH, 0.5 / WIDTH)
        mean[place] += 0.5
        sums.append(np.broadcast_to((queries[:, None] * mean)[:, None, None], trace.column_sums.shape))
    trace.column_sums_masked, trace.column_sums_prompt = (one.astype(np.float32) for one in sums[:2])
    trace.column_sums = sum(sums).astype(np.float32)
    share = trace.column_sums.max(axis=-1, keepdims=True) / WIDTH
    trace.self_attention = np.broadcast_to(0.1 * (1 - share) ** 2, trace.column_sums.shape).copy()
    np.put_along_axis(trace.self_attention, trace.column_sums.argmax(axis=-1)[..., None], 0.05, axis=-1)
    return trace


def newlines(seed):
    place = int(np.random.default_rng(seed).permutation(WIDTH)[seed % WIDTH])
    tokens = np.full(WIDTH, THE)
    tokens[place] = NEWLINE
    return make_trace(sink_at(np.full(16, place), width=WIDTH), tokens=tokens, prompt_length=WIDTH, seed=seed)


CANVASES = {"scene": (scene, 3), "groups": (groups, 2), "newlines": (newlines, 12)}


@cache
def analysis_of(canvas):
    make, prompts = CANVASES[canvas]
    return analyse(map(make, range(prompts)), [Threshold(3.0)], training=TRAINING, choice=canvas == "newlines")


def norm_numbers():
    """By hand: of sinks and others in layer 1, effects in both layers, AUC, contribution and that over attention."""
    base = (WIDTH - STRENGTH) / (WIDTH - 1)
    sinks = [[NORMS[3]] * 24 + [NORMS[9 + step] for step in range(12)], [NORMS[3]] * 6]  # of each layer
    others, effects = [], []
    for of_layer in sinks:
        everything = np.tile(NORMS, 36).tolist()
        for one in of_layer:
            everything.remove(one)
        others.append(np.array(everything))
        squares = ((np.array(of_layer) - np.mean(of_layer)) ** 2).sum() + ((others[-1] - others[-1].mean()) ** 2).sum()
        effects.append((np.mean(of_layer) - others[-1].mean()) / np.sqrt(squares / (36 * WIDTH - 2)))
    each = np.concatenate(sinks)
    given = STRENGTH * each + base * (NORMS.sum() - each)
    contribution = (STRENGTH * each / given).mean()
    over = (STRENGTH * each).sum() / (STRENGTH / WIDTH * given).sum()
    auc = (
        30 * 1 + 6 * (18 / 2) / 39 + 6 * (19 + 19 / 2) / 39
    ) / 42  # the moving sink: 6 times on a norm of 3, 6 times on one of 1
    return others[1].mean(), effects, auc, contribution, over


OTHERS, EFFECTS, AUC, CONTRIBUTION, OVER_ATTENTION = norm_numbers()
SHARE = STRENGTH / WIDTH
ENTROPY = -(SHARE * np.log(SHARE) + (1 - SHARE) * np.log((1 - SHARE) / (WIDTH - 1))) / np.log(WIDTH)
GINI = SHARE - 1 / WIDTH
BY_TENTH = np.array([3, 4, 4, 1]) / 12  # of the positions 9 … 20
LARGEST = 0.5 + 0.5 * np.maximum(30 - np.arange(24), np.arange(24))

PLANTED = {  # name: (canvas, place, value); 42 of 72 steps × heads of the scene have a sink, 30 of them at 3
    "movement.steps_with_sink": ("scene", {}, 42 / 72),
    "movement.moves_per_head": ("scene", {}, 11 / 4),
    "movement.moves_in": ("scene", {"layer": 0}, 11 / 3),
    "movement.swaps_per_head": ("groups", {}, 1),  # from 30 to 17, both sinks before and after
    "movement.swaps_in": ("groups", {"layer": 1}, 1),
    "movement.distance": ("scene", {}, 1),
    "movement.distance_in": ("scene", {"layer": 0}, 1),
    "movement.rightward": ("scene", {}, 1),
    "movement.residence": ("scene", {}, 42 / 15),
    "movement.residence_in": ("scene", {"layer": 0}, 36 / 14),
    "movement.track_steps": ("scene", {}, 42 / 15),
    "movement.tracks": ("scene", {"kind": "static"}, 2 / 15),
    "movement.longest_track": ("scene", {"kind": "vanished"}, 1 / 6),
    "movement.longest_track_in": ("scene", {"kind": "none", "layer": 1}, 2 / 3),
    "movement.drift": ("scene", {}, 1 / 4),
    "movement.drift_median": ("scene", {}, 0),
    "movement.drift_right": ("scene", {}, 1 / 4),
    "movement.drift_in": ("scene", {"layer": 0}, 1 / 3),
    "movement.drift_relative": ("scene", {"frontier": "leftmost_mask"}, -3 / 4),
    "movement.drift_relative_in": ("scene", {"frontier": "leftmost_mask", "layer": 0}, -2 / 3),
    "movement.drift_by_depth": ("scene", {}, -1 / 3),
    "movement.moves_by_depth": ("scene", {}, -11 / 3),
    "triggers.share": ("scene", {"trigger": "entered"}, 1),
    "triggers.over_chance": ("scene", {"trigger": "entered"}, 1 - 1 / 11),
    "agreement.same_layer": ("scene", {}, 1 / 3),
    "agreement.other_layers": ("scene", {}, 2 / 3),
    "agreement.prompts_place": ("scene", {}, (3 + (BY_TENTH**2).sum()) / 4),
    "agreement.prompts_place_over_other_heads": ("scene", {}, (3 + (BY_TENTH**2).sum()) / 4 - 1 / 2),
    "agreement.prompts_class": ("scene", {}, 1),
    "agreement.prompts_class_over_other_heads": ("scene", {}, 1 / 2),
    "composition.share_of_sinks": ("scene", {"class": "newline"}, 30 / 42),
    "composition.share_of_canvas": ("scene", {"class": "newline"}, 1 / 40),
    "composition.times_expected": ("scene", {"class": "newline"}, 40 * 30 / 42),
    "composition.times_training": ("scene", {"class": "newline"}, 30 / 42 / 0.6),
    "composition.frequency_correlation": (
        "scene",
        {},
        1,
    ),  # newlines most often, then what was written, then the prompt
    "composition.token": ("scene", {"token": NEWLINE}, 30 / 42),
    "composition.token_on_canvas": ("scene", {"token": NEWLINE}, 1 / 40),
    "choice.all": ("newlines", {}, np.log2(WIDTH)),
    "choice.class": ("newlines", {}, np.log2(WIDTH)),
    "choice.position": ("newlines", {}, 0),
    "choice.mask_state": ("newlines", {}, 0),
    "groups.both": ("groups", {}, 23 / 24),  # 8 masked queries at least until step 22
    "groups.split": ("groups", {}, 1),
    "groups.split_in": ("groups", {"layer": 1}, 1),
    "groups.split_over_steps": ("groups", {"third": "last"}, 1),
    "groups.split_from_prompt": ("groups", {}, 1),
    "groups.split_from_written": ("groups", {}, 1),
    "groups.split_prompt_written": ("groups", {}, 1),
    "groups.persistence": ("groups", {}, 1 - 1 / 44),  # in one of 22 steps the unmasked ones' sink goes from 4 to 17
    "groups.follows_masked": ("groups", {}, 15 / 23),  # at step 15 as many are written as masked, ties to the left
    "groups.follows_masked_over_steps": ("groups", {"third": "middle"}, 7 / 8),
    "groups.self_share": ("groups", {}, (0.05 / LARGEST).mean()),
    "groups.self_attention_absorbed": ("groups", {}, -0.1),
    "answer_queries.steps_with_sink": ("groups", {}, 1),
    "answer_queries.moves_per_head": ("groups", {}, 0),  # as of all queries, both are sinks before and after
    "answer_queries.swaps_per_head": ("groups", {}, 1),
    "answer_queries.changes_per_head": ("groups", {}, 1),
    "answer_queries.changes_of_all": ("groups", {}, 1),
    "concentration.sinks_per_head": ("scene", {}, 42 / 72),
    "concentration.sinks_per_head_in": ("scene", {"layer": 1}, 6 / 36),
    "concentration.sinks_per_head_over_steps": ("scene", {"third": "first"}, 4 / 6),
    "concentration.share_on_sinks": ("scene", {}, SHARE * 42 / 72),
    "concentration.share_on_sinks_over_steps": ("scene", {"third": "last"}, SHARE * 3 / 6),
    "concentration.layers_without": ("scene", {}, 6 / 24),
    "concentration.number_by_depth": ("scene", {}, 1 / 6 - 1),
    "concentration.strength_by_depth": ("scene", {}, 0),
    "concentration.strength_in": ("scene", {"layer": 1}, STRENGTH),
    "concentration.entropy": ("scene", {}, (42 * ENTROPY + 30) / 72),
    "concentration.entropy_in": ("scene", {"layer": 0}, ENTROPY),
    "concentration.entropy_over_steps": ("scene", {"third": "last"}, (ENTROPY + 1) / 2),
    "concentration.gini": ("scene", {}, GINI * 42 / 72),
    "concentration.gini_in": ("scene", {"layer": 0}, GINI),
    "concentration.gini_over_steps": ("scene", {"third": "last"}, GINI / 2),
    "concentration.gu_rate": ("scene", {}, 42 / 72),
    "concentration.gu_rate_in": ("scene", {"layer": 1}, 6 / 36),
    "concentration.gu_rate_over_steps": ("scene", {"third": "middle"}, (2 * 4 + 2 * 3) / 24),
    "epsilon.not_sinks": ("scene", {"positions": "up to 64"}, 1 - 42 / (72 * WIDTH)),
    "norms.contribution": ("scene", {}, CONTRIBUTION),
    "norms.contribution_over_attention": ("scene", {}, OVER_ATTENTION),
    "norms.output_contribution": ("scene", {}, CONTRIBUTION),
    "norms.output_contribution_over_attention": ("scene", {}, OVER_ATTENTION),
    "norms.output_norm_of_sinks_in": ("scene", {"layer": 1}, 2.0),
    "norms.output_norm_of_others_in": ("scene", {"layer": 1}, 4 * OTHERS),
    "norms.output_norm_auc": ("scene", {}, AUC),
    "norms.output_norm_auc_in": ("scene", {"layer": 1}, 1),
} | {
    f"norms.{kind}_norm_{name}": ("scene", place, value)
    for kind, scale in (("value", 1), ("key", 2), ("hidden", 3))
    for name, place, value in (
        ("of_sinks_in", {"layer": 1}, 0.5 * scale),
        ("of_others_in", {"layer": 1}, OTHERS * scale),
        ("effect", {}, np.mean(EFFECTS)),
        ("effect_in", {"layer": 0}, EFFECTS[0]),
        ("auc", {}, AUC),
        ("auc_in", {"layer": 1}, 1),
    )
}


def planted_elsewhere(statistic):
    """Names that a statistic defines and the test file of its module, beside this one, quotes."""
    own = Path(__file__).with_name(f"test_{Path(inspect.getfile(type(statistic))).stem}.py")
    text = own.read_text(encoding="utf-8") if own.exists() else ""
    return {name for name in statistic.definitions if f'"{name}' in text}


def unplanted(statistics):
    """Numbers of the scenes that are planted neither here nor in the test file of their statistic."""
    elsewhere = set().union(*map(planted_elsewhere, statistics))
    names = {one.name for canvas in CANVASES for one in analysis_of(canvas).statistics} - set(PLANTED)
    return {name for name in names if name.removesuffix("_in").removesuffix("_over_steps") not in elsewhere}


def test_every_statistic_is_planted():
    assert unplanted(all_statistics()) == set()


def test_a_statistic_without_a_planted_value_is_seen(monkeypatch):
    monkeypatch.delitem(PLANTED, "epsilon.not_sinks")
    assert "epsilon.not_sinks" in unplanted(())
    monkeypatch.delitem(PLANTED, "movement.drift_in")
    assert "movement.drift_in" in unplanted(())
    assert "movement.drift_in" not in unplanted(all_statistics())  # tests/statistics/test_movement.py names it


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found(name):
    canvas, place, value = PLANTED[name]
    everywhere = name.split(".")[1].startswith(("entropy", "gini", "gu_rate"))  # without ε
    (found,) = analysis_of(canvas).find(name, **place, **({} if everywhere else {"excess": 3.0, "unit": "queries"}))
    fitted = name.startswith("choice.")  # a finite fit stays a little below what the class tells
    assert found.value == pytest.approx(value, abs=0.2 if fitted else 2e-6, rel=0 if fitted else 1e-5)
