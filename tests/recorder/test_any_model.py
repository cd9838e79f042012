"""Any transformers model that uses the attention interface, under its own generate: every number against eager maps."""

import contextlib

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close, terms_of
from eager_run import DENSE, EagerRun, columns, so_far

import sinkscope
from sinkscope.errors import CallError
from sinkscope.figures import page_numbers
from sinkscope.statistics import Summary, Threshold, summarise
from sinkscope.statistics.concentration import Evenness
from sinkscope.traces import read_statistics

TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
IDS = torch.randint(5, 50, (2, 9), generator=torch.Generator().manual_seed(0))
PADDED = torch.ones_like(IDS)
PADDED[0, :3] = 0
LENGTHS = (6, 9)
NEW = 4


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=32, n_embd=24, n_layer=2, n_head=4, initializer_range=0.5, **TOKENS
    )
    return transformers.GPT2LMHeadModel(config)


def gpt2_sources(attention, layer):
    def keep(module, args, output):
        _, key, value = output.detach().split(24, dim=-1)
        layer.keys.append(key.unflatten(-1, (4, 6)).norm(dim=-1).transpose(1, 2))
        layer.values.append(value.unflatten(-1, (4, 6)).norm(dim=-1).transpose(1, 2))

    attention.c_attn.register_forward_hook(keep)


GROUPED = {
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 8,
}


def qwen3():
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**GROUPED, num_hidden_layers=2, initializer_range=0.3, **TOKENS)
    )


def gemma3():
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = transformers.Gemma3TextConfig(
        **GROUPED,
        num_hidden_layers=3,
        layer_types=kinds,
        sliding_window=5,
        initializer_range=0.3,
        query_pre_attn_scalar=8,
        **TOKENS,
    )
    return transformers.Gemma3ForCausalLM(config)


def normed_sources(attention, layer):
    """Keys behind their norm (rotation turns them only), values as projected: [batch, head, token, dim] and [batch, token, width]."""
    attention.k_norm.register_forward_hook(lambda m, a, output: layer.keys.append(by_head(output).norm(dim=-1)))
    attention.v_proj.register_forward_hook(
        lambda m, a, output: layer.values.append(output.detach().unflatten(-1, (3, 8)).norm(dim=-1).transpose(1, 2))
    )


def by_head(output):
    """Qwen 3 norms [batch, token, head, dim], Gemma 3 [batch, head, token, dim]."""
    return output.detach() if output.shape[1] == 3 else output.detach().transpose(1, 2)


MODELS = {"gpt2": (gpt2, gpt2_sources), "qwen3": (qwen3, normed_sources), "gemma3": (gemma3, normed_sources)}


def build(name):
    torch.manual_seed(0)
    make, sources = MODELS[name]
    network = make().eval()
    return network, EagerRun(network, sources)


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_under_its_own_generate_equals_its_eager_maps(name, cached, tmp_path):
    """A batch padded on the left; behind a cache columns run on, without one each step has all queries again."""
    network, dense = build(name)
    options = {"attention_mask": PADDED, "max_new_tokens": NEW, "do_sample": False, "use_cache": cached}
    expected = dense.network.generate(IDS, **options)
    with sinkscope.recording(network, out=tmp_path / "t"):
        assert torch.equal(network.generate(IDS, **options), expected)
    traces = sinkscope.open_traces(tmp_path / "t")
    assert [trace.manifest["prompt_length"] for trace in traces] == list(LENGTHS)
    for row, trace in enumerate(traces):
        padding = 9 - LENGTHS[row]
        assert trace.layers == tuple(dense.layers) and trace.complete and trace.causal and trace.steps == NEW
        assert trace.manifest["stack"] == trace.manifest["attends_to"] == trace.layers[0].split(".")[0]
        for step in range(NEW):
            width, length = 9 + step, LENGTHS[row] + step
            assert (
                trace.lengths[step] == length
                and trace.tokens[step, :length].tolist() == expected[row, padding:width].tolist()
            )
            for number, layer in enumerate(dense.layers.values()):
                maps = layer.maps[: step + 1]
                found = {
                    key: getattr(trace, key)[step, number][..., :length]
                    for key in ("column_sums", "last_query", "self_attention")
                }
                assert_close(
                    found["column_sums"], columns(maps, row, padding, width, not cached), terms=terms_of(network, 19)
                )
                own = torch.zeros(maps[-1].shape[1], width)
                own[:, width - maps[-1].shape[-1] :] = maps[-1][row, :, -1]
                assert_close(found["last_query"], own[:, padding:], terms=terms_of(network, 19))
                diagonal = [each.diagonal(each.shape[-1] - each.shape[-2], -2, -1) for each in maps]
                assert_close(
                    found["self_attention"], so_far(diagonal, row, padding, not cached), terms=terms_of(network, 19)
                )
                for key, pieces in (
                    ("key_norms", layer.keys),
                    ("value_norms", layer.values),
                    ("hidden_norms", layer.hidden),
                ):
                    dense_norms = so_far(pieces[: step + 1], row, padding, not cached)
                    assert_close(
                        getattr(trace, key)[step, number][..., :length], dense_norms, terms=terms_of(network, 19)
                    )


