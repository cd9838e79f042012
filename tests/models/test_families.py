"""Families: recognition, parameter counts and chat templates."""

import dataclasses
from pathlib import Path

import pytest
import torch
from closeness import assert_close, terms_of
from tiny import EOS, LLADA_CONFIG, LLAMA_CONFIG, MMADA_CONFIG, TINY, save_tiny
from tiny_tokenizers import LLADA_ADDED, SAVE, save_llada_tokenizer, save_llama_tokenizer

import sinkscope
from sinkscope.decoding.checking import check_model
from sinkscope.errors import ModelError
from sinkscope.models import FAMILIES, recognise
from sinkscope.models.conversion import completed, convert_config
from sinkscope.models.loading import Plan
from sinkscope.models.weights import on_meta

DREAM, LLADA, LLAMA, MMADA, SDAR = (FAMILIES[name] for name in ("dream", "llada", "llama", "mmada", "sdar"))

KINDS = {"llada": LLADA, "mmada": MMADA, "dream": DREAM, "llama": LLAMA, "sdar": SDAR}


def load_tiny(name, folder, **changes):
    return sinkscope.load(str(SAVE[name](save_tiny(name, folder, **changes))))


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_as_published_loads_as_its_family(name, tmp_path):
    model = load_tiny(name, tmp_path)
    config = TINY[name].config
    assert model.family is KINDS[name]
    assert (model.family.causal, model.family.shift) == (name == "llama", name == "dream")
    assert model.card.mask_id == config.get("mask_token_id")
    assert model.card.eos_id == (EOS + 1 if name == "llama" else EOS)  # the tokenizer's, where the config has several
    assert model.card.vocabulary == config.get("embedding_size", config["vocab_size"])
    assert model.card.kv_heads == config.get("n_kv_heads", config.get("num_key_value_heads"))
    assert model.card.max_positions == config.get("max_sequence_length", config.get("max_position_embeddings"))
    assert model.card.stored_dtype == "float32"
    assert model.tokenizer.mask_token_id == config.get("mask_token_id")


def test_every_end_of_an_answer_ends_it(tmp_path):
    """Llama 3.1 Instruct has three; the answer stops at the first of any of them."""
    model = load_tiny("llama", tmp_path)
    assert set(model.card.ends) == {EOS, EOS + 1} and model.card.eos_id == EOS + 1
    assert model.answer_text(torch.tensor([3, 4, EOS, 5, EOS + 1])) == "w3 w4"
    prompt = [3, 4, 5]
    first = int(sinkscope.generate(model, prompt, length=1).tokens[-1])
    for ends in [(first,), (1, first), (first, 1)]:
        stopping = dataclasses.replace(model, card=dataclasses.replace(model.card, eos_ids=ends, eos_id=1))
        assert sinkscope.generate(stopping, prompt, length=5).tokens.tolist() == [*prompt, first]
    going_on = dataclasses.replace(model, card=dataclasses.replace(model.card, eos_ids=(), eos_id=None))
    assert sinkscope.generate(going_on, prompt, length=5).steps == 5


def test_a_dream_conversation_in_the_published_form(tmp_path):
    model = load_tiny("dream", tmp_path)
    start = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhe<|im_end|>\n"
    expected = model.tokenizer(f"{start}<|im_start|>assistant\n").input_ids
    assert model.chat([{"role": "user", "content": "he"}]) == expected


