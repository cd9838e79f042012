"""Rules as text, the mistakes that people make in them, and how a trace names them."""

import math
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sinkscope
from sinkscope.errors import CallError
from sinkscope.interventions import (
    HidePositions,
    HideSinksAbove,
    HideSinkToken,
    HideTopSinks,
    KeepWindow,
    RandomKeys,
    compose,
    known_rules,
    parse_rule,
    split_rules,
)
from sinkscope.interventions.intervention import canonical_rule

TEXTS = {
    "none": compose(),
    " top:10@current ": HideTopSinks(10, observe="current"),
    "top:5@hidden,layer,only_sinks,zero": HideTopSinks(
        5, measured="hidden", scope="layer", only_sinks=True, effect="zero"
    ),
    "top:1@previous,local,columns,head,mask": HideTopSinks(1),
    "top:2@layers=0-2+5,steps=3": HideTopSinks(2, layers=(0, 1, 2, 5), steps=(3,)),
    "random:1@seed=1,heads=5.1+0.5": RandomKeys(1, seed=1, heads={(0, 5), (5, 1)}),
    "top:2@keys=masked,queries=4": HideTopSinks(2, keys="masked", queries=(4,)),
    "above:2.5@percent": HideSinksAbove(2.5, unit="percent"),
    "above:inf": HideSinksAbove(math.inf),
    "window:4+64": KeepWindow(4, 64),
    "sink-token@layers=0-1,zero": HideSinkToken(layers=(0, 1), effect="zero"),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_rule_is_read(text):
    assert parse_rule(text) == TEXTS[text]


PLACES = st.none() | st.frozensets(st.integers(0, 40), max_size=4).filter(len)
GROUPED = PLACES | st.sampled_from(["masked", "unmasked", "prompt", "answer"])
CHOICES = {
    "observe": ["previous", "current"],
    "measured": ["local", "hidden", "clean"],
    "decide": ["columns", "last_row"],
    "scope": ["head", "kv_head", "layer"],
    "only_sinks": [False, True],
    "effect": ["mask", "zero"],
    "unit": ["percent", "queries"],
}
PAIRS = st.none() | st.frozensets(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=4)
OPTIONS = {
    **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    **{"layers": PLACES, "steps": PLACES, "keys": GROUPED, "queries": GROUPED, "heads": PAIRS},
    "seed": st.integers(0, 99),
}


@st.composite
def rules(draw):
    """Any rule that has a text."""
    kind = draw(st.sampled_from(list(known_rules().values())))
    fields = kind.__dataclass_fields__
    given = {name: draw(one) for name, one in OPTIONS.items() if name in fields}
    if given["heads"]:
        given["layers"] = None
    if kind is HideSinkToken:
        given["keys"] = None
    given |= {name: draw(st.integers(1, 30)) for name in ("k", "sinks", "recent") if name in fields}
    if kind is HideSinksAbove:
        given["excess"] = draw(st.floats(0, 0.999) | st.just(math.inf))
    if kind is HidePositions:
        given["positions"] = draw(st.frozensets(st.integers(0, 40), min_size=1, max_size=6))
    return kind(**given)


@given(rule=rules())
def test_the_text_of_a_rule_stands_for_it(rule):
    text = str(rule)
    assert parse_rule(text) == rule and canonical_rule(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("unheard-of:1", r"no rule 'unheard-of:1'; expected one of none, above:E, .*, sink-token, top:K, window:SINKS"),
        ("top", "expected top:K, found '' behind the colon"),
        ("top:-1", "k: expected a whole number from 0 upwards, found -1"),
        ("random:1@seed=x", "seed: expected numbers such as 2, found 'x'"),
        ("top:1@next", r"top:K has no option 'next'; expected some of .*only_sinks, .*layers=…, .*heads=…"),
        ("top:1@current,previous", "observe is given twice, as current and as previous"),
        ("top:1@layers=3-1", "layers: expected numbers such as 0-3\\+7, found '3-1'"),
    ],
)
def test_a_bad_rule_is_refused(text, message):
    with pytest.raises(CallError, match=message):
        parse_rule(text)


def test_rules_are_split_without_their_options():
    found = split_rules("none, top:1@current,last_row ,random:1@seed=2,sink-token,none")
    assert found == ["none", "top:1@current,last_row", "random:1@seed=2", "sink-token"]


