"""One clear message for each thing that a cache cannot be asked."""

import dataclasses
import json
from typing import ClassVar

import pytest
import torch
from seeded_models import seeded_model

import sinkscope
from sinkscope.decoding import BlockCache, SettingsError, known_caches, parse_cache
from sinkscope.decoding.caches.definitions import cache_definitions, definitions_text
from sinkscope.decoding.caches.policy import CachePolicy, Plan
from sinkscope.errors import CallError, ModelError

PROMPT = [5, 9, 22, 41, 7]
REFUSED = [
    ("llada", {"cache": "fast"}, "no cache 'fast'; expected one of none, block"),
    ("llada", {"cache": "block:often=2"}, "block has no option 'often=2'; its options: fresh=…, every=…, trigger=…"),
    (
        "llada",
        {"cache": "block:fresh=most"},
        "expected fresh as block or suffix or sinks or changed or all, found 'most'",
    ),
    ("llada", {"cache": "block:all"}, "all is a value of fresh and keep; write fresh=all"),
    ("llada", {"cache": "block:every=two"}, "expected every as a number, found 'two'"),
    *(
        ("llada", {"cache": f"block:every={one}"}, f"expected every as a number, found '{one}'")
        for one in ("1_0", "١", " 8")
    ),
    ("llada", {"cache": "block:every=0"}, "expected every as a number of steps from 1 upwards, found 0"),
    ("llada", {"cache": "block:every=2,every=3"}, "every is given twice"),
    ("llada", {"cache": "block:keep=sinks"}, "expected keep and budget together, found keep=sinks and budget none"),
    ("llada", {"cache": "block:budget=4"}, "expected keep and budget together, found keep=all and budget 4"),
    ("llada", {"cache": "block:keep=top,budget=0"}, "expected a budget of keys from 1 upwards, found 0"),
    ("llada", {"cache": "block:keep=sinks,budget=8,window=0"}, "expected a window from 1 to the budget of 8, found 0"),
    ("llada", {"cache": "block:keep=sinks,budget=4,window=5"}, "expected a window from 1 to the budget of 4, found 5"),
    (
        "llada",
        {"cache": "block:keep=top,budget=6", "block": 8},
        "expected a budget of at most 5 keys, which the shortest canvas of 13",
    ),
    (
        "llada",
        {"cache": "block:suffix,keep=top,budget=2"},
        "fresh=suffix computes keys that keep leaves out; use fresh=block",
    ),
    (
        "llada",
        {"cache": "block:fresh=sinks,keep=top,budget=2"},
        "fresh=sinks computes keys that keep leaves out; use fresh=block",
    ),
    (
        "llada",
        {"cache": "block:fresh=sinks,sinks=0"},
        "expected sinks as a number of positions from 1 upwards, found 0",
    ),
    (
        "llada",
        {"cache": "block:fresh=sinks,sinks=6", "block": 8},
        "expected at most 5 sinks, which the shortest canvas of 13 tokens has",
    ),
    ("llada", {"cache": "block:trigger=sink,keep=top,budget=2"}, "trigger=sink looks at keys that keep leaves out"),
    (
        "llada",
        {"cache": "block:fresh=sinks,trigger=drift"},
        "trigger=drift does not note where sinks are, which fresh=sinks needs",
    ),
    (
        "llada",
        {"cache": "block:level=0.5"},
        "expected level above 0 and up to 1, beside a trigger, found 0.5 and trigger=none",
    ),
    (
        "llada",
        {"cache": "block:trigger=sink,level=0"},
        "expected level above 0 and up to 1, beside a trigger, found 0 and trigger=sink",
    ),
    ("llada", {"cache": "dkv-decode:every=0"}, "expected every as a number of steps from 1 upwards, found 0"),
    (
        "llada",
        {"cache": "dkv-greedy"},
        "expected tokens to be committed in a random order, found --remasking low_confidence; set random",
    ),
    (
        "llada",
        {"cache": "dkv-greedy:every=0", "remasking": "random"},
        "expected every as a number of steps from 1 upwards, found 0",
    ),
    (
        "llada",
        {"cache": "dkv-greedy:window=-1", "remasking": "random"},
        "expected window as a number of masks from 0 upwards, found -1",
    ),
    ("llada", {"cache": "dkv-greedy", "remasking": "random", "threshold": 0.9}, "leave --threshold and --factor out"),
    (
        "llada",
        {"cache": "dkv-greedy", "remasking": "random", "block_order": "right_to_left"},
        "expected blocks from left to right",
    ),
    ("dream", {"cache": "dkv-greedy"}, "expected a family with LLaDA's sampler, found dream; use --cache dkv-decode"),
    ("llada", {"cache": "sparse-dllm:ratio=0"}, "expected ratio as a share above 0 and up to 1, found 0.0"),
    ("llada", {"cache": "sparse-dllm:pool=2"}, "expected pool as an odd number of keys, found 2"),
    ("dream", {"cache": "sparse-dllm"}, "expected a family that reads a token at its own position, found dream"),
    (
        "llada",
        {"cache": "block:recent=2"},
        "expected recent as a number of steps from 1 upwards, beside fresh=changed, found 2",
    ),
    (
        "llada",
        {"cache": "block:trigger=entropy,level=0"},
        "expected level above 0, beside a trigger, found 0 and trigger=entropy",
    ),
    ("llada", {"cache": "dllm-cache:prompt=0"}, "expected prompt as a number of steps from 1 upwards, found 0"),
    ("llada", {"cache": "dllm-cache:answer=0"}, "expected answer as a number of steps from 1 upwards, found 0"),
    ("llada", {"cache": "dllm-cache:ratio=1.5"}, "expected ratio as a share from 0 to 1, found 1.5"),
    (
        "dream",
        {"cache": "dllm-cache"},
        "expected a family that reads a token at its own position, found dream; use --cache dkv-decode",
    ),
    ("llada", {"cache": "d2cache:rollout=-1"}, "expected rollout as a share from 0 to 1, found -1.0"),
    ("llada", {"cache": "d2cache:masks=0"}, "expected masks as a number from 1 upwards, found 0"),
    ("llada", {"cache": "d2cache:sigma=0"}, "expected sigma as a number of tokens above 0, found 0.0"),
    ("llada", {"cache": "d2cache:inflate=-1"}, "expected inflate as a number of positions from 0 upwards, found -1"),
    (
        "llada",
        {"cache": "d2cache:masks=1", "steps": 2},
        "expected masks from 4, which a step commits, upwards, found 1; raise it",
    ),
    (
        "llada",
        {"cache": "elastic-cache:window=0", "block": 8},
        "expected window as a number of masks from 1 upwards, found 0",
    ),
    ("llada", {"cache": "elastic-cache:gamma=1.5", "block": 8}, "expected gamma above 0 and up to 1, found 1.5"),
    (
        "llada",
        {"cache": "elastic-cache:tracked=0", "block": 8},
        "expected tracked as a number of tokens from 1 upwards, found 0",
    ),
    (
        "llada",
        {"cache": "elastic-cache", "block": 4},
        "expected one block, over which its window moves, found blocks of 4; use --block 8",
    ),
    (
        "llada",
        {"cache": "elastic-cache:window=1", "steps": 2, "block": 8},
        "expected a window from 4, which a step commits, upwards, found 1; raise it or --steps",
    ),
    (
        "dream",
        {"cache": "elastic-cache"},
        "expected a family that reads a token at its own position, found dream; use --cache dkv-decode",
    ),
    (
        "llada",
        {"cache": "d2cache", "block_order": "right_to_left"},
        "expected blocks from left to right, found right_to_left",
    ),
    (
        "dream",
        {"cache": "d2cache"},
        "expected a family that reads a token at its own position, found dream; use --cache dkv-decode",
    ),
    ("llada", {"cache": "block", "guidance": 1.5}, "does not go with guidance 1.5"),
    ("mmada", {"cache": "fast-dllm-dual", "guidance": 1.5}, "does not go with guidance 1.5"),
    ("dream", {"cache": "fast-dllm-dual"}, "expected a block for dream, found None; write fast-dllm-dual:block=32"),
    (
        "llada",
        {"cache": "fast-dllm-prefix:block=4"},
        "expected no block for llada, found 4; leave it out here and set --block",
    ),
    ("dream", {"cache": "fast-dllm-dual:block=3"}, "expected a block that divides the 8 tokens to write, found 3"),
    (
        "dream",
        {"cache": "fast-dllm-dual:block=4", "steps": 2},
        "expected steps that 2 blocks share, at least two for each, found 2",
    ),
    ("dream", {"cache": "block:changed"}, "dream reads a token one position to its left"),
    ("llada", {"threshold": 1.5}, "threshold: expected a number from 0, which is off, to 1, found 1.5"),
    ("llada", {"factor": -1.0}, "factor: expected a number from 0, which is off, to 1, found -1.0"),
    ("llada", {"threshold": 0.9, "factor": 0.5}, "expected one of threshold and factor, found 0.9 and 0.5"),
    ("autoregressive", {"cache": "block"}, "autoregressive has no setting 'cache'"),
    ("dream", {"threshold": 0.9}, "threshold: expected Fast-dLLM's cache beside it, found cache none"),
]