@pytest.mark.parametrize(
    ("config", "family"),
    [
        (LLADA_CONFIG, LLADA),
        (LLADA_CONFIG | {"architectures": None}, LLADA),
        (MMADA_CONFIG, MMADA),
        (MMADA_CONFIG | {"model_type": "llada"}, MMADA),
        (LLADA_CONFIG | {"architectures": ["MMadaModelLM"]}, MMADA),
        (LLADA_CONFIG | {"embedding_size": 134656}, MMADA),
        (LLADA_CONFIG | {"codebook_size": 8192}, MMADA),
        (TINY["dream"].config, DREAM),
        (LLAMA_CONFIG, LLAMA),
        (TINY["llada_moe"].config, FAMILIES["llada_moe"]),
        (TINY["sdar"].config, SDAR),
        ({"model_type": "qwen3", "is_causal": False, "mask_token_id": 3, "sinkscope_family": "sdar"}, SDAR),
        ({"model_type": "qwen3"}, LLAMA),
        ({"model_type": "qwen2"}, LLAMA),
        ({"model_type": "llama", "is_causal": False, "mask_token_id": 3}, LLADA),
        ({"model_type": "qwen2", "is_causal": False, "mask_token_id": 3, "sinkscope_family": "dream"}, DREAM),
        ({"model_type": "llama", "is_causal": False, "mask_token_id": 3, "sinkscope_family": "mmada"}, MMADA),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "config",
)
def test_a_config_is_recognised(config, family):
    assert recognise(config, "here") is family


@pytest.mark.parametrize(
    ("config", "fragment"),
    [
        (LLADA_CONFIG | {"architectures": ["LLaDAVModel"]}, r"architectures: expected LLaDAModelLM .*'LLaDAVModel'"),
        ({"architectures": ["X"]}, r"found model_type None, is_causal True, architectures \['X'\]"),
        ({"model_type": "llama", "is_causal": False, "sinkscope_family": "sedd"}, "to be one of a2d, .*'sedd'"),
    ],
)
def test_a_config_that_nobody_claims_is_refused(config, fragment):
    with pytest.raises(ModelError, match=fragment):
        recognise(config, "here")


def resized(name, *sizes, **more):
    config = TINY[name].config
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    if name in ("llada", "mmada"):
        keys = ("d_model", "mlp_hidden_size", "n_layers", "n_heads", "n_kv_heads")
    return config | dict(zip(keys, sizes, strict=True)) | more


PUBLISHED_CONFIGS = {
    "llada": resized("llada", 4096, 12288, 32, 32, 32, embedding_size=126464, vocab_size=126464, mask_token_id=126336),
    "mmada": resized("mmada", 4096, 12288, 32, 32, 32, embedding_size=134656, vocab_size=134656, mask_token_id=126336),
    "dream": resized("dream", 3584, 18944, 28, 28, 4, vocab_size=152064, mask_token_id=151666),
    "sdar": resized("sdar", 2560, 9728, 36, 32, 8, head_dim=128, vocab_size=151936, mask_token_id=151669),
    "llama": resized("llama", 4096, 14336, 32, 32, 8, vocab_size=128256),
}


@pytest.mark.parametrize("name", KINDS)
def test_parameters_of_the_published_checkpoints(name):
    """On the meta device: no number of them is ever allocated."""
    config, family = PUBLISHED_CONFIGS[name], KINDS[name]
    found = recognise(config, "here")
    converted = convert_config(config, found, "here")
    network = on_meta(*Plan(Path("here"), config, found, None, converted).network())
    assert sum(parameter.numel() for parameter in network.parameters()) == family.shapes[0].parameters
    assert (type(network).__name__ == "FullPrecisionLlama") == (name in ("llada", "mmada"))


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_as_published_passes_every_check(name, tmp_path):
    checks = check_model(load_tiny(name, tmp_path))
    assert [check for check in checks if not check.passed] == []
    found = {check.name: check.found for check in checks}
    stored = len(TINY[name].shapes)
    renamed = stored if name in ("llada", "mmada") else 0
    assert found["every stored tensor is used, none is missing"] == (
        f"{stored} stored in 1 files, {stored} parameters, {renamed} under another name"
    )
    assert ("llama3" in found["rotation frequencies recomputed"]) == (name == "llama")


def test_what_sdars_config_does_not_name_is_what_its_published_code_takes():
    """The hub's config.json has neither the length of a block nor the mask token; the mask is compared with the
    tokenizer's.
    """
    bare = {
        key: value for key, value in PUBLISHED_CONFIGS["sdar"].items() if key not in ("block_size", "mask_token_id")
    }
    converted = convert_config(completed(bare, SDAR), SDAR, "here")
    assert (converted.fields["block_size"], converted.mask_id) == (4, 151669)
    converted = convert_config(completed(PUBLISHED_CONFIGS["sdar"] | {"block_size": 16}, SDAR), SDAR, "here")
    assert converted.fields["block_size"] == 16
    assert completed(LLADA_CONFIG, LLADA) == LLADA_CONFIG


CHAT = [
    {"role": "user", "content": " w1 w2 "},
    {"role": "assistant", "content": "w3"},
    {"role": "user", "content": "w4"},
]


@pytest.mark.parametrize(("name", "newlines"), [("llada", "\n\n"), ("mmada", "\n")])
def test_a_conversation_in_the_published_form(name, newlines, tmp_path):
    save_llada_tokenizer(save_tiny(name, tmp_path), LLADA_ADDED | {62: "assistant"})
    model = sinkscope.load(str(tmp_path))
    turns = [("user", "w1 w2"), ("assistant", "w3"), ("user", "w4")]
    text = "".join(
        f"<|start_header_id|>{role}<|end_header_id|>{newlines}{content}<|eot_id|>" for role, content in turns
    )
    text = f"<|startoftext|>{text}<|start_header_id|>assistant<|end_header_id|>{newlines}"
    assert (
        model.tokenizer.apply_chat_template(
            CHAT, chat_template=model.family.chat_template, tokenize=False, add_generation_prompt=True
        )
        == text
    )
    assert model.chat([{"role": "w7", "content": "w1 w2"}]) == [56, 58, 7, 59, 1, 2, 61, 58, 62, 59]


def test_a_base_model_has_no_conversation(tmp_path):
    added = {56: "<|startoftext|>", 57: "<|endoftext|>", 60: "<|mdm_mask|>"}
    save_llada_tokenizer(save_tiny("llada", tmp_path), added)
    with pytest.raises(
        ModelError,
        match=r"no chat template; pass .* it lacks <\|start_header_id\|>, <\|end_header_id\|>, <\|eot_id\|>: "
        "this is a base",
    ):
        sinkscope.load(str(tmp_path)).chat(CHAT)


@torch.no_grad()
def test_a_causal_qwen2_with_tied_embeddings(tmp_path):
    """One table for both ends, biases on queries, keys and values, as in Qwen2.5-0.5B."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 59, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "eos_token_id": 57}
    config = Qwen2Config(**sizes, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True)
    torch.manual_seed(0)
    network = Qwen2ForCausalLM(config).eval()
    for parameter in network.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    network.save_pretrained(tmp_path)
    model = sinkscope.load(str(save_llama_tokenizer(tmp_path)))
    tokens = torch.tensor([[3, 4, 5, 6, 7]])
    assert_close(model.network(tokens).logits, network(tokens).logits, terms=terms_of(network, 5))
    assert model.family is LLAMA
    assert [check for check in check_model(model) if not check.passed] == []
