"""The samplers against the published loops: the same weights, settings and seeds, and every token of every step.

The published loops were run outside this repository, as fixtures/README.md describes; only their results are here.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from other_kernels import other_kernels
from seeded_models import changes_of, seeded_model, steps_of
from seeded_network import leaning
from sixths import a_sixth_unmarked

import sinkscope

FIXTURES = Path(__file__).parent / "fixtures"


def cases(sampler):
    return json.loads((FIXTURES / f"{sampler}.json").read_text())


def name_of(case):
    settings = "-".join(f"{name}{value}" for name, value in case["settings"].items())
    more = "-leaning" * ("lean" in case) + "-bf16" * ("logits" in case)
    return (
        f"weights{case['weights']}-prompts{'+'.join(str(len(prompt)) for prompt in case['prompts'])}-{settings}{more}"
    )


def assert_as_published(case, sampler):
    """Also on kernels other than those that the published loops ran on."""
    model, prompts = seeded_model(sampler, case["weights"]), case["prompts"]
    dtype = getattr(torch, case["logits"]) if "logits" in case else None
    for kernels in (nullcontext, other_kernels):
        with kernels(model.network), leaning(model.network, case.get("lean", {}), dtype):
            steps = steps_of(model, prompts, **case["settings"])
        rows = changes_of(steps, prompts, case["settings"]["length"])
        for row, (found, expected) in enumerate(zip(rows, case["steps"], strict=True)):
            assert len(found) == len(expected)
            for number, (one, other) in enumerate(zip(found, expected, strict=True)):
                assert one == other, f"row {row}, step {number}, {kernels.__name__}"


@pytest.mark.parametrize(
    ("sampler", "case"),
    [
        one
        for name in ("llada", "mmada", "dream")
        for one in [
            *((name, case) for case in cases(name) if "lean" in case or "logits" in case),  # the quirks
            *a_sixth_unmarked((name, case) for case in cases(name) if "lean" not in case and "logits" not in case),
        ]
    ],
    ids=lambda one: one if isinstance(one, str) else name_of(one),
)
def test_a_sampler_writes_what_the_published_loop_writes(sampler, case):
    assert_as_published(case, sampler)


@pytest.mark.parametrize(
    "case", a_sixth_unmarked(cases("foreign")), ids=lambda case: f"{case['sampler']}-{name_of(case)}"
)
def test_what_was_recorded_of_dllm_and_dinfer_is_what_ours_gives(case, tmp_path):
    """`following` recorded their samplers around these networks; under the same settings ours writes the same and has
    the same columns.
    """
    assert_as_published(case, "llada")
    model, prompts = seeded_model("llada", case["weights"]), case["prompts"]
    with sinkscope.recording(model, out=tmp_path / "t"):
        sinkscope.generate(model, prompts if len(prompts) > 1 else prompts[0], **case["settings"])
    for trace, largest in zip(sinkscope.open_traces(tmp_path / "t"), case["largest"], strict=True):
        found = torch.as_tensor(trace.column_sums[:]).amax(-1).flatten(1)
        assert torch.allclose(found, torch.tensor(largest), atol=2e-3)