@pytest.mark.parametrize(("sampler", "settings", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_does_not_fit_is_refused(sampler, settings, message):
    with pytest.raises((CallError, SettingsError)) as error:
        sinkscope.generate(seeded_model(sampler), PROMPT, length=8, **settings)
    assert message in str(error.value)


@pytest.mark.parametrize("cache", ["sparse-dllm", "block:keep=top,budget=3"])
def test_a_policy_that_leaves_keys_out_is_not_watched(cache, tmp_path):
    model, message = (
        seeded_model("llada"),
        "because its queries read only some keys, found one that is recorded",
    )
    with pytest.raises(CallError, match=message), sinkscope.recording(model, out=tmp_path / "trace"):
        sinkscope.generate(model, PROMPT, length=8, cache=cache)


@pytest.mark.parametrize(("cache", "block"), [("dllm-cache", 4), ("elastic-cache", 8)])
def test_a_policy_that_computes_other_positions_in_each_layer_is_not_watched(cache, block, tmp_path):
    model, message = (
        seeded_model("llada"),
        "nothing watches, because each of its layers computes other positions",
    )
    with pytest.raises(CallError, match=message), sinkscope.recording(model, out=tmp_path / "trace"):
        sinkscope.generate(model, PROMPT, length=8, block=block, cache=cache)


def test_hiding_is_refused():
    model, message = seeded_model("llada"), "expected a model in which nothing is hidden or put in front"
    with sinkscope.parse_rule("top:1")(model), pytest.raises(CallError, match=message):
        sinkscope.generate(model, PROMPT, length=8, cache="block")


def test_a_sink_token_at_the_end_is_refused():
    from dataclasses import replace

    from seeded_network import seeded_network

    model = seeded_model("llada")
    network = sinkscope.add_sink_token(seeded_network("llama", 0), "token-end")
    with pytest.raises(CallError, match="has a sink token at the end"):
        sinkscope.generate(replace(model, network=network), PROMPT, length=8, cache="block")


@pytest.mark.parametrize("variant", ["token", "logit", "gate"])
def test_other_sinks_go_with_a_cache(variant):
    from dataclasses import replace

    from seeded_network import seeded_network

    model = replace(seeded_model("llada"), network=sinkscope.add_sink_token(seeded_network("llama", 0), variant))
    plain, cached = (
        sinkscope.generate(model, PROMPT, length=12, block=4, cache=cache) for cache in ("none", "block:every=1")
    )
    assert plain.tokens.equal(cached.tokens)
    assert sinkscope.generate(model, PROMPT, length=12, block=4, cache="block").steps == 12


ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]


@pytest.mark.parametrize("error", ERRORS, ids=["gpu", "cpu"])
@pytest.mark.parametrize("cache", ["block", "dllm-cache", "elastic-cache"])
@pytest.mark.parametrize(
    ("prompts", "advice"), [(3, "about 1 would fit: use --batch 1"), (1, "not even one would fit")]
)
def test_out_of_memory_says_what_would_fit(error, cache, prompts, advice, monkeypatch):
    """In the second block; 13 tokens with 5 heads of 8 dimensions in 2 layers and float32."""
    from sinkscope.decoding.caches import cached_reader, elastic_reader, layered_reader

    model, calls = seeded_model("llada"), []
    plain = model.network.model.forward

    def failing(*arguments, **given):
        calls.append(1)
        if len(calls) == 6:
            raise error
        return plain(*arguments, **given)

    for module in (cached_reader, layered_reader, elastic_reader):
        monkeypatch.setattr(module, "free_bytes", lambda device: 60_000)
    monkeypatch.setattr(model.network.model, "forward", failing)
    with pytest.raises(ModelError) as told:
        sinkscope.generate(model, [PROMPT] * prompts, length=8, block=8 if cache == "elastic-cache" else 4, cache=cache)
    stored = 2 * 2 * 5 * 8 * 13 * 4
    assert (
        f"cache {cache}: out of memory with {prompts} canvases of 13 tokens on cpu; keys and values of each take"
        in str(told.value)
    )
    assert f"take {stored / 2**10:.1f} KiB" in str(told.value) and advice in str(told.value)
    assert not any("forward" in vars(layer) for layer in model.network.model.layers)


def test_another_error_of_the_network_is_itself(monkeypatch):
    model = seeded_model("llada")

    def failing(*arguments, **given):
        raise RuntimeError("sizes do not match")

    monkeypatch.setattr(model.network.model, "forward", failing)
    with pytest.raises(RuntimeError, match="sizes do not match"):
        sinkscope.generate(model, PROMPT, length=8, cache="block")


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


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, r"Planning.plan: expected a Plan, found null"),
        (5, r"Planning.plan: expected a Plan, found 5"),
        (
            Plan(fresh=torch.ones(3)),
            r"Planning.plan: expected fresh as a slice, bool \[1, 21\] .* or None, found Tensor float32 \[3\]",
        ),
        (Plan(slice(0, 4), open=7), r"Planning.plan: expected open as a slice, bool \[1, 21\] .* or None, found 7"),
        (
            Plan(slice(0, 0)),
            r"Planning.plan: expected fresh as a slice of at least one position, .* found slice\(0, 0, None\)",
        ),
        (
            Plan(slice(None, None, -1)),
            r"Planning.plan: expected fresh as a slice of at least one position, one beside the other",
        ),
        (Plan(slice(0.5, 3)), r"Planning.plan: expected fresh as a slice of .*, found slice\(0.5, 3, None\)"),
        (
            Plan(slice(0, 4), open=slice(0, 4, 2)),
            r"Planning.plan: expected open as a slice of positions, one beside the other",
        ),
    ],
)
def test_what_is_no_plan_is_refused(made, message, monkeypatch):
    monkeypatch.setattr(Planning, "made", made)
    monkeypatch.setattr("sinkscope.decoding.caches.reader.parse_cache", lambda text: Planning())
    with pytest.raises(CallError, match=message):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache="block")


