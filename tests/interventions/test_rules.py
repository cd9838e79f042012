"""Rules as text, and every message that bad input gets."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.errors import AttentionError, CallError
from sinkscope.interventions import (
    HidePositions,
    HideSinksAbove,
    HideSinkToken,
    HideTopSinks,
    KeepWindow,
    MassMatchedKeys,
    NextRanks,
    PersistentRandomKeys,
    RandomKeys,
    RowMatchedKeys,
    SameClassKeys,
    compose,
    known_controls,
    known_rules,
    parse_rule,
    split_rules,
)
from sinkscope.interventions.rules import canonical_rule

TEXTS = {
    "none": compose(),
    "top:1": HideTopSinks(1),
    "top:0": HideTopSinks(0),
    " top:10@current ": HideTopSinks(10, observe="current"),
    "top:1@current,last_row": HideTopSinks(1, observe="current", decide="last_row"),
    "top:5@hidden,layer,only_sinks,zero": HideTopSinks(
        5, measured="hidden", scope="layer", only_sinks=True, effect="zero"
    ),
    "top:1@previous,local,columns,head,mask": HideTopSinks(1),
    "top:1@clean,kv_head": HideTopSinks(1, measured="clean", scope="kv_head"),
    "top:2@layers=0-2+5,steps=3": HideTopSinks(2, layers=(0, 1, 2, 5), steps=(3,)),
    "top:1@heads=5.1+0.5": HideTopSinks(1, heads={(0, 5), (5, 1)}),
    "random:1@seed=1,heads=2.0": RandomKeys(1, seed=1, heads=[(2, 0)]),
    "sink-token@heads=1.3": HideSinkToken(heads={(1, 3)}),
    "top:2@keys=masked,queries=prompt": HideTopSinks(2, keys="masked", queries="prompt"),
    "top:2@keys=0-1,queries=4": HideTopSinks(2, keys=(0, 1), queries=(4,)),
    "random:1@seed=2": RandomKeys(1, seed=2),
    "mass:1": MassMatchedKeys(1),
    "rowmass:1@queries=masked": RowMatchedKeys(1, queries="masked"),
    "persistent:3@seed=7,current": PersistentRandomKeys(3, seed=7, observe="current"),
    "ranks:5": NextRanks(5),
    "class:1@seed=1": SameClassKeys(1, seed=1),
    "above:3": HideSinksAbove(3.0),
    "above:2.5@percent": HideSinksAbove(2.5, unit="percent"),
    "above:1e2@queries": HideSinksAbove(100.0),
    "above:inf": HideSinksAbove(math.inf),
    "window:4+64": KeepWindow(4, 64),
    "sink-token": HideSinkToken(),
    "sink-token@layers=0-1,zero": HideSinkToken(layers=(0, 1), effect="zero"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_rule_is_read(text):
    assert parse_rule(text) == TEXTS[text]


def untried(rules):
    """Words of rules that are read neither above nor in the test file of their module, as `test_bottom_keys.py`."""
    words = {re.split("[:@]", text.strip())[0] for text in TEXTS}
    own = {
        word: Path(__file__).with_name(f"test_{kind.__module__.rpartition('.')[2]}.py") for word, kind in rules.items()
    }
    return [
        word
        for word, path in own.items()
        if word not in words and not (path.exists() and f'"{word}' in path.read_text())
    ]


def test_every_rule_is_tried():
    assert untried(known_rules()) == []


def test_a_rule_that_nothing_tries_is_seen():
    assert untried({"new": KeepWindow, **known_rules()}) == ["new"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unheard-of:1", r"no rule 'unheard-of:1'; expected one of none, above:E, .*, sink-token, top:K, window:SINKS"),
        ("", "no rule ''; expected one of none"),
        ("none@current", "no rule 'none@current'"),
        ("sink-token:1", r"no rule 'sink-token:1'; expected one of none"),
        ("top", "rule 'top': expected top:K, found '' behind the colon"),
        ("top:two", "expected top:K, found 'two' behind the colon"),
        ("top:1.5", "expected top:K, found '1.5' behind the colon"),
        ("top:1+2", r"expected top:K, found '1\+2' behind the colon"),
        ("window:4", r"expected window:SINKS\+RECENT, found '4' behind the colon"),
        ("above:high", "expected above:E, found 'high' behind the colon"),
        ("top:-1", "k: expected a whole number from 0 upwards, found -1"),
        ("above:-1", "excess: expected a number from 0 upwards, found -1.0"),
        ("above:nan", "excess: expected a number from 0 upwards, found nan"),
        ("random:1@seed=-1", "seed: expected a whole number from 0 upwards, found -1"),
        ("random:1@seed=x", "rule 'random:1@seed=x': seed: expected numbers such as 2, found 'x'"),
        ("top:1@next", r"top:K has no option 'next'; expected some of only_sinks, .*layers=…, .*heads=…"),
        ("top:1@seed=2", "top:K has no option 'seed=2'"),
        ("random:1@sed=1", r"random:K has no option 'sed=1'; expected some of .*, seed=…"),
        ("class:1@classify=int", "class:K has no option 'classify=int'"),
        ("top:1@only_sinks=1", "top:K has no option 'only_sinks=1'"),
        ("top:1@current,previous", "observe is given twice, as current and as previous"),
        ("top:1@layers=a", "layers: expected numbers such as 0-3\\+7, found 'a'"),
        ("top:1@layers=3-1", "layers: expected numbers such as 0-3\\+7, found '3-1'"),
        ("top:1@layers=masked", "layers: expected numbers from 0 upwards, .*, found 'masked'"),
        ("top:1@heads=5.1-3", "heads: expected numbers such as 5.1\\+0.5, found '5.1-3'"),
        ("top:1@heads=5.1,layers=0-2", r"heads: expected \(layer, head\) .* in layers=\(0, 1, 2\)"),
        ("window:4+0", "recent: expected at least 1, a query sees itself, found 0"),
    ],
)
def test_a_bad_rule_is_refused(text, message):
    with pytest.raises(CallError, match=message):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("none,top:1,random:1", ["none", "top:1", "random:1"]),
        ("none, top:1@current,last_row ,random:1@seed=2", ["none", "top:1@current,last_row", "random:1@seed=2"]),
        ("top:1@layers=0-3,none,above:3", ["top:1@layers=0-3", "none", "above:3"]),
        ("top:1@current,sink-token,sink-token@zero", ["top:1@current", "sink-token", "sink-token@zero"]),
        ("nonsense,top:1", ["nonsense", "top:1"]),
        ("", []),
    ],
)
def test_rules_are_split_without_their_options(text, rules):
    assert split_rules(text) == rules


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HideTopSinks(1, observe="next"), "observe: expected previous or current, found 'next'"),
        (lambda: HideTopSinks(1, scope="all"), "scope: expected head or kv_head or layer, found 'all'"),
        (lambda: HideTopSinks(1, effect="drop"), "effect: expected mask or zero, found 'drop'"),
        (lambda: HideTopSinks(1, steps=(0, -1)), "steps: expected numbers from 0 upwards"),
        (lambda: HideTopSinks(1, keys="mask"), "keys: expected numbers .*, found 'mask'"),
        (lambda: HideTopSinks(1, heads={(0, -1)}), r"heads: expected \(layer, head\) from 0 upwards"),
        (lambda: HidePositions((0, -1)), r"positions: expected numbers from 0 upwards"),
        (lambda: HideSinksAbove(3, decide="last_row"), "excess 3 of one query's row can never be reached"),
        (lambda: HideSinksAbove(3, unit="mean"), "unit: expected queries or percent, found 'mean'"),
    ],
)
def test_a_bad_value_is_refused(make, message):
    with pytest.raises(CallError, match=message):
        make()


def test_values_are_frozen_equal_and_hashable():
    assert HideTopSinks(1, layers=[2, 0]) == HideTopSinks(1, layers=(0, 2))
    assert len({HideTopSinks(1), HideTopSinks(k=1), RandomKeys(1), RandomKeys(1, seed=1)}) == 3
    with pytest.raises(AttributeError):
        HideTopSinks(1).k = 2


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("top:1", True),
        ("top:1@current", False),
        ("random:2", True),
        ("above:3@current", False),
        ("window:1+2", False),
        ("none", False),
    ],
)
def test_a_rule_says_whether_it_waits_for_a_step(text, waits, diffusion):
    rule = parse_rule(text)
    assert rule.waits == waits == compose(HidePositions((1,)), rule).waits
    ids = torch.arange(5, 25)[None]
    with rule(diffusion) as running, torch.no_grad():
        diffusion.network(ids)
    assert (running.effect.steps.sum() > 0) == (not waits and text != "none")


def enter(rule, model):
    with rule(model):
        pass


def test_layers_beyond_the_model_are_refused(diffusion):
    with pytest.raises(CallError, match=r"layers or heads: the model has the layers 0…2, found 3"):
        enter(HideTopSinks(1, layers=(1, 3)), diffusion)
    assert diffusion.network.config._attn_implementation != "sinkscope"


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ({(1, 4), (3, 0)}, "the model has the layers 0…2, found 3"),
        ({(1, 4), (2, 6)}, "heads: layer 2 of the model has the heads 0…[45], found 2.6"),
    ],
)
def test_heads_beyond_the_model_are_refused(model, heads, message):
    with pytest.raises(CallError, match=message):
        enter(HideTopSinks(1, heads=heads), model)
    assert model.network.config._attn_implementation != "sinkscope"


def test_more_keys_than_the_canvas_holds_are_refused(model, question):
    size = len(model.encode(question)) + (1 if model.family.causal else 4)
    message = f"k: expected fewer keys than the canvas holds, found {size} of {size}"
    with pytest.raises(CallError, match=message), HideTopSinks(size)(model):
        sinkscope.generate(model, question, length=4)
    with HideTopSinks(size - 1)(model):
        sinkscope.generate(model, question, length=4)


def test_classes_need_a_tokenizer_or_a_function(diffusion):
    ids = torch.arange(5, 15)[None]
    message = "classify: expected a function, as a bare network has no tokenizer"
    with pytest.raises(CallError, match=message), SameClassKeys(1)(diffusion.network), torch.no_grad():
        diffusion.network(ids)
        diffusion.network(ids)


def test_a_batch_that_changes_within_a_generation_is_refused(diffusion):
    from sinkscope.attention import StepContext

    def context(rows):
        shape = (rows, 4)
        return StepContext(
            torch.ones(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool), torch.full((rows,), 4), (), ()
        )

    with HideTopSinks(1)(diffusion) as running:
        running.begin_step(context(2))
        with pytest.raises(AttentionError, match="expected the batch of 2 rows that began it, found 3"):
            running.begin_step(context(3))


def test_a_clean_look_needs_tokens(diffusion):
    embeddings = diffusion.network.get_input_embeddings()(torch.arange(5, 15)[None]).detach()
    message, rule = (
        "one stack, given token ids",
        HideTopSinks(1, measured="clean"),
    )
    with pytest.raises(AttentionError, match=message), rule(diffusion), torch.no_grad():
        diffusion.network(inputs_embeds=embeddings)


def test_cross_attention_is_refused():
    from transformers import BartConfig, BartForConditionalGeneration

    shape = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3, "decoder_attention_heads": 3}
    network = BartForConditionalGeneration(
        BartConfig(vocab_size=50, d_model=24, encoder_ffn_dim=16, decoder_ffn_dim=16, **shape)
    ).eval()
    message = r"expected .*encoder_attn to attend to the 4 tokens of the canvas, found 7 keys"
    with pytest.raises(AttentionError, match=message), HidePositions((0,))(network), torch.no_grad():
        network(input_ids=torch.ones(1, 7, dtype=torch.long), decoder_input_ids=torch.ones(1, 4, dtype=torch.long))


def test_a_trace_says_what_was_hidden(model, settings, question, short, tmp_path):
    with sinkscope.recording(model, out=tmp_path / "t"), HideTopSinks(2)(model) as running:
        sinkscope.generate(model, [question, short], **settings)
    for row in range(2):
        (found,) = sinkscope.open_trace(tmp_path / "t" / f"{row:06d}").manifest["hidden"]
        assert found == {"rules": [repr(HideTopSinks(2))], **running.effect.of(row).as_dict()}
    with sinkscope.recording(model, out=tmp_path / "plain"):
        sinkscope.generate(model, question, **settings)
    assert sinkscope.open_trace(tmp_path / "plain").manifest["hidden"] == []


def test_a_trace_of_plain_calls_says_what_was_hidden_though_the_rule_has_left(diffusion, tmp_path):
    tokens = torch.arange(5, 15)[None]
    with sinkscope.recording(diffusion, out=tmp_path / "t"), torch.no_grad():
        with (rule := HideTopSinks(1, observe="current"))(diffusion) as running:
            diffusion.network(input_ids=tokens, use_cache=False)
        diffusion.network(input_ids=tokens, use_cache=False)
    (found,) = sinkscope.open_trace(tmp_path / "t").manifest["hidden"]
    assert found == {"rules": [repr(rule)], **running.effect.as_dict()} and found["removed_share"] > 0


def test_statistics_say_the_rules(diffusion, question, tmp_path):
    from sinkscope.traces import read_statistics

    with sinkscope.recording(diffusion, out=tmp_path / "s", keep="statistics"), (rule := HideTopSinks(1))(diffusion):
        sinkscope.generate(diffusion, question, length=4)
    assert read_statistics(tmp_path / "s")[0]["hidden"] == [{"rules": [repr(rule)]}]


def test_controls_say_whether_they_draw_at_random():
    ours = {"class": True, "mass": True, "persistent": True, "random": True, "ranks": False, "rowmass": True}
    assert known_controls().items() >= ours.items()


@pytest.mark.parametrize(("text", "least"), [("top:3", 4), ("ranks:3", 7), ("window:4+64", 1), ("none", 1)])
def test_a_rule_says_how_long_a_canvas_must_be(text, least):
    rule = parse_rule(text)
    assert rule.least_tokens == least and compose(rule, HideTopSinks(1)).least_tokens == max(least, 2)


def test_numbers_of_numpy_are_numbers():
    heads = np.argwhere(np.eye(2, dtype=bool))
    rule = HideTopSinks(np.int64(1), heads=heads, layers=np.arange(3), steps=[np.int32(2)])
    assert rule == HideTopSinks(1, heads={(0, 0), (1, 1)}, layers=range(3), steps=[2])
    assert all(type(number) is int for number in (*rule.layers, *rule.steps, *rule.heads[1]))
    assert HidePositions(np.array([3, 1])) == HidePositions((1, 3))
    assert repr(HideTopSinks(np.int64(2), only_sinks=np.bool_(True))) == repr(HideTopSinks(2, only_sinks=True))
    assert repr(HideSinksAbove(np.float32(3))) == repr(HideSinksAbove(np.float64(3))) == repr(HideSinksAbove(3.0))


CANONICAL = {
    "none": "none",
    " top:01 ": "top:1",
    "top:1@mask,previous,columns": "top:1",
    "top:1@layers=0-0": "top:1@layers=0",
    "top:1@queries=2+1+0+7,zero,last_row,current": "top:1@current,last_row,zero,queries=0-2+7",
    "top:1@heads=5.1+0.5,keys=masked": "top:1@keys=masked,heads=0.5+5.1",
    "top:1@only_sinks,hidden": "top:1@hidden,only_sinks",
    "random:1": "random:1@seed=0",
    "random:1@seed=002,last_row": "random:1@last_row,seed=2",
    "above:3.0": "above:3",
    "above:.50@percent": "above:0.5@percent",
    "above:1e30": "above:1e30",
    "above:inf": "above:inf",
    "window:04+064": "window:4+64",
    "sink-token@layers=1+2": "sink-token@layers=1-2",
}


@pytest.mark.parametrize("text", CANONICAL)
def test_a_rule_has_one_text_whatever_way_it_is_written(text):
    found = canonical_rule(text)
    assert (found, parse_rule(found)) == (CANONICAL[text], parse_rule(text))
    assert canonical_rule(found) == found


@pytest.mark.parametrize("text", TEXTS)
def test_the_one_text_of_a_rule_stands_for_the_same_rule(text):
    assert parse_rule(canonical_rule(text)) == parse_rule(text)