def test_values_are_frozen_equal_and_hashable_with_numbers_of_numpy():
    rule = HideTopSinks(np.int64(1), heads=np.argwhere(np.eye(2)), layers=np.arange(3), steps=[np.int32(2)])
    assert rule == HideTopSinks(1, heads={(0, 0), (1, 1)}, layers=[2, 0, 1], steps=[2])
    assert repr(HideTopSinks(np.int64(2))) == repr(HideTopSinks(2))
    assert len({HideTopSinks(1), HideTopSinks(k=1), RandomKeys(1), RandomKeys(1, seed=1)}) == 3


@pytest.mark.parametrize(("text", "waits"), [("top:1", True), ("top:1@current", False), ("window:1+2", False)])
def test_a_rule_says_whether_it_waits_for_a_step(text, waits, diffusion):
    rule = parse_rule(text)
    assert rule.waits == waits == compose(HidePositions((1,)), rule).waits
    refused = pytest.raises(CallError, match=r"top:1 hid nothing: there was no step before; add observe='current'")
    with refused if waits else nullcontext(), rule(diffusion) as running, torch.no_grad():
        diffusion.network(torch.arange(5, 25)[None])
    assert (running.effect.steps.sum() > 0) == (not waits)
    assert running.effect.without_effect == () if not waits else len(running.effect.without_effect) == 1


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (HideTopSinks(1, layers=(1, 3)), r"layers or heads: the model has the layers 0…2, found 3"),
        (
            HideTopSinks(1, heads={(1, 4), (2, 6)}),
            "layers or heads: layer 2 of the model has the heads 0…[45], found 2.6",
        ),
    ],
)
def test_a_rule_that_can_match_nothing_on_a_model_is_refused(model, rule, message):
    with pytest.raises(CallError, match=message), rule(model):
        pass
    assert model.network.config._attn_implementation != "sinkscope"


@pytest.mark.parametrize(
    "text", ["top:1@current,queries=answer", "top:1@current,keys=answer", "position:0@queries=answer"]
)
def test_a_call_by_itself_has_no_answer_to_hide_from(model, text):
    message = (
        f"hide: {re.escape(text)} hid nothing: no such key was there for its queries; a call by itself is all prompt"
    )
    with pytest.raises(CallError, match=message), parse_rule(text)(model), torch.no_grad():
        model.network(torch.arange(5, 25)[None])
    with parse_rule(text.replace("answer", "prompt"))(model) as running, torch.no_grad():
        model.network(torch.arange(5, 25)[None])
    assert running.effect.removed_share > 0 and running.effect.without_effect == ()


def test_rules_that_were_never_reached_are_said(model, settings, question):
    whole = len(model.encode(question)) + 40
    texts = [f"position:{whole}", "position:0@steps=400", "above:500", "position:0", "position:0@heads=1.1,layers=0"]
    with compose(*map(parse_rule, texts))(model) as running:
        sinkscope.generate(model, question, **settings)
    absent, steps, above, layers = running.effect.without_effect
    assert layers == "position:0@layers=0,heads=1.1 hid nothing: none of its steps or layers was reached"
    assert absent == f"position:{whole} hid nothing: no such key was there for its queries"
    assert steps == "position:0@steps=400 hid nothing: none of its steps or layers was reached"
    assert above == "above:500 hid nothing: no such key was there for its queries"
    assert steps in str(running.effect) and running.effect.as_dict()["without_effect"] == [absent, steps, above, layers]
    with parse_rule(texts[1])(model) as running:
        assert running.effect.without_effect == ()
        sinkscope.generate(model, question, **settings)
    assert running.effect.without_effect == (steps,)
    with HidePositions(range(64))(model) as running:  # each query keeps its last key
        sinkscope.generate(model, question, **settings)
    assert running.effect.without_effect == (
        "position:0-63 hid nothing: a query keeps all keys where it would lose the last one",
    )


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


def test_more_keys_than_the_canvas_holds_are_refused(diffusion, question):
    size = len(diffusion.encode(question)) + 4
    message = f"k: expected fewer keys than the canvas holds, found {size} of {size}"
    with pytest.raises(CallError, match=message), HideTopSinks(size)(diffusion):
        sinkscope.generate(diffusion, question, length=4)
