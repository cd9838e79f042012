"""Samplers that are not ours, around our networks: what they write is recorded as if it were ours."""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from explorer_reader import ReadPage
from leaves_no_trace import check_leaves_no_trace

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
    said = pytest.warns(RuntimeWarning, match="what the last step wrote is not known")
    with sinkscope.recording(diffusion, out=tmp_path / "u"), said, sinkscope.following(diffusion):
        foreign_loop(diffusion, masked_canvas(diffusion, PROMPT))
    assert ((sinkscope.open_trace(tmp_path / "u").written[:] >= 0).sum(-1) == [1] * 7 + [0]).all()


def test_a_position_that_is_masked_again_is_no_commit(diffusion, tmp_path):
    """Two tokens a step; the steps 1 and 3 mask the first of the answer again."""
    mask, canvas = diffusion.card.mask_id, masked_canvas(diffusion, PROMPT)
    first = canvas.shape[1] - 8
    with (
        sinkscope.parse_rule("top:1@current")(diffusion) as hiding,
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion) as steps,
        torch.no_grad(),
    ):
        for step in range(4):
            left = (canvas[0] == mask).nonzero()[:2, 0]
            canvas = canvas.clone()
            canvas[0, left] = diffusion.network(canvas).logits[0, left].argmax(-1)
            if step in (1, 3):
                canvas[0, first] = mask
            steps.committed(canvas)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert (trace.written[:] == mask).sum() == 2, "they are recorded"
    commits = (trace.written[:] >= 0) & (trace.written[:] != mask)
    assert (hiding.effect.committed == commits.sum()).all(), "those that are masked again are not counted"
    page = ReadPage(sinkscope.explore(trace).page())
    assert ((page.tile(0, "written") > 0) == commits).all()


def test_the_trace_can_be_analysed(diffusion, tmp_path, run):
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        steps.committed(foreign_loop(diffusion, masked_canvas(diffusion, PROMPT)))
    for command in ("sinks", "tracks", "analyse"):
        status, out, err = run(command, tmp_path / "t")
        assert (status, bool(out)) == (0, True), err


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


def test_following_leaves_no_trace(diffusion):
    @contextlib.contextmanager
    def followed():
        with sinkscope.following(diffusion) as steps:
            yield
            steps.committed(torch.zeros(1, 5, dtype=torch.long))

    check_leaves_no_trace(diffusion.network, followed, torch.arange(5)[None] + 20)


