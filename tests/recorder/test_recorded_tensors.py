"""Every stored tensor against a dense recomputation: transformers' eager attention on the stored canvas."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close, probabilities_of, terms_of

import sinkscope

LENGTH, BLOCK, STEPS = 12, 6, 8


@dataclass(frozen=True)
class Dense:
    """What a network does with one canvas, no cache, whole maps."""

    attention: np.ndarray  # [layer, head, query, key]
    hidden_norms: np.ndarray  # [layer, position]
    value_norms: np.ndarray  # [layer, kv head, position]
    key_norms: np.ndarray
    logits: torch.Tensor  # [position, vocabulary]


@torch.no_grad()
def recompute(network, canvas):
    kv_heads, seen = network.config.num_key_value_heads, {}

    def keep(name, layer):
        def hook(module, args, output):
            # Rotation turns a key and leaves its length.
            seen[name, layer] = output[0].unflatten(-1, (kv_heads, -1)).norm(dim=-1).T.numpy()

        return hook

    layers = network.model.layers
    handles = [
        getattr(layer.self_attn, name).register_forward_hook(keep(name, number))
        for number, layer in enumerate(layers)
        for name in ("v_proj", "k_proj")
    ]
    tokens = torch.from_numpy(canvas.astype(np.int64))[None]
    answer = network(tokens, output_attentions=True, output_hidden_states=True, use_cache=False)
    for handle in handles:
        handle.remove()
    return Dense(
        torch.stack(answer.attentions)[:, 0].numpy(),
        torch.stack(answer.hidden_states[: len(layers)])[:, 0].norm(dim=-1).numpy(),
        np.stack([seen["v_proj", number] for number in range(len(layers))]),
        np.stack([seen["k_proj", number] for number in range(len(layers))]),
        answer.logits[0],
    )


def eager(folder):
    return transformers.LlamaForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()


@dataclass(frozen=True)
class Recorded:
    """A trace, what its generation returned, and the dense recomputation of each of its steps."""

    trace: sinkscope.Trace
    generation: sinkscope.Generation
    dense: list[Dense]
    model: sinkscope.Model

    @property
    def terms(self):
        return terms_of(self.model.network, int(self.trace.lengths[-1]))


def record(model, network, out, prompts, **settings):
    with sinkscope.recording(model, out=out):
        answers = sinkscope.generate(model, prompts, **settings)
    recorded = []
    for trace, answer in zip(sinkscope.open_traces(out), answers, strict=True):
        dense = [recompute(network, trace.tokens[step, : trace.lengths[step]]) for step in range(trace.steps)]
        recorded.append(Recorded(trace, answer, dense, model))
    return recorded


PROMPTS = [
    "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:",
    "Q: Write a function f(x) that returns x plus 3.\nA:",
]


@pytest.fixture(scope="module")
def diffused(diffusion, diffusion_folder, tmp_path_factory):
    """Two prompts in one left-padded batch, fewer steps than tokens, two blocks."""
    settings = {"length": LENGTH, "block": BLOCK, "steps": STEPS}
    return record(
        diffusion, eager(diffusion_folder), tmp_path_factory.mktemp("traces") / "diffused", PROMPTS, **settings
    )


@pytest.fixture(scope="module")
def guided(diffusion, diffusion_folder, tmp_path_factory):
    settings = {"length": LENGTH, "block": BLOCK, "steps": STEPS, "guidance": 1.5}
    return record(diffusion, eager(diffusion_folder), tmp_path_factory.mktemp("traces") / "guided", PROMPTS, **settings)


@pytest.fixture(scope="module")
def written(autoregressive, autoregressive_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("traces") / "written"
    return record(autoregressive, eager(autoregressive_folder), out, PROMPTS, length=LENGTH)


@pytest.fixture(params=["diffused", "guided", "written"])
def both_rows(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=[0, 1], ids=["longer", "shorter"])
def recorded(request, both_rows):
    return both_rows[request.param]


def each_step(recorded, name):
    """(values of the step within its length, the dense step, the canvas) of every step."""
    trace = recorded.trace
    array = getattr(trace, name)[:]
    for step in range(trace.steps):
        length = trace.lengths[step]
        beyond = array[step, ..., length:]
        assert np.isnan(beyond).all()
        yield array[step, ..., :length], recorded.dense[step], trace.tokens[step, :length]


DENSE = {
    "column_sums": lambda dense: dense.attention.sum(axis=2),
    "self_attention": lambda dense: np.diagonal(dense.attention, axis1=2, axis2=3),
    "value_norms": lambda dense: dense.value_norms,
    "key_norms": lambda dense: dense.key_norms,
    "hidden_norms": lambda dense: dense.hidden_norms,  # of what enters the layer
}


def test_every_tensor_is_the_dense_one(recorded):
    for name, expected in DENSE.items():
        for found, dense, _ in each_step(recorded, name):
            assert_close(found, expected(dense), terms=recorded.terms, what=name)


@pytest.mark.parametrize("both_rows", ["diffused", "guided"], indirect=True)
def test_column_sums_of_query_groups(recorded):
    mask, prompt = recorded.model.card.mask_id, recorded.trace.manifest["prompt_length"]
    for found, dense, canvas in each_step(recorded, "column_sums_masked"):
        assert_close(found, dense.attention[:, :, canvas == mask].sum(axis=2), terms=recorded.terms)
    for found, dense, _ in each_step(recorded, "column_sums_prompt"):
        assert_close(found, dense.attention[:, :, :prompt].sum(axis=2), terms=recorded.terms)


@pytest.mark.parametrize("both_rows", ["written"], indirect=True)
def test_last_query_is_the_newest_row(recorded):
    for found, dense, _ in each_step(recorded, "last_query"):
        assert_close(found, dense.attention[:, :, -1], terms=recorded.terms)
        assert_close(found.sum(axis=-1), 1, terms=3 * int(recorded.trace.lengths[-1]))


# The canvas


def test_each_canvas_is_the_one_before_with_what_was_written(recorded):
    trace = recorded.trace
    canvas = trace.tokens[0, : trace.lengths[0]]
    for step in range(trace.steps):
        length = trace.lengths[step]
        assert trace.tokens[step, :length].tolist() == canvas.tolist()
        fresh = trace.written[step, : length + trace.causal]
        canvas = np.where(fresh >= 0, fresh, np.append(canvas, -1)[: len(fresh)])
    assert canvas.tolist() == recorded.generation.tokens.tolist()


@pytest.mark.parametrize("both_rows", ["diffused"], indirect=True)
def test_predicted_and_confidence_are_what_the_network_says_of_open_positions(recorded):
    trace, mask = recorded.trace, recorded.model.card.mask_id
    start = recorded.generation.prompt_length
    shares = probabilities_of(recorded.model.network, torch.from_numpy(trace.tokens[-1:].astype(np.int64)))
    for step, dense in enumerate(recorded.dense):
        stop = start + BLOCK * (1 + step // (STEPS // 2))
        candidates = (trace.tokens[step] == mask) & (np.arange(trace.tokens.shape[1]) < stop)
        predicted, confidence, written = trace.predicted[step], trace.confidence[step], trace.written[step]
        probability = torch.softmax(dense.logits, dim=-1).max(dim=-1)
        assert (predicted[~candidates] == -1).all()
        assert np.isnan(confidence[~candidates]).all()
        assert predicted[candidates].tolist() == probability.indices.numpy()[candidates].tolist()
        assert_close(confidence[candidates], probability.values[candidates], **shares)
        chosen = written >= 0
        assert chosen.sum() == (2, 2, 1, 1)[step % 4]
        assert (written[chosen] == predicted[chosen]).all()
        assert confidence[chosen].min() >= confidence[candidates & ~chosen].max(initial=0)


@pytest.mark.parametrize("both_rows", ["written"], indirect=True)
def test_an_autoregressive_step_writes_the_position_behind_its_canvas(recorded):
    trace = recorded.trace
    assert not trace.masked[:].any()
    for step, dense in enumerate(recorded.dense):
        length = trace.lengths[step]
        canvas = trace.tokens[step : step + 1, :length].astype(np.int64)
        probability = torch.softmax(dense.logits[-1], dim=-1).max(dim=-1)
        for name in ("written", "predicted"):
            array = getattr(trace, name)[step]
            assert array[length] == probability.indices and (np.delete(array, length) == -1).all()
        shares = probabilities_of(recorded.model.network, torch.from_numpy(canvas))
        assert_close(trace.confidence[step, length], probability.values, **shares)
        assert np.isnan(np.delete(trace.confidence[step], length)).all()


def test_rows_that_have_met_eos_are_no_longer_recorded(autoregressive, tmp_path):
    plain = sinkscope.generate(autoregressive, PROMPTS, length=LENGTH)
    answers = [answer.tokens[answer.prompt_length :].tolist() for answer in plain]
    # Play that a token which the first row writes early, and the second never, were EOS.
    end = next(token for token in answers[0][1:-3] if token not in answers[1])
    stops = dataclasses.replace(autoregressive, card=dataclasses.replace(autoregressive.card, eos_id=end))
    with sinkscope.recording(stops, out=tmp_path / "stops"):
        sinkscope.generate(stops, PROMPTS, length=LENGTH)
    short, long = sinkscope.open_traces(tmp_path / "stops")
    assert short.steps == answers[0].index(end) + 1
    assert long.steps == LENGTH
    for trace, answer in ((short, answers[0]), (long, answers[1])):
        assert trace.written[:].max(axis=1).tolist() == answer[: trace.steps]
        assert_close(np.nansum(trace.column_sums[-1, 0, 0]), float(trace.lengths[-1]), terms=3 * int(trace.lengths[-1]))


def test_the_newest_row_of_a_run_with_hidden_keys_is_the_one_in_force(autoregressive, tmp_path):
    """What a step adds to the columns is its newest query's row."""
    with (
        sinkscope.parse_rule("window:1+3@zero")(autoregressive),
        sinkscope.recording(autoregressive, out=tmp_path / "run"),
    ):
        sinkscope.generate(autoregressive, list(range(5, 17)), length=8)
    trace = sinkscope.open_trace(tmp_path / "run")
    columns, rows = np.nan_to_num(trace.column_sums[:]), np.nan_to_num(trace.last_query[:])
    assert_close(columns[1:] - columns[:-1], rows[1:], terms=terms_of(autoregressive.network, 20))
    assert (rows[1:, :, :, :12] == 0).any()
