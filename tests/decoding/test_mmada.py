"""MMaDA's sampler: LLaDA's loop, but confidences in float64 and no EOS switches."""

import pytest
import torch
from other_kernels import other_kernels
from seeded_models import seeded_model, steps_of
from seeded_network import MASK

PROMPT = [3, 17, 42, 8, 25]
SETTINGS = {"length": 24, "steps": 12, "block": 12}


@torch.no_grad()
def dense_mmada(model, prompt, **settings):
    """One row at temperature 0, the whole canvas through the vocabulary projection, on other kernels: the canvas after
    every step.
    """
    with other_kernels(model.network):
        return _dense_mmada(model, prompt, **settings)


def _dense_mmada(model, prompt, *, length, steps, block, precision=torch.float64):
    canvas, canvases = torch.tensor([*prompt, *[MASK] * length]), []
    for number in range(length // block):
        end, per_block = len(prompt) + (number + 1) * block, steps * block // length
        for step in range(per_block):
            logits = model.network(canvas[None]).logits[0]
            sure = logits.to(precision).softmax(-1).max(-1).values
            sure = torch.where((canvas == MASK) & (torch.arange(len(canvas)) < end), sure, -torch.inf)
            chosen = sure.topk(block // per_block + (step < block % per_block)).indices
            canvas = canvas.index_copy(0, chosen, logits.argmax(-1)[chosen])
            canvases.append(canvas)
    return torch.stack(canvases)


@pytest.mark.parametrize(
    "shape", [SETTINGS, {"length": 15, "steps": 6, "block": 5}, {"length": 40, "steps": 5, "block": 40}]
)
def test_token_for_token_as_the_plain_loop(shape):
    model = seeded_model("mmada")
    found = torch.stack([step.tokens[0] for step in steps_of(model, [PROMPT], **shape)])
    assert torch.equal(found, dense_mmada(model, PROMPT, **shape))


def test_mmada_tells_confidences_apart_that_tie_in_fp32():
    """A saturated network: in fp32 many confidences are exactly 1, in float64 they differ."""
    model, llada = seeded_model("mmada"), seeded_model("llada")
    heads = [one.network.lm_head.weight for one in (model, llada)]
    with torch.no_grad():
        [head.mul_(12) for head in heads]
        try:
            steps, other = (steps_of(one, [PROMPT], **SETTINGS) for one in (model, llada))
            dense = dense_mmada(model, PROMPT, **SETTINGS)
        finally:
            [head.div_(12) for head in heads]
    first = other[0].confidence[0]
    assert int((first == 1).sum()) > 2
    assert torch.equal(torch.stack([step.tokens[0] for step in steps]), dense)
    assert not torch.equal(dense, torch.stack([step.tokens[0] for step in other]))
