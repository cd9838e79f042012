"""Letters and nulls: the canvases are what their description says, and the bundled specimens show what their task makes
known.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_close

import sinkscope
from sinkscope.lab.canvases import LETTERS, NULL, PROMPT, NullTask, draw_nulls, draw_prompt
from sinkscope.lab.prompts import problem_prompt, problem_prompts
from sinkscope.lab.recipes import RECIPES
from sinkscope.lab.training import next_token_loss


def test_the_loss_is_that_of_the_answers():
    """And not of triggers or of the front; beside it the sum written out."""
    model = sinkscope.load("lab-nulls-autoregressive-2-0")
    canvases = draw_nulls(NullTask(2, "triggered", rows=4), -1, 0)
    found = next_token_loss(model.network, canvases, eos_id=None, only_answers=True)
    logits = model.network(canvases.tokens).logits.log_softmax(-1)
    wanted = [
        -logits[row, at - 1, canvases.tokens[row, at]]
        for row in range(4)
        for at in range(1, canvases.tokens.shape[1])
        if canvases.answers[row, at] != PROMPT
    ]
    assert_close(found, torch.stack(wanted).mean(), terms=256)
    assert found < next_token_loss(model.network, canvases, eos_id=None) - 0.1


def test_a_prompt_does_not_depend_on_how_many_are_drawn():
    task = "lab-nulls-diffusion-4"
    assert problem_prompts(task, 3)[2] == problem_prompt(task, 2) == draw_prompt(RECIPES[task].nulls, 2)
    assert problem_prompt(task, 1) != problem_prompt(task, 2)
    assert problem_prompt(task, 0)["prompt"].split().count(NULL) == 4


@torch.no_grad()
def cost(name, hidden):
    """Nats by which unpredictable tokens get worse."""
    model, task = sinkscope.load(name), RECIPES[name.rpartition("-")[0]].nulls
    canvases = draw_nulls(replace(task, rows=32), -1, 7)
    front = task.front + task.nulls
    targets = canvases.tokens[:, 1:].masked_fill(canvases.answers[:, 1:] == PROMPT, -100)
    targets = targets.masked_fill(canvases.tokens[:, :-1] == len(LETTERS) + 1, -100)  # answers

    def loss(rule):
        with sinkscope.parse_rule(rule)(model):
            logits = model.network(canvases.tokens).logits
        return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten()))

    return loss(f"top:{hidden}@current,queries={front}-{front + task.body - 1}") - loss("none")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("nulls", [1, 2, 4])
def test_an_autoregressive_specimen_is_ruined_without_all_of_its_nulls_only(nulls, seed):
    name = f"lab-nulls-autoregressive-{nulls}-{seed}"
    assert cost(name, nulls) > 1
    if nulls > 1:
        assert cost(name, nulls - 1) < 0.05
