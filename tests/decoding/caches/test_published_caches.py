"""Against the published caches: the same weights, prompts and settings, and every token of every step.

The published code was run outside this repository, as ../fixtures/README.md describes; only its results are here.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from changed_tokens import changes_along
from closeness import assert_close
from seeded_models import seeded_model, steps_of
from seeded_network import EOS, MASK, leaning, seeded_network
from sixths import a_sixth_unmarked

import sinkscope
from sinkscope.attention import LayerCall
from sinkscope.decoding.caches.policy import Moment
from sinkscope.decoding.caches.sparse_dllm import SparseDLLM

FIXTURES = Path(__file__).parents[1] / "fixtures"


def name_of(case):
    return f"layers{case.get('layers', 2)}-weights{case['weights']}-" + "-".join(
        f"{name}{value}" for name, value in case["settings"].items()
    )


def model_of(case, sampler):
    """The network of a case, which is two layers deep unless it says otherwise."""
    model = seeded_model(sampler, case["weights"])
    if case.get("layers", 2) == 2:
        return model
    return replace(
        model,
        network=seeded_network("llama", case["weights"], case["layers"]),
        card=replace(model.card, layers=case["layers"]),
    )


PUBLISHED = ["fast-dllm", "dkv-greedy", "dkv-decode", "sparse-dllm", "d2cache", "dllm-cache", "elastic-cache"]
PUBLISHED += ["fast-dllm-dream", "dkv-decode-dream"]
CASES = {name: json.loads((FIXTURES / f"{name}.json").read_text()) for name in PUBLISHED}


@pytest.mark.parametrize(
    ("name", "case"),
    [one for name, cases in CASES.items() for one in a_sixth_unmarked((name, case) for case in cases)],
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_a_cache_writes_what_the_published_code_writes(name, case):
    """And computes as many positions. A published block of Fast-dLLM that is complete after its refresh makes one more
    call, which commits nothing; here it does not. With four layers attention turns in the first, second or third.
    """
    sampler, expected, computed = "dream" if name.endswith("dream") else "llada", case["steps"][0], case.get("computed")
    model, (prompt,) = model_of(case, sampler), case["prompts"]
    found = changes_along(prompt, [step.tokens[0] for step in steps_of(model, [prompt], **case["settings"])])
    if name == "fast-dllm":
        computed = [rows for rows, step in zip(computed, expected, strict=True) if step]
    if name.startswith("fast-dllm"):
        found, expected = ([step for step in steps if step] for steps in (found, expected))
    assert found == expected
    if name != "dllm-cache":
        rows = sinkscope.generate(model, prompt, **case["settings"]).work.rows
        assert rows == round(sum(computed) / case.get("layers", 1))


def test_masks_that_are_not_computed_wait():
    """With a threshold that every probability exceeds: the refresh commits its whole block, a later step what it has
    computed.
    """
    settings = {"length": 16, "block": 8, "steps": 16, "cache": "d2cache:masks=1,rollout=0.0", "threshold": 0.01}
    steps = steps_of(seeded_model("llada"), [[5, 9, 22, 41]], **settings)
    written = [int((step.written[0] >= 0).sum()) for step in steps]
    computed = [int((~step.confidence[0].isnan()).sum()) for step in steps]
    assert written == computed and written[0] == 8 and len(written) > 4 and sum(written) == 16


def test_elastic_cache_writes_behind_an_eos():
    """With every token an EOS: the published loop would stop after the leftmost."""
    model = seeded_model("llada")
    with leaning(model.network, {str(EOS): 99.0}):
        found = sinkscope.generate(model, [5, 9, 22, 41], length=8, block=8, steps=8, cache="elastic-cache:window=3")
    assert found.tokens.tolist() == [5, 9, 22, 41, *[EOS] * 8] and found.steps == 8


def test_parallel_decoding_tells_confidences_apart_that_tie_in_fp32():
    """Logits far apart: in fp32 all confidences are 1, in float64 they are not."""
    model, prompt = seeded_model("llada"), [5, 9, 22, 41]
    with scaled_head(model.network, 14):
        for more in ({"threshold": 1.0}, {"cache": "fast-dllm-dual"}, {"cache": "fast-dllm-prefix"}):
            settings = {"length": 16, "block": 16, "steps": 16, **more}
            sure = steps_of(model, [prompt], **settings)[0].confidence[0, 4:]
            assert int((sure == 1).sum()) > 1  # as shown, in fp32
        double = steps_of(model, [prompt], length=16, block=16, steps=16, threshold=1.0)
        single = steps_of(model, [prompt], length=16, block=16, steps=16)
    assert (double[0].written >= 0).sum() < (sure == 1).sum()
    assert (single[0].written >= 0).sum() == 1


@contextmanager
def scaled_head(network, by):
    handle = network.lm_head.register_forward_hook(lambda module, args, logits: logits * by)
    try:
        yield
    finally:
        handle.remove()


def test_a_mask_left_behind_is_a_candidate_in_the_refresh_only():
    model, prompt = seeded_model("llada"), [5, 9, 22, 41]
    with leaning(model.network, {str(MASK): 9.5}):
        plain, cached = (
            steps_of(model, [prompt], length=24, block=8, steps=24, cache=cache) for cache in ("none", "fast-dllm-dual")
        )

    def behind(steps):
        """Steps in the second and third block with candidates left of it, by their number within the block."""
        candidates = [
            (number % 8, number // 8 * 8 + 4, ~step.confidence[0].isnan()) for number, step in enumerate(steps)
        ]
        return {number for number, start, open_places in candidates if start > 4 and open_places[:start].any()}

    assert behind(cached) == {0} and len(behind(plain)) > 1


@pytest.mark.parametrize("more", [{}, {"threshold": 0.5}])
@pytest.mark.parametrize("cache", ["none", "fast-dllm-dual", "fast-dllm-prefix"])
def test_a_block_of_predicted_masks_ends(cache, more):
    model = seeded_model("llada")
    with leaning(model.network, {str(MASK): 1000}):
        found = sinkscope.generate(model, [5, 9, 22], length=16, block=8, steps=16, cache=cache, **more)
    assert found.steps == 16 and (found.tokens[3:] == MASK).all()


def sparse_choice(products, **options):
    """The keys outside of the block 4…6 that Sparse-dLLM keeps in a layer with these products."""
    real = torch.ones(1, len(products), dtype=torch.bool)
    moment = Moment(1, 4, 6, real.long(), real, real, scores=[torch.tensor([products])])
    return [place for place in SparseDLLM(**options).kept(moment).flatten().tolist() if not 4 <= place < 6]


def test_pooling_reaches_across_the_block():
    assert sparse_choice([0.0, 0, 0, 9, 0, 0, 0, 0, 0, 0], ratio=0.375, pool=3) == [2, 3, 6]
    assert sparse_choice([0.0, 3, 0, 9, 0, 0, 0, 0, 0, 2], ratio=0.375, pool=1) == [1, 3, 9]


def test_keys_are_chosen_by_their_bare_product_with_the_mean_query():
    source = torch.Generator().manual_seed(1)
    query, key = torch.randn(1, 4, 7, 6, generator=source), torch.randn(1, 2, 7, 6, generator=source)
    call = LayerCall("layer", 0, query, key, key, None)
    moment = Moment(1, 2, 5, torch.zeros(1, 7).long(), torch.zeros(1, 7).bool(), torch.ones(1, 7).bool())
    found = SparseDLLM().measure(call, None, moment)
    products = [
        torch.stack([query[0, head, place] @ key[0, head // 2].T for place in range(2, 5)]).mean(0) for head in range(4)
    ]
    assert_close(found[0], torch.stack(products).mean(0), terms=6 * 12)
    assert (found < 0).any()


def test_a_refresh_of_dream_commits_the_first_token_alone():
    settings = {"length": 16, "steps": 16, "cache": "fast-dllm-dual:block=8"}
    steps = steps_of(seeded_model("dream"), [[5, 9, 22, 41]], **settings)
    firsts = [(step.written[0] >= 0).nonzero().flatten().tolist() for step in (steps[0], steps[8])]
    assert firsts == [[4], [12]]