@pytest.mark.parametrize(("given", "found"), [(5, "5"), (None, "null"), (BlockCache, "the class BlockCache")])
def test_what_is_no_policy_is_refused(given, found):
    with pytest.raises(
        CallError, match=f"cache: expected a CachePolicy or its text, such as 'none' or 'fast-dllm-dual', found {found}"
    ):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache=given)


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


KEPT = r"Answering.kept: expected int64 \[1, 1 or 2, 1 or \d, key\] \(batch, layer, kv_head, key\) or None"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"first": lambda moment: Plan(slice(0, 3))},
            r"Answering.first: expected fresh None, as the first step of a block computes all",
        ),
        ({"kept": lambda moment: 3}, f"{KEPT}, found 3"),
        ({"kept": lambda moment: moment.real}, rf"{KEPT}, found Tensor bool \[1, 21\]"),
        (
            {"kept": lambda moment: torch.zeros(3, 1, 1, 4, dtype=torch.long)},
            rf"{KEPT}, found Tensor int64 \[3, 1, 1, 4\]",
        ),
        ({"kept": lambda moment: torch.full((1, 1, 1, 4), 21)}, f"{KEPT}, with positions below 21, found 21"),
        (
            {"plan": lambda moment: Plan(None, torch.zeros_like(moment.real))},
            "expected a block to be committed whole .* found 3 tokens left",
        ),
        (
            {"plan": lambda moment: Plan(None, slice(0, 3))},
            "expected a block to be committed whole in its 4 steps, found 3 tokens left",
        ),
        (
            {"plan": lambda moment: Plan(torch.zeros_like(moment.real))},
            "expected a block to be committed whole .* found 3 tokens left",
        ),
    ],
)
def test_what_a_policy_cannot_answer_is_refused(answers, message, monkeypatch):
    monkeypatch.setattr(Answering, "answers", answers)
    monkeypatch.setattr("sinkscope.decoding.caches.reader.parse_cache", lambda text: Answering())
    with pytest.raises(CallError, match=message):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache="block")


def test_kept_keys_that_are_padding_are_refused(monkeypatch):
    everything = {"kept": lambda moment: torch.arange(moment.real.shape[1]).expand(len(moment.real), 1, 1, -1)}
    monkeypatch.setattr(Answering, "answers", everything)
    monkeypatch.setattr("sinkscope.decoding.caches.reader.parse_cache", lambda text: Answering())
    with pytest.raises(
        CallError, match=r"Answering.kept: .*, with positions of tokens, found 0 in row 1, which is padding there"
    ):
        sinkscope.generate(seeded_model("llada"), [[3, 4, 5], [6]], length=16, block=4, cache="block")


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


def test_a_policy_that_is_no_dataclass_is_refused():
    class Plain(CachePolicy):
        name = "plain"

        def plan(self, moment):
            return Plan()

    with pytest.raises(CallError, match=r"Plain: expected a dataclass, .*; put @dataclass\(frozen=True\) above it"):
        sinkscope.generate(seeded_model("llada"), PROMPT, length=16, block=4, cache=Plain())
