"""One clear message for each thing that a cache cannot be asked."""

import dataclasses
import json
from typing import ClassVar

import pytest
import torch
from seeded_models import seeded_model

import sinkscope
from sinkscope.decoding import BlockCache, SettingsError, known_caches, parse_cache
from sinkscope.decoding.caches.parsing import cache_definitions, definitions_text
from sinkscope.decoding.caches.policy import Plan
from sinkscope.errors import CallError

PROMPT = [5, 9, 22, 41, 7]
LEFT = "expected a family that reads a token at its own position, found dream; use --cache dkv-decode"
REFUSED = [
    ("llada", {"cache": "fast"}, "no cache 'fast'; expected one of none, block"),
    ("llada", {"cache": "block:often=2"}, "block has no option 'often=2'; its options: fresh=…, every=…, trigger=…"),
    ("llada", {"cache": "block:fresh=most"}, "fresh as block or suffix or sinks or changed or all, found 'most'"),
    ("llada", {"cache": "block:all"}, "all is a value of fresh and keep; write fresh=all"),
    ("llada", {"cache": "block:every=two"}, "expected every as a number, found 'two'"),
    ("llada", {"cache": "block:every=0"}, "every: expected at least 1, found 0"),
    ("llada", {"cache": "block:every=2,every=3"}, "every is given twice"),
    ("llada", {"cache": "block:keep=sinks"}, "expected keep and budget together, found keep=sinks and budget none"),
    ("llada", {"cache": "block:budget=4"}, "expected keep and budget together, found keep=all and budget 4"),
    ("llada", {"cache": "block:keep=sinks,budget=4,window=5"}, "expected a window from 1 to the budget of 4, found 5"),
    (
        "llada",
        {"cache": "block:keep=top,budget=6", "block": 8},
        "a budget of keys up to 5, which the shortest canvas of 13",
    ),
    ("llada", {"cache": "block:suffix,keep=top,budget=2"}, "fresh=suffix computes keys that keep leaves out"),
    (
        "llada",
        {"cache": "block:fresh=sinks,sinks=6", "block": 8},
        "expected sinks up to 5, which the shortest canvas of 13",
    ),
    ("llada", {"cache": "block:trigger=sink,keep=top,budget=2"}, "trigger=sink looks at keys that keep leaves out"),
    ("llada", {"cache": "block:fresh=sinks,trigger=drift"}, "trigger=drift does not note where sinks are"),
    ("llada", {"cache": "block:level=0.5"}, "expected level beside a trigger, up to 1 but for entropy, found 0.5"),
    ("llada", {"cache": "block:recent=2"}, "expected recent beside fresh=changed, found 2"),
    ("llada", {"cache": "dkv-greedy"}, "committed in a random order, found --remasking low_confidence; set random"),
    ("llada", {"cache": "dkv-greedy", "remasking": "random", "threshold": 0.9}, "leave --threshold and --factor out"),
    ("dream", {"cache": "dkv-greedy"}, "expected a family with LLaDA's sampler, found dream; use --cache dkv-decode"),
    ("llada", {"cache": "sparse-dllm:ratio=1.5"}, "ratio: expected a number from 0 to 1, found 1.5"),
    ("llada", {"cache": "sparse-dllm:pool=2"}, "expected pool as an odd number of keys, found 2"),
    *(("dream", {"cache": name}, LEFT) for name in ("sparse-dllm", "dllm-cache", "elastic-cache", "d2cache")),
    *(
        ("llada", {"cache": name, "block_order": "right_to_left", "remasking": "random"}, "blocks from left to right")
        for name in ("dkv-greedy", "d2cache")
    ),
    (
        "llada",
        {"cache": "d2cache:masks=1", "steps": 2},
        "expected masks from 4, which a step commits, upwards, found 1",
    ),
    (
        "llada",
        {"cache": "elastic-cache", "block": 4},
        "expected one block, over which its window moves, found blocks of 4",
    ),
    ("llada", {"cache": "elastic-cache:window=1", "steps": 2, "block": 8}, "expected a window from 4, which a step"),
    ("llada", {"cache": "block", "guidance": 1.5}, "does not go with guidance 1.5"),
    ("dream", {"cache": "fast-dllm-dual"}, "expected a block for dream, found None; write fast-dllm-dual:block=32"),
    ("llada", {"cache": "fast-dllm-prefix:block=4"}, "expected no block for llada, found 4; leave it out here"),
    ("dream", {"cache": "fast-dllm-dual:block=3"}, "expected a block that divides the 8 tokens to write, found 3"),
    (
        "dream",
        {"cache": "fast-dllm-dual:block=4", "steps": 2},
        "steps that 2 blocks share, at least two for each, found 2",
    ),
    ("dream", {"cache": "block:changed"}, "dream reads a token one position to its left"),
    ("llada", {"threshold": 0.9, "factor": 0.5}, "expected one of threshold and factor, found 0.9 and 0.5"),
    ("autoregressive", {"cache": "block"}, "autoregressive has no setting 'cache'"),
    ("dream", {"threshold": 0.9}, "threshold: expected Fast-dLLM's cache beside it, found cache none"),
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


def test_the_command_prints_definitions_and_asks_for_a_model(run):
    status, out, _ = run("compare-caches", "--definitions")
    assert status == 0 and out.strip() == definitions_text()
    status, out, _ = run("compare-caches", "--definitions", "--json")
    assert status == 0 and json.loads(out) == {"caches": json.loads(json.dumps(cache_definitions()))}
    status, _, told = run("compare-caches", "--out", "nowhere")
    assert status == 2 and "expected a model: a bundled name, a folder, or a hub id; found none" in told


@pytest.mark.parametrize("text", ["block", "block:fresh=changed,every=4", "fast-dllm-prefix"])
def test_a_policy_is_its_text(text):
    assert parse_cache(text).text == text


class Planning(BlockCache):
    made: object = None

    def plan(self, moment):
        return type(self).made


def test_a_policy_of_a_class_that_is_not_found_by_its_name_is_refused_with_the_reason():
    with pytest.raises(
        CallError, match=r"found by its name, .* found Planning; declare it as an entry point of the group"
    ):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache=Planning())