def test_gemma_slides_in_two_layers_of_three():
    """Or the test above would show nothing."""
    _, dense = build("gemma3")
    dense.network.generate(IDS, max_new_tokens=3, do_sample=False)
    assert [layer.maps[-1].shape[-1] for layer in dense.layers.values()] == [5, 11, 5]


def test_a_plain_forward_call_of_gemma_equals_its_eager_maps(tmp_path):
    network, dense = build("gemma3")
    with torch.no_grad(), sinkscope.recording(network, out=tmp_path / "t"):
        network(IDS[:1])
    with torch.no_grad():
        dense.network(IDS[:1])
    trace = sinkscope.open_trace(tmp_path / "t")
    for number, layer in enumerate(dense.layers.values()):
        assert_close(trace.column_sums[0, number], layer.maps[0][0].sum(dim=1), terms=terms_of(network, 19))


# Block diffusion: an encoder that reads, a decoder that looks at what the encoder has cached and at its own canvas


def diffusion_gemma():
    torch.manual_seed(0)
    text = transformers.DiffusionGemmaTextConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        layer_types=["sliding_attention", "full_attention", "full_attention"],
        sliding_window=6,
        num_experts=2,
        top_k_experts=1,
        moe_intermediate_size=8,
        initializer_range=0.3,
        **TOKENS,
    )
    vision = transformers.Gemma4VisionConfig(
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
    )
    config = transformers.DiffusionGemmaConfig(text_config=text, vision_config=vision, canvas_length=5)
    return transformers.DiffusionGemmaForBlockDiffusion(config).eval()


def cached_norm_sources(attention, layer):
    attention.k_norm.register_forward_hook(
        lambda m, a, output: layer.keys.append(output.detach().norm(dim=-1).transpose(1, 2))
    )
    attention.v_norm.register_forward_hook(
        lambda m, a, output: layer.values.append(output.detach().norm(dim=-1).transpose(1, 2))
    )


