"""Any transformers model that uses the attention interface, under its own generate: every number against eager maps."""

import numpy as np
import pytest
import torch
import transformers
from closeness import assert_close, terms_of
from eager_run import DENSE, EagerRun, columns, so_far

import sinkscope

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


GROUPED = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 16}
GROUPED |= {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}


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
    """Keys behind their norm (rotation turns them only), values as projected: [batch, head, token, dim] and [batch,
    token, width].
    """
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
            assert trace.lengths[step] == length
            assert trace.tokens[step, :length].tolist() == expected[row, padding:width].tolist()
            for number, layer in enumerate(dense.layers.values()):
                maps = layer.maps[: step + 1]
                own = torch.zeros(maps[-1].shape[1], width)
                own[:, width - maps[-1].shape[-1] :] = maps[-1][row, :, -1]
                diagonal = [each.diagonal(each.shape[-1] - each.shape[-2], -2, -1) for each in maps]
                pieces = {"self_attention": diagonal, "key_norms": layer.keys, "value_norms": layer.values}
                pieces["hidden_norms"] = layer.hidden
                of_dense = {key: so_far(one[: step + 1], row, padding, not cached) for key, one in pieces.items()}
                of_dense["column_sums"] = columns(maps, row, padding, width, not cached)
                of_dense["last_query"] = own[:, padding:]
                for key, one in of_dense.items():
                    found = getattr(trace, key)[step, number][..., :length]
                    assert_close(found, one, terms=terms_of(network, 19), what=key)


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


@pytest.mark.slow
def test_diffusion_gemma_under_its_own_generate_equals_its_eager_maps(tmp_path):
    """Two canvases of five tokens, two steps each: traces of the encoder (running sums) and of the decoder (5 queries
    on all keys).
    """
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
