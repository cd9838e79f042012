"""One clear message for each thing that a cache cannot be asked."""

import json

import pytest
from seeded_models import seeded_model

import sinkscope
from sinkscope.decoding import BlockCache, SettingsError, known_caches, parse_cache
from sinkscope.decoding.caches.policy import cache_definitions, definitions_text
from sinkscope.errors import CallError

PROMPT = [5, 9, 22, 41, 7]
REFUSED = [
    ("llada", {"cache": "fast"}, "no cache 'fast'; expected one of none, block"),
    ("llada", {"cache": "block:often=2"}, "options of block, each once (fresh=…, every=…, trigger=…"),
    ("llada", {"cache": "block:all"}, "found 'all'"),
    ("llada", {"cache": "block:every=two"}, "every: Input should be a valid integer"),
    ("llada", {"cache": "block:every=0"}, "every: Input should be greater than or equal to 1"),
    ("llada", {"cache": "block:every=2,every=3"}, "each once"),
    ("llada", {"cache": "block:keep=sinks"}, "expected keep and budget together, found keep=sinks and budget none"),
    ("llada", {"cache": "block:keep=top,budget=6", "block": 8}, "up to 5, which the shortest canvas of 13"),
    ("llada", {"cache": "block:suffix,keep=top,budget=2"}, "fresh=suffix computes keys that keep leaves out"),
    ("llada", {"cache": "block:trigger=sink,keep=top,budget=2"}, "trigger=sink looks at keys that keep leaves out"),
    ("llada", {"cache": "dkv-greedy"}, "commits in a random order, found --remasking low_confidence; set random"),
    ("dream", {"cache": "d2cache"}, "reads a token at its own position, found dream; use dkv-decode"),
    ("llada", {"cache": "d2cache", "block_order": "right_to_left"}, "blocks from left to right"),
    ("llada", {"cache": "elastic-cache", "block": 4}, "expected one block, found blocks of 4"),
    ("llada", {"cache": "block", "guidance": 1.5}, "does not go with guidance 1.5"),
    ("dream", {"cache": "fast-dllm-dual"}, "expected a block for dream, found None; write fast-dllm-dual:block=32"),
    ("dream", {"cache": "block:changed"}, "dream reads a token one position to its left"),
    ("autoregressive", {"cache": "block"}, "autoregressive has no setting 'cache'"),
    ("dream", {"threshold": 0.9}, "threshold: expected Fast-dLLM's cache, found none"),
]


@pytest.mark.parametrize(("sampler", "settings", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_does_not_fit_is_refused(sampler, settings, message):
    with pytest.raises((CallError, SettingsError)) as error:
        sinkscope.generate(seeded_model(sampler), PROMPT, length=8, **settings)
    assert message in str(error.value)


def test_definitions_say_what_every_policy_and_option_is():
    found = {one["name"]: one for one in cache_definitions()}
    assert list(found) == list(known_caches())
    assert all(one["does"].endswith(".") and option["does"] for one in found.values() for option in one["options"])
    assert "NVlabs/Fast-dLLM" in found["fast-dllm-prefix"]["source"] and found["block"]["source"] is None
    (every,) = [option for option in found["dkv-decode"]["options"] if option["name"] == "every"]
    assert every["default"] == 4 and "published: cache_reloading_step" in every["does"]
    (trigger,) = [option for option in found["block"]["options"] if option["name"] == "trigger"]
    assert trigger["choices"] == ["none", "sink", "drift", "confidence", "entropy"]
    assert "\n    trigger=none: one of none, sink, drift" in definitions_text()


def test_the_command_prints_definitions(run):
    status, out, _ = run("compare-caches", "--definitions")
    assert status == 0 and out.strip() == definitions_text()
    status, out, _ = run("compare-caches", "--definitions", "--json")
    assert status == 0 and json.loads(out) == {"caches": json.loads(json.dumps(cache_definitions()))}


class Renamed(BlockCache):
    """A policy that its text would not bring back."""


def test_a_policy_of_a_class_that_is_not_found_by_its_name_is_refused_with_the_reason():
    with pytest.raises(CallError, match="declare Renamed as an entry point"):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache=Renamed())


def test_a_policy_may_be_given_itself():
    model = seeded_model("llada")
    one = sinkscope.generate(model, PROMPT, length=16, block=4, cache=BlockCache(every=2))
    assert one.tokens.equal(sinkscope.generate(model, PROMPT, length=16, block=4, cache="block:every=2").tokens)
    assert parse_cache("block:suffix") == BlockCache(fresh="suffix")
    assert parse_cache("none") is None