def test_diffusion_gemma_under_its_own_generate_equals_its_eager_maps(tmp_path):
    """Two canvases of five tokens, two steps each: traces of the encoder (running sums) and of the decoder (5 queries on all keys)."""
    network = diffusion_gemma()
    dense = EagerRun(network, cached_norm_sources, implementation=DENSE)
    options = {"attention_mask": PADDED, "max_new_tokens": 10, "max_denoising_steps": 2}
    torch.manual_seed(1)
    expected = dense.network.generate(IDS, **options).sequences
    torch.manual_seed(1)
    with sinkscope.recording(network, out=tmp_path / "t"):
        found = network.generate(IDS, **options).sequences
    assert torch.equal(found, expected)
    traces = sinkscope.open_traces(tmp_path / "t")
    assert [trace.manifest["stack"] for trace in traces] == 2 * ["model.encoder.language_model"] + 2 * ["model.decoder"]
    assert [trace.causal for trace in traces] == [True, True, False, False]
    assert [trace.manifest["prompt_length"] for trace in traces] == [*LENGTHS, *LENGTHS]
    assert [trace.steps for trace in traces] == [2, 2, 4, 4] and all(trace.complete for trace in traces)
    for row, trace in enumerate(traces[:2]):
        padding = 9 - LENGTHS[row]
        for step, width in enumerate((9, 14)):
            length = width - padding
            assert trace.tokens[step, :length].tolist() == expected[row, padding:width].tolist()
            for number, name in enumerate(trace.layers):
                layer = dense.layers[name]
                expected_columns = columns(layer.maps[: step + 1], row, padding, width, False)
                assert_close(trace.column_sums[step, number, :, :length], expected_columns, terms=terms_of(network, 19))
                norms = so_far(layer.values[: step + 1], row, padding, False)
                assert_close(trace.value_norms[step, number, : len(norms), :length], norms, terms=terms_of(network, 19))
                assert np.isnan(trace.value_norms[step, number, len(norms) :]).all(), "no such kv head in this layer"
    for row, trace in enumerate(traces[2:]):
        padding = 9 - LENGTHS[row]
        assert trace.layers == tuple(f"model.decoder.layers.{number}.self_attn" for number in range(3))
        for step in range(4):
            width = 14 if step < 2 else 19
            length = width - padding
            assert trace.lengths[step] == length
            assert trace.tokens[step, : length - 5].tolist() == expected[row, padding : width - 5].tolist()
            for number, name in enumerate(trace.layers):
                layer, encoder = dense.layers[name], dense.layers[name.replace("decoder", "encoder.language_model")]
                each, held = layer.maps[step][row], layer.maps[step].shape[-1]
                placed = torch.zeros(4, width)
                placed[:, width - held :] = each.sum(dim=1)
                assert_close(
                    trace.column_sums[step, number, :, :length], placed[:, padding:], terms=terms_of(network, 19)
                )
                assert_close(np.nansum(trace.column_sums[step, number], axis=-1), 5, terms=3 * 19)
                diagonal = trace.self_attention[step, number, :, :length]
                assert_close(diagonal[:, -5:], each.diagonal(held - 5, -2, -1), terms=terms_of(network, 19))
                assert np.isnan(diagonal[:, :-5]).all()
                assert_close(
                    trace.hidden_norms[step, number, length - 5 : length],
                    layer.hidden[step][row],
                    terms=terms_of(network, 19),
                )
                for key in ("key_norms", "value_norms"):
                    pieces = getattr(encoder, key.split("_")[0] + "s")
                    norms = torch.cat(
                        [*pieces[: 1 + step // 2], getattr(layer, key.split("_")[0] + "s")[step]], dim=-1
                    )[row]
                    stored = getattr(trace, key)[step, number, : len(norms), :length]
                    first = max(0, width - held - padding)
                    assert np.isnan(stored[:, :first]).all(), "keys the window has left behind"
                    assert_close(stored[:, first:], norms[:, padding:][:, first:], terms=terms_of(network, 19))
    assert dense.layers["model.decoder.layers.0.self_attn"].maps[0].shape[-2:] == (5, 10), (
        "the window holds five of nine"
    )


# An encoder, a decoder and what crosses between them


def bart(decoder_layers):
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=50,
        d_model=24,
        encoder_layers=1,
        decoder_layers=decoder_layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=0.4,
        decoder_start_token_id=7,
        forced_eos_token_id=None,
        **TOKENS,
    )
    return transformers.BartForConditionalGeneration(config).eval()


def test_an_encoder_and_a_decoder_make_traces_of_their_own(tmp_path):
    """Self-attention of both, and the decoder's attention to the encoder's tokens."""
    network = bart(decoder_layers=2)

    def sources(attention, layer):
        for name, kept in (("k_proj", layer.keys), ("v_proj", layer.values)):
            getattr(attention, name).register_forward_hook(
                lambda m, a, output, kept=kept: kept.append(
                    output.detach().unflatten(-1, (4, 6)).norm(dim=-1).transpose(1, 2)
                )
            )

    dense = EagerRun(network, sources)
    options = {"attention_mask": PADDED, "max_new_tokens": 3, "do_sample": False, "num_beams": 1}
    expected = dense.network.generate(IDS, **options)
    with sinkscope.recording(network, out=tmp_path / "t"):
        assert torch.equal(network.generate(IDS, **options), expected)
    traces = sinkscope.open_traces(tmp_path / "t")
    seen = [
        (trace.manifest["stack"], trace.manifest["attends_to"], trace.steps, trace.manifest["prompt_length"])
        for trace in traces
    ]
    assert seen == [
        ("model.encoder", "model.encoder", 1, 6),
        ("model.encoder", "model.encoder", 1, 9),
        ("model.decoder", "model.decoder", 3, 1),
        ("model.decoder", "model.decoder", 3, 1),
        ("model.decoder", "model.encoder", 3, 6),
        ("model.decoder", "model.encoder", 3, 9),
    ]
    for row in range(2):
        encoder, decoder, cross = traces[row], traces[2 + row], traces[4 + row]
        padding, length = 9 - LENGTHS[row], LENGTHS[row]
        layer = dense.layers[encoder.layers[0]]
        assert not encoder.causal and decoder.causal and cross.causal
        assert_close(
            encoder.column_sums[0, 0], layer.maps[0][row][:, padding:, padding:].sum(dim=1), terms=terms_of(network, 19)
        )
        assert_close(encoder.value_norms[0, 0], layer.values[0][row][:, padding:], terms=terms_of(network, 19))
        for number in range(2):
            own, other = dense.layers[decoder.layers[number]], dense.layers[cross.layers[number]]
            assert cross.layers[number] == f"model.decoder.layers.{number}.encoder_attn"
            for step in range(3):
                sums = columns(own.maps[: step + 1], row, 0, step + 1, False)
                assert_close(decoder.column_sums[step, number, :, : step + 1], sums, terms=terms_of(network, 19))
                crossed = sum(each[row].sum(dim=1) for each in other.maps[: step + 1])
                assert_close(cross.column_sums[step, number], crossed[:, padding:], terms=terms_of(network, 19))
                assert_close(
                    cross.key_norms[step, number], other.keys[0][row][:, padding:], terms=terms_of(network, 19)
                )
                assert_close(
                    cross.value_norms[step, number], other.values[0][row][:, padding:], terms=terms_of(network, 19)
                )
        assert cross.lengths[:].tolist() == [length] * 3
        assert cross.tokens[2].tolist() == IDS[row, padding:].tolist() and decoder.tokens[0, 0] == 7
        assert "self_attention" in decoder.tensors and "self_attention" not in cross.tensors


def test_a_decoder_may_write_more_tokens_than_its_encoder_read(tmp_path, run):
    """A key of the encoder can have more attention than there are keys; its mean is over the decoder's tokens so far."""
    network = bart(decoder_layers=1)
    with sinkscope.recording(network, out=tmp_path / "t"):
        network.generate(IDS[1:, :3], max_new_tokens=12, min_new_tokens=12, do_sample=False, num_beams=1)
    cross = sinkscope.open_traces(tmp_path / "t")[2]
    columns = cross.column_sums[:]
    np.testing.assert_allclose(
        columns.sum(axis=-1), np.broadcast_to(np.arange(1, 13)[:, None, None], (12, 1, 4)), rtol=1e-5
    )
    assert columns.max() > 3
    status, _, err = run("sinks", str(cross.folder))
    assert status == 0 and "can exceed" not in err, "12 queries' worth can lie on one of the 3 tokens"
    sinks = sinkscope.find_sinks(cross, excess=0.1)
    np.testing.assert_allclose(sinks.visible_query_mean, sinks.column_sum / (sinks.step + 1), rtol=1e-6)
    rate = summarise(cross).kept(Evenness)
    np.testing.assert_array_equal(
        rate.over_third[:, 0], (columns[:, 0] / np.arange(1, 13)[:, None, None]).max(axis=-1) > 0.3
    )
    assert sinkscope.analyse(cross).prompts == 1
    with pytest.raises(
        CallError,
        match=r"expected one stack's attention, found model\.encoder and model\.decoder; analyse each",
    ):
        sinkscope.analyse(sinkscope.open_traces(tmp_path / "t"))
    with pytest.raises(CallError, match=r"found model\.decoder and model\.decoder to model\.encoder; analyse each"):
        sinkscope.analyse(sinkscope.open_traces(tmp_path / "t")[1:])


def test_tokens_that_are_unknown_are_counted_as_such(tmp_path):
    """States went in, of which nobody knows the tokens: the trace has −1 there, which is a token like another in every count."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 50,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 16,
    }
    network, states = (
        transformers.BertModel(transformers.BertConfig(**shape, initializer_range=0.6)).eval(),
        torch.randn(1, 10, 24),
    )
    with sinkscope.recording(network, out=tmp_path / "t"), torch.no_grad():
        network(inputs_embeds=states)
    trace = sinkscope.open_traces(tmp_path / "t")[0]
    assert (trace.tokens[:] == -1).all()
    loose = [Threshold(0.1)]
    found = sinkscope.analyse(trace, loose)
    shares = {one.place["class"]: one.value for one in found.find("composition.share_of_sinks", excess=0.1)}
    assert (
        shares["word"] == 1.0
        and found.find("composition.share_of_canvas", excess=0.1, **{"class": "word"})[0].value == 1.0
    )
    assert summarise(trace, loose).canvas.token_counts.tolist() == [10]
    with sinkscope.recording(network, out=tmp_path / "s", keep="statistics"), torch.no_grad():
        network(inputs_embeds=states)
    summary = Summary.from_arrays(read_statistics(tmp_path / "s")[1])
    assert summary.arrays["tokens.ids"].tolist() == [-1]


def test_traces_of_an_encoder_and_a_decoder_can_be_read_for_sinks(tmp_path):
    network = diffusion_gemma()
    with sinkscope.recording(network, out=tmp_path / "t"):
        network.generate(IDS[1:], max_new_tokens=10, max_denoising_steps=2)
    for trace in sinkscope.open_traces(tmp_path / "t"):
        sinks = sinkscope.find_sinks(trace, excess=0.1)
        assert len(sinks) > 0 and sinkscope.track(sinks)
        assert page_numbers(trace)["complete"]


class Words:
    """A tokenizer of a network's own: token 7 ends an answer."""

    eos_token_id = 7

    def decode(self, ids, skip_special_tokens=False):
        return "".join(f" w{token}" for token in ids if token != 49 and not (skip_special_tokens and token == 7))

    def convert_ids_to_tokens(self, token):
        return f"<piece {token}>"


def test_a_tokenizer_gives_the_tokens_of_any_network_their_texts(tmp_path):
    ids = IDS[1:].clone()
    ids[0, :2] = torch.tensor([7, 49])
    network = qwen3().eval()
    for name, more in (("named", {"tokenizer": Words()}), ("nameless", {})):
        with sinkscope.recording(network, out=tmp_path / name, **more):
            written = network.generate(ids, max_new_tokens=NEW, do_sample=False)[0]
    trace = sinkscope.open_trace(tmp_path / "named")
    texts = [trace.token_text(token) for token in trace.tokens[0, :9]]
    assert texts == [" w7", "<piece 49>", *(f" w{token}" for token in ids[0, 2:].tolist())]
    answer = written[9 : 9 + NEW - 1].tolist()  # the newest token has not been read yet
    answer = answer[: answer.index(7)] if 7 in answer else answer
    assert trace.manifest["text"] == "".join(f" w{token}" for token in answer)
    assert trace.manifest["eos_id"] == 7
    nameless = sinkscope.open_trace(tmp_path / "nameless")
    assert nameless.token_text(7) == "<7>" and "text" not in nameless.manifest and nameless.manifest["eos_id"] is None


def test_the_map_of_such_a_network_says_why_there_is_none(tmp_path, run):
    network = qwen3().eval()
    with sinkscope.recording(network, out=tmp_path / "t"):
        network.generate(IDS[1:], max_new_tokens=2)
    status, _, err = run("map", tmp_path / "t", "--step", 0, "--layer", 0, "--head", 0)
    assert (
        status == 2
        and "was written by Qwen3ForCausalLM that sinkscope did not load, so its maps cannot be computed again" in err
    )
    for figure, why in (("2", "the trace does not say which tokens were committed"), ("8", "did not load")):
        status, _, err = run("figures", tmp_path / "t", "--out", tmp_path / "f", "--only", figure, "--excess", 0.1)
        assert status == 1 and f"Figure {figure} is not drawn" in err and why in err


def test_a_second_generate_makes_further_traces(tmp_path):
    network = diffusion_gemma()
    with sinkscope.recording(network, out=tmp_path / "t"):
        for _ in range(2):
            network.generate(IDS[1:], max_new_tokens=5, max_denoising_steps=1)
    traces = sinkscope.open_traces(tmp_path / "t")
    assert [trace.manifest["stack"].split(".")[1] for trace in traces] == ["encoder", "decoder"] * 2
    assert [trace.steps for trace in traces] == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_network_with_gradient_checkpoints_is_recorded_and_trained(tmp_path):
    network, gradients = qwen3().train(), []
    for number, recorded in enumerate((False, True)):
        network.zero_grad()
        network.gradient_checkpointing_enable()
        with sinkscope.recording(network, out=tmp_path / f"{number}") if recorded else contextlib.nullcontext():
            network(IDS, use_cache=False).logits.square().sum().backward()
        gradients.append(network.model.layers[0].self_attn.q_proj.weight.grad)
    assert_close(gradients[1], gradients[0], terms=terms_of(network, 9) * 50)
    assert len(sinkscope.open_traces(tmp_path / "1")) == 2


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
def test_several_texts_in_one_trace_are_not_analysed(causal, tmp_path):
    """Plain calls are steps of one text, which an autoregressive model only lengthens."""
    shape = transformers.BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=16
    )
    network = qwen3().eval() if causal else transformers.BertForMaskedLM(shape).eval()
    given = {"use_cache": False} if causal else {}
    with sinkscope.recording(network, out=tmp_path / "run"):
        for length in (5, 8, 3):
            network(IDS[:1, :length], **given)
    with pytest.raises(
        CallError, match=r"expected a canvas that grows, found 3 tokens behind a .*; record each text by itself"
    ):
        sinkscope.analyse(tmp_path / "run")
