"""Samplers that are not ours, around our networks: what they write is recorded as if it were ours."""

import contextlib
import warnings

import pytest
import torch

import sinkscope
import sinkscope.attention
from sinkscope.errors import AttentionError, CallError

SETTINGS = {"length": 8, "steps": 8, "block": 4}
PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
TENSORS = ("tokens", "masked", "written", "column_sums", "column_sums_masked", "value_norms", "hidden_norms")


def foreign_loop(model, canvas, block=4, told=lambda canvas: None):
    """A greedy sampler as people write them: one token a step, block by block."""
    canvas = canvas.clone()
    start = int((canvas[0] == model.card.mask_id).int().argmax())
    for end in range(start + block, canvas.shape[1] + 1, block):
        while bool((canvas[:, :end] == model.card.mask_id).any()):
            with torch.no_grad():
                sure, token = model.network(canvas).logits.softmax(-1).max(-1)
            sure = torch.where(canvas == model.card.mask_id, sure, -1)[:, :end]
            place = sure.argmax(-1, keepdim=True)
            canvas.scatter_(1, place, token.gather(1, place))
            told(canvas)
    return canvas


def masked_canvas(model, *prompts, length=8):
    ids = torch.tensor([model.encode(prompt) for prompt in prompts])
    return torch.cat([ids, torch.full((len(ids), length), model.card.mask_id)], dim=1)


@pytest.mark.parametrize("hidden", [None, "top:1@previous"])
def test_a_foreign_loop_is_recorded_as_our_sampler_is(diffusion, tmp_path, hidden):
    """The loop writes what LLaDA's sampler writes at temperature 0, so that both traces are the same, with hiding in
    force too.
    """
    rule = (lambda: contextlib.nullcontext()) if hidden is None else (lambda: sinkscope.parse_rule(hidden)(diffusion))
    with sinkscope.recording(diffusion, out=tmp_path / "ours"), rule():
        ours = sinkscope.generate(diffusion, PROMPT, **SETTINGS)
    with (
        sinkscope.recording(diffusion, out=tmp_path / "theirs"),
        rule(),
        sinkscope.following(diffusion, sampler="mine") as steps,
    ):
        theirs = foreign_loop(diffusion, masked_canvas(diffusion, PROMPT), told=steps.committed)
    assert theirs[0].tolist() == ours.tokens.tolist() and steps.number == 8
    first, second = (sinkscope.open_trace(tmp_path / name) for name in ("ours", "theirs"))
    for name in TENSORS:
        assert torch.equal(torch.as_tensor(getattr(first, name)[:]), torch.as_tensor(getattr(second, name)[:])), name
    assert (
        second.manifest["sampler"]["name"] == "mine"
        and second.manifest["prompt_length"] == first.manifest["prompt_length"]
    )
    assert second.complete


def test_without_a_callback_what_is_written_is_read_from_the_next_call(diffusion, tmp_path):
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        canvas = foreign_loop(diffusion, masked_canvas(diffusion, PROMPT))
        steps.committed(canvas)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert ((trace.written[:] >= 0).sum(-1) == 1).all()
    said = pytest.warns(RuntimeWarning, match="the tokens of the last step are not known")
    with sinkscope.recording(diffusion, out=tmp_path / "u"), said, sinkscope.following(diffusion):
        foreign_loop(diffusion, masked_canvas(diffusion, PROMPT))
    assert ((sinkscope.open_trace(tmp_path / "u").written[:] >= 0).sum(-1) == [1] * 7 + [0]).all()


def test_padding_on_the_left_counts_for_nothing(diffusion, tmp_path):
    canvas = masked_canvas(diffusion, PROMPT)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), canvas], dim=1)
    mask = (torch.arange(padded.shape[1]) >= 3)[None].long()
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    for name, inputs in {
        "a": {"input_ids": canvas},
        "b": {"input_ids": padded, "attention_mask": mask, "position_ids": places},
    }.items():
        with (
            sinkscope.recording(diffusion, out=tmp_path / name),
            sinkscope.following(diffusion) as steps,
            torch.no_grad(),
        ):
            diffusion.network(**inputs)
            steps.committed(inputs["input_ids"])
    first, second = (sinkscope.open_trace(tmp_path / name) for name in "ab")
    assert first.tokens.shape == second.tokens.shape
    assert torch.allclose(torch.as_tensor(first.column_sums[:]), torch.as_tensor(second.column_sums[:]), atol=1e-4)
    assert first.manifest["prompt_length"] == second.manifest["prompt_length"] == canvas.shape[1] - 8