class OneLayer(torch.nn.Module):
    """A network that is none of transformers', with tokens under a name of its own."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(30, 8)

    def forward(self, indices):
        x = self.embed(indices)[:, None]
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)[:, 0] @ self.embed.weight.T


def test_a_torch_module_is_followed_inside_foreign(tmp_path):
    network, canvas = OneLayer(), torch.tensor([[3, 4, 29, 29]])
    recorded = sinkscope.recording(network, out=tmp_path / "t")
    with (
        torch.no_grad(),
        sinkscope.attention.foreign(network),
        recorded,
        sinkscope.following(network, mask_id=29) as steps,
    ):
        for place in (3, 2):
            network(canvas)
            canvas[0, place] = place
            steps.committed(canvas)
    trace = sinkscope.open_trace(tmp_path / "t")
    assert trace.manifest["prompt_length"] == 2 and trace.masked[:].tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert trace.written[:].tolist() == [[-1, -1, -1, 3], [-1, -1, 2, -1]]
    assert trace.column_sums[:].sum(-1).flatten().tolist() == pytest.approx([4, 4], rel=1e-5)


# What is refused, and what is said


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (
            {"input_ids": None, "inputs_embeds": torch.zeros(1, 9, 40), "attention_mask": torch.ones(1, 9).long()},
            "or embeddings; record it",
        ),
        ({"attention_mask": torch.tensor([[1] * 8 + [0]])}, "found it behind .* together fill whole blocks"),
        (
            {"input_ids": None, "inputs_embeds": torch.zeros(1, 9, 40)},
            "expected a sampler that calls the network with whole canvases",
        ),
    ],
)
def test_calls_that_are_no_canvas(diffusion, tmp_path, inputs, words):
    with (
        pytest.raises(AttentionError, match=words),
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion),
    ):
        diffusion.network(**{"input_ids": torch.full((1, 9), 20), **inputs})


def test_a_cache_is_refused(diffusion, tmp_path):
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(torch.zeros(1, 5, 4, 8), torch.zeros(1, 5, 4, 8), 0)
    with (
        pytest.raises(AttentionError, match="with a cache"),
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion),
    ):
        diffusion.network(torch.full((1, 9), 20), past_key_values=cache)


def test_guidance_is_refused(diffusion, tmp_path):
    """Its rows without a prompt are no generation; canvases that are masks only are one."""
    canvas = torch.full((2, 9), diffusion.card.mask_id)
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        diffusion.network(canvas)
        steps.committed(canvas)
    canvas[0, :5] = 20
    refused = pytest.raises(AttentionError, match="found 1 of 2 rows with nothing but masks; leave guidance out")
    with refused, sinkscope.recording(diffusion, out=tmp_path / "u"), sinkscope.following(diffusion):
        diffusion.network(canvas)


def follow(model, out, body, **more):
    """Return the trace of one step on a canvas of a prompt of two tokens and two masks; ``body`` says what was
    committed.
    """
    with sinkscope.recording(model, out=out), sinkscope.following(model, **more) as steps, torch.no_grad():
        model.network(torch.tensor([[5, 6, model.card.mask_id, model.card.mask_id]]))
        body(steps)
    return sinkscope.open_trace(out)


BAD_CANVASES = {
    "one axis": ([5, 6, 7, 8], r"expected at least \[1, 4\] token ids, found torch.int64 \[4\]"),
    "floats": (torch.tensor([[5, 6, 7.5, 8]]), r"token ids, found torch.float32 \[1, 4\]"),
    "another prompt": (
        [[9, 6, 7, 8]],
        "expected the prompt to stay, found token 9 in place of 5 at position 0 of row 0; pass the canvas of",
    ),
    "a mask in the prompt": ([[5, 455, 7, 8]], "found token 455 in place of 6 at position 1"),
    "too few rows": (torch.zeros(0, 4, dtype=torch.long), r"at least \[1, 4\] token ids, found torch.int64 \[0, 4\]"),
    "too short": ([[5, 6, 7]], r"at least \[1, 4\] token ids, found torch.int64 \[1, 3\]"),
}


@pytest.mark.parametrize("case", BAD_CANVASES)
def test_what_is_no_canvas_is_refused_and_the_trace_is_whole(diffusion, tmp_path, case):
    canvas, message = BAD_CANVASES[case]

    def body(steps):
        with pytest.raises(CallError, match=message):
            steps.committed(canvas)
        with pytest.raises(CallError, match="expected block_x or canvas from the pipeline, found logits"):
            steps.callback(None, 0, 0, {"logits": 1})
        steps.callback(None, 0, 0, {"canvas": torch.tensor([[5, 6, 7, 8]])})
        with pytest.raises(CallError, match="expected a call of the network before it"):
            steps.committed([[5, 6, 7, 8]])

    trace = follow(diffusion, tmp_path / "t", body)
    assert trace.complete and trace.written[:].tolist() == [[-1, -1, 7, 8]]


@pytest.mark.parametrize(
    "canvas", [[[5, 6, 7, 8]], np.array([[5, 6, 7, 8]], np.int16), torch.tensor([[5, 6, 7, 8, 3]], dtype=torch.int32)]
)
def test_a_canvas_may_be_any_whole_numbers(diffusion, tmp_path, canvas):
    assert follow(diffusion, tmp_path / "t", lambda steps: steps.committed(canvas)).written[:].tolist() == [
        [-1, -1, 7, 8]
    ]


def test_ids_of_32_bits_are_followed(diffusion, tmp_path):
    canvas = masked_canvas(diffusion, PROMPT)
    for name, ids in (("long", canvas), ("int", canvas.int())):
        with (
            sinkscope.recording(diffusion, out=tmp_path / name),
            sinkscope.following(diffusion) as steps,
            torch.no_grad(),
        ):
            diffusion.network(ids)
            steps.committed(torch.where(ids == diffusion.card.mask_id, 7, ids))
    first, second = (sinkscope.open_trace(tmp_path / name) for name in ("long", "int"))
    for name in TENSORS:
        assert torch.equal(torch.as_tensor(getattr(first, name)[:]), torch.as_tensor(getattr(second, name)[:])), name


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    ("then", "message"),
    [
        (
            lambda canvas: canvas + 1,
            "expected the prompt to stay, found token .*; leave guidance out, and open `following` anew for each",
        ),
        (
            lambda canvas: canvas.repeat(2, 1),
            r"expected 1 rows of at least \d+ tokens as in the call before, found \[2, .*; leave guidance and",
        ),
        (lambda canvas: canvas[:, :-1], "as in the call before, found .*; leave guidance and the sampler's cache out"),
    ],
)
def test_another_canvas_is_refused_whether_the_step_before_was_told_or_not(diffusion, tmp_path, then, message, told):
    canvas = masked_canvas(diffusion, PROMPT)
    refused = pytest.raises(AttentionError, match=message)
    with (
        refused,
        sinkscope.recording(diffusion, out=tmp_path / "t"),
        sinkscope.following(diffusion) as steps,
        torch.no_grad(),
    ):
        diffusion.network(canvas)
        if told:
            steps.committed(canvas)
        diffusion.network(then(canvas).clamp(max=diffusion.card.mask_id))


@pytest.mark.parametrize("committed", ["early", "stale"])
def test_a_canvas_that_is_not_the_one_committed_is_refused(diffusion, tmp_path, committed):
    """Told before the token was written, or the canvas of the first step again and again."""
    canvas, refused = (
        masked_canvas(diffusion, PROMPT),
        pytest.raises(AttentionError, match="expected the tokens that were committed, found"),
    )
    with refused, sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        if committed == "early":
            for place in (-1, -2):
                diffusion.network(canvas)
                steps.committed(canvas)
                canvas[0, place] = 7
        else:
            foreign_loop(diffusion, canvas, told=lambda _: steps.committed(canvas))
    assert steps.number == 1 and not sinkscope.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("told", [False, True])
def test_a_sampler_may_mask_again_all_it_has_written_where_it_says_so(diffusion, told):
    canvas = masked_canvas(diffusion, PROMPT)
    written = canvas.clone()
    written[:, -1] = 3
    refused = pytest.raises(
        AttentionError, match="Say what was `committed` where a sampler masks again all it has written"
    )
    with contextlib.nullcontext() if told else refused, sinkscope.following(diffusion) as steps:
        for one, left in ((canvas, written), (written, canvas), (canvas, written)):
            diffusion.network(one)
            if told:
                steps.committed(left)
    assert not told or steps.number == 3


@pytest.mark.parametrize("told", [False, True])
def test_a_second_generation_is_refused(diffusion, tmp_path, told):
    canvas, refused = (
        masked_canvas(diffusion, PROMPT),
        pytest.raises(AttentionError, match="open `following` anew for each generation"),
    )
    with refused, sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        for _ in range(2):
            foreign_loop(diffusion, canvas, told=steps.committed if told else lambda canvas: None)
    assert not sinkscope.open_trace(tmp_path / "t").complete


@pytest.mark.parametrize("rule", ["none", "top:1"])
def test_a_recording_that_is_closed_before_following_is_told(diffusion, tmp_path, rule):
    said = pytest.warns(
        RuntimeWarning, match="a recording was closed before `following`, .*; open `following` inside `recording`"
    )
    recorded = sinkscope.recording(diffusion, out=tmp_path / "t")
    with said, sinkscope.parse_rule(rule)(diffusion), sinkscope.following(diffusion) as steps, recorded:
        foreign_loop(diffusion, masked_canvas(diffusion, PROMPT), told=steps.committed)
    assert not sinkscope.open_trace(tmp_path / "t").complete


def test_a_sampler_may_mask_again_what_it_wrote(diffusion, tmp_path):
    canvas, mask = masked_canvas(diffusion, PROMPT), diffusion.card.mask_id
    with sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps, torch.no_grad():
        for places in ({-1: 7, -2: 8}, {-1: mask}, {-1: 9}):
            diffusion.network(canvas)
            for place, token in places.items():
                canvas[0, place] = token
            steps.committed(canvas)
    assert sinkscope.open_trace(tmp_path / "t").written[:, -2:].tolist() == [[8, 7], [-1, mask], [-1, 9]]


def test_a_row_of_padding_only_is_refused(diffusion):
    mask = torch.tensor([[1] * 9, [0] * 9])
    with pytest.raises(CallError, match="found one whose mask calls all of it padding"), sinkscope.following(diffusion):
        diffusion.network(torch.full((2, 9), 20), attention_mask=mask)


def test_padding_between_tokens_is_told_as_such(diffusion):
    mask = torch.tensor([[1, 1, 0, 1]])
    with (
        pytest.raises(AttentionError, match="found it behind position 1 of row 0"),
        sinkscope.following(diffusion),
    ):
        diffusion.network(torch.full((1, 4), 20), attention_mask=mask)


def test_a_network_without_a_mask_token_is_refused(autoregressive):
    with (
        pytest.raises(CallError, match="mask_id: expected the mask token, found none in LlamaForCausalLM"),
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
def diffusers():
    return pytest.importorskip(
        "diffusers", reason="diffusers, whose pipelines run here, is not installed: pip install diffusers"
    )


@pytest.fixture
def llada2(diffusers, diffusion):
    """Diffusers' pipeline for LLaDA 2 around a network that `load` has given."""
    pipeline = diffusers.LLaDA2Pipeline(
        model=diffusion.network,
        scheduler=diffusers.BlockRefinementScheduler(block_length=5),
        tokenizer=diffusion.tokenizer,
    )
    pipeline.set_progress_bar_config(disable=True)
    ids = torch.tensor([diffusion.encode(PROMPT)])
    length = 15 - ids.shape[1] % 5
    options = {
        "input_ids": ids,
        "gen_length": length,
        "num_inference_steps": 5,
        "output_type": "seq",
        "mask_token_id": diffusion.card.mask_id,
    }
    return lambda **more: pipeline(**{**options, **more}).sequences


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


def test_hiding_is_in_force_in_a_pipeline(llada2, diffusion, tmp_path):
    plain = llada2()
    with sinkscope.HideTopSinks(k=3)(diffusion) as effect, sinkscope.following(diffusion) as steps:
        hidden = llada2(callback_on_step_end=steps.callback)
    assert not torch.equal(hidden, plain)
    assert torch.equal(llada2(), plain)
    assert effect is not None


def test_a_pipeline_whose_last_block_is_not_full(llada2, diffusion, tmp_path):
    refused = pytest.raises(
        AttentionError, match="prompt and answer of a pipeline that writes in blocks together fill whole blocks"
    )
    with refused, sinkscope.recording(diffusion, out=tmp_path / "t"), sinkscope.following(diffusion) as steps:
        llada2(callback_on_step_end=steps.callback, gen_length=8)


def test_a_mask_that_is_another_one_than_the_models_is_refused(diffusion):
    with (
        pytest.raises(CallError, match=r"mask_id: the mask of .* is 2, found 5; leave it out"),
        sinkscope.following(diffusion, mask_id=5),
    ):
        pass
