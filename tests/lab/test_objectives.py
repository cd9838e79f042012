import math

import pytest
import scipy.stats
import torch
from closeness import assert_close, terms_of

from sinkscope.lab.canvases import PROMPT, Canvases, CanvasMix, draw_canvases
from sinkscope.lab.prompts import build_tokenizer
from sinkscope.lab.recipes import Architecture, Recipe
from sinkscope.lab.starting_network import build_network
from sinkscope.lab.training import mask_canvases, masked_diffusion_loss, next_token_loss

MASK, LEAST = 2, 1e-3
SMALL = Recipe("small", "masked_diffusion", updates=1, architecture=Architecture(2, 24, 3, 3, 40, 96))


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def block_canvases(rows, answers, width):
    """Rows of a first token, then ``answers`` answers of ``width`` tokens each, a question token before every one."""
    numbers = [PROMPT] + [label for number in range(answers) for label in [PROMPT, *[number] * width]]
    tokens = torch.randint(5, 400, (rows, len(numbers)), generator=seeded(99))
    return Canvases(tokens, torch.tensor([numbers] * rows))


def rates_of(weights, canvases, answers):
    """p of each (row, answer), read off the weights; NaN where nothing of the answer is masked."""
    return torch.stack(
        [
            1 / weights.masked_fill((canvases.answers != number) | (weights == 0), torch.nan).nanmean(-1)
            for number in range(answers)
        ],
        dim=-1,
    )


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def canvases(tokenizer):
    return draw_canvases(CanvasMix(tokens=480, lengths=(96,), weights=(1.0,)), tokenizer, seed=0, update=0)


@pytest.fixture(scope="module")
def networks(tokenizer):
    causal = Recipe("small", "next_token", updates=1, architecture=SMALL.architecture)
    return build_network(SMALL, tokenizer), build_network(causal, tokenizer)


def test_only_masks_change_and_weights_stand_only_on_masks(canvases):
    noisy, weights, _ = mask_canvases(canvases, MASK, 0.2, seeded(1))
    changed = weights > 0
    assert 0.1 < changed.float().mean() < 0.9
    assert bool((noisy[changed] == MASK).all())
    assert torch.equal(noisy[~changed], canvases.tokens[~changed])
    assert bool((weights[~changed] == 0).all()) and not changed[:, 0].any()
    questions = canvases.answers == PROMPT
    for seed in range(20):
        noisy, _, maskable = mask_canvases(canvases, MASK, 0.0, seeded(seed))
        assert torch.equal(noisy[questions], canvases.tokens[questions]) and maskable == int((~questions).sum())


def test_t_of_one_answer_is_uniform_over_updates():
    canvases = block_canvases(rows=2, answers=2, width=300)
    t = []
    for seed in range(500):
        _, weights, _ = mask_canvases(canvases, MASK, 0.0, seeded(seed))
        t.append(float((rates_of(weights, canvases, 2)[0, 0] - LEAST) / (1 - LEAST)))
    t = [0.0 if math.isnan(one) else one for one in t]
    assert scipy.stats.kstest(t, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_diffusion_loss_equals_a_dense_one(networks, canvases, share):
    network, _ = networks
    loss = masked_diffusion_loss(network, canvases, mask_id=MASK, whole_canvas_share=share, generator=seeded(8)).item()
    noisy, weights, maskable = mask_canvases(canvases, MASK, share, seeded(8))
    logs = network(noisy).logits.detach().log_softmax(-1)
    total = 0.0
    for row, position in (noisy == MASK).nonzero().tolist():
        total -= float(weights[row, position] * logs[row, position, canvases.tokens[row, position]])
    assert_close(loss, total / maskable, terms=terms_of(network, noisy.shape[1]) + noisy.numel(), dtype=torch.float32)


def test_the_diffusion_loss_of_a_uniform_network_is_the_entropy_of_the_vocabulary(networks, canvases, tokenizer):
    """Weights 1/p make the estimate unbiased: its mean over masks is the loss of every maskable token."""
    network, _ = networks
    head = network.lm_head.weight.detach().clone()
    with torch.no_grad():
        network.lm_head.weight.zero_()
        losses = [
            masked_diffusion_loss(
                network, canvases, mask_id=MASK, whole_canvas_share=0.0, generator=seeded(seed)
            ).item()
            for seed in range(150)
        ]
        network.lm_head.weight.copy_(head)
    assert sum(losses) / len(losses) == pytest.approx(math.log(len(tokenizer)), rel=0.05)


def test_the_next_token_loss_equals_a_dense_one(networks, canvases, tokenizer):
    _, network = networks
    logs = network(canvases.tokens).logits.detach().log_softmax(-1)
    total, finished = 0.0, 0
    rows, length = canvases.tokens.shape
    for row in range(rows):
        for position in range(length - 1):
            target = int(canvases.tokens[row, position + 1])
            if canvases.answers[row, position] >= 0 and canvases.answers[row, position + 1] == PROMPT:
                target, finished = tokenizer.eos_token_id, finished + 1
            total -= float(logs[row, position, target])
    assert finished > 0
    loss = next_token_loss(network, canvases, eos_id=tokenizer.eos_token_id).item()
    assert_close(
        loss, total / (rows * (length - 1)), terms=terms_of(network, length) + rows * length, dtype=torch.float32
    )