def test_a_cache_is_refused(diffusion, tmp_path):
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(torch.zeros(1, 5, 4, 8), torch.zeros(1, 5, 4, 8), 0)
    with (
        pytest.raises(AttentionError, match="parts of them behind a cache"),
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion),
    ):
        diffusion.network(torch.full((1, 9), 20), past_key_values=cache)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    ("then", "message"),
    [
        (lambda canvas: canvas + 1, "expected the prompt to stay, found token .*; leave guidance and"),
        (
            lambda canvas: canvas.repeat(2, 1),
            r"expected 1 rows of at least \d+ tokens, found \[2, .*; leave guidance and",
        ),
        (lambda canvas: canvas[:, :-1], "tokens, found .*; leave guidance and the sampler's cache out"),
    ],
)
def test_another_canvas_is_refused_whether_the_step_before_was_told_or_not(diffusion, then, message, told):
    canvas = masked_canvas(diffusion, PROMPT)
    refused = pytest.raises(AttentionError, match=message)
    with refused, sinkscope.following(diffusion) as steps, torch.no_grad():
        diffusion.network(canvas)
        if told:
            steps.committed(canvas)
        diffusion.network(then(canvas).clamp(max=diffusion.card.mask_id))


def test_a_canvas_that_is_not_the_one_committed_is_refused(diffusion, tmp_path):
    """The canvas of the first step is committed again and again."""
    canvas, refused = (
        masked_canvas(diffusion, PROMPT),
        pytest.raises(AttentionError, match="expected the tokens that were committed, found"),
    )
    with refused, sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        foreign_loop(diffusion, canvas, told=lambda _: steps.committed(canvas))
    assert steps.number == 1 and not sinkscope.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("told", [False, True])
def test_a_second_generation_is_refused(diffusion, told):
    canvas = masked_canvas(diffusion, PROMPT)
    refused = pytest.raises(AttentionError, match="open `following` anew for each generation")
    with refused, sinkscope.following(diffusion) as steps:
        for _ in range(2):
            foreign_loop(diffusion, canvas, told=steps.committed if told else lambda canvas: None)


def test_a_network_without_a_mask_token_is_refused(autoregressive):
    with (
        pytest.raises(CallError, match="mask_id: expected the mask token, found None for LlamaForCausalLM"),
        sinkscope.following(autoregressive),
    ):
        pass


def test_padding_that_a_sampler_does_not_mask_is_said(diffusion, tmp_path):
    canvas = torch.full((2, 9), 20)
    canvas[1, :3] = 7
    said = pytest.warns(RuntimeWarning, match="3 padding tokens in front of prompt 1 as text")
    with sinkscope.recording(diffusion, out=tmp_path / "t"), said, sinkscope.following(diffusion, pad_id=7) as steps:
        diffusion.network(canvas)
        steps.committed(canvas)
    with (
        sinkscope.recording(diffusion, out=tmp_path / "u"),
        warnings.catch_warnings(),
        sinkscope.following(diffusion, pad_id=7) as steps,
    ):
        warnings.simplefilter("error")
        diffusion.network(canvas, attention_mask=(canvas != 7).long())
        steps.committed(canvas)


# diffusers


@pytest.fixture
def llada2(diffusion):
    """Diffusers' pipeline for LLaDA 2 around a network that `load` has given."""
    diffusers = pytest.importorskip(
        "diffusers", reason="diffusers, whose pipelines run here, is not installed: pip install diffusers"
    )
    pipeline = diffusers.LLaDA2Pipeline(
        model=diffusion.network,
        scheduler=diffusers.BlockRefinementScheduler(block_length=5),
        tokenizer=diffusion.tokenizer,
    )
    pipeline.set_progress_bar_config(disable=True)
    ids = torch.tensor([diffusion.encode(PROMPT)])
    options = {"input_ids": ids, "gen_length": 15 - ids.shape[1] % 5, "num_inference_steps": 5, "output_type": "seq"}
    return lambda **more: pipeline(**options, mask_token_id=diffusion.card.mask_id, **more).sequences


def test_a_pipeline_of_diffusers_is_recorded(llada2, diffusion, tmp_path):
    expected = llada2()
    with (
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion, sampler="LLaDA2Pipeline") as steps,
    ):
        found = llada2(callback_on_step_end=steps.callback)
    assert torch.equal(found, expected), "recording changed what the pipeline writes"
    trace = sinkscope.open_trace(tmp_path / "t")
    assert trace.complete and trace.steps == steps.number > 4
    canvas, written = trace.tokens[-1], trace.written[-1]
    after = torch.as_tensor(canvas).where(torch.as_tensor(written) < 0, torch.as_tensor(written))
    prompt = trace.manifest["prompt_length"]
    assert after[prompt : prompt + found.shape[1]].tolist() == found[0].tolist()
    for step in range(trace.steps - 1):
        here, wrote, then = (
            torch.as_tensor(one) for one in (trace.tokens[step], trace.written[step], trace.tokens[step + 1])
        )
        length = int(trace.lengths[step])
        assert torch.equal(torch.where(wrote >= 0, wrote, here)[:length], then[:length])
        assert float(trace.column_sums[step, 0, 0, :length].sum()) == pytest.approx(length, rel=1e-4)