def test_a_policy_may_be_given_itself():
    model = seeded_model("llada")
    one = sinkscope.generate(model, PROMPT, length=16, block=4, cache=BlockCache(every=2))
    assert one.tokens.equal(sinkscope.generate(model, PROMPT, length=16, block=4, cache="block:every=2").tokens)
    assert parse_cache("block:suffix") == BlockCache(fresh="suffix")
    assert parse_cache("none") is None


class Answering(BlockCache):
    """A policy that answers as it is told, beside what a `BlockCache` does."""

    answers: dict = {}  # noqa: RUF012

    def first(self, moment):
        return self.answers["first"](moment) if "first" in self.answers else super().first(moment)

    def plan(self, moment):
        return self.answers["plan"](moment) if "plan" in self.answers else super().plan(moment)

    def kept(self, moment):
        return self.answers["kept"](moment) if "kept" in self.answers else None


def test_an_option_may_be_a_text(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class Worded(BlockCache):
        name: ClassVar = "worded"
        word: str = "a"

    monkeypatch.setattr("sinkscope.decoding.caches.parsing.known_caches", lambda: {"worded": Worded})
    assert parse_cache("worded:word=b,every=2") == Worded(word="b", every=2)
    assert parse_cache(Worded(word="b").text) == Worded(word="b")


def test_the_last_block_is_committed_whole_too(monkeypatch):
    monkeypatch.setattr(Answering, "answers", {"plan": lambda moment: Plan(None, slice(0, 3))})
    monkeypatch.setattr("sinkscope.decoding.caches.reader.parse_cache", lambda text: Answering())
    with pytest.raises(
        CallError, match="cache block: expected a block to be committed whole in its 16 steps, found 15 tokens left"
    ):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=16, cache="block")


def test_where_fewer_places_are_open_than_a_step_commits_nothing_else_is_written(monkeypatch):
    monkeypatch.setattr(
        Answering, "answers", {name: lambda moment: Plan(None, slice(18, 21)) for name in ("first", "plan")}
    )
    monkeypatch.setattr("sinkscope.decoding.caches.reader.parse_cache", lambda text: Answering())
    monkeypatch.setattr("sinkscope.decoding.dream.parse_cache", lambda text: Answering())
    steps = []
    model = seeded_model("dream")
    with pytest.raises(CallError, match="expected a block to be committed whole"):
        sinkscope.generate(
            model, PROMPT, length=16, steps=4, algorithm="maskgit_plus", cache="dkv-decode", on_step=steps.append
        )
    written = torch.stack([step.written[0] for step in steps])
    assert bool((written[:, :18] < 0).all()) and bool((written[:, 18:] >= 0).any(0).all())
