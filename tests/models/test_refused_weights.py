"""Weights and tokenizers that contradict their config.json, and code in a folder, which is never run."""

import importlib.util
import json

import pytest
import torch
from closeness import assert_close
from damage import refusal
from safetensors.torch import load_file, save_file
from tiny import TINY, save_tiny, weights
from tiny_tokenizers import LLADA_ADDED, SAVE, save_dream_tokenizer, save_llada_tokenizer

import sinkscope
from sinkscope.errors import CallError

INDEX = "model.safetensors.index.json"
SHARDS = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
QUERY = "model.transformer.blocks.1.q_proj.weight"


@pytest.fixture
def sharded(tmp_path):
    return SAVE["llada"](save_tiny("llada", tmp_path / "model", shards=3))


def reweigh(file, change):
    stored = load_file(file)
    change(stored)
    save_file(stored, file, metadata={"format": "pt"})


def holder(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"][QUERY]


def test_weights_that_are_not_finite_in_their_dtype(sharded):
    """Attention of CPUs turns a NaN in a key into a finite output."""
    file = holder(sharded)
    reweigh(sharded / file, lambda stored: stored[QUERY].view(-1).__setitem__(0, 1e30))
    assert sinkscope.load(sharded)
    expected = f"{file}: model.layers.1.self_attn.q_proj.weight: expected finite numbers in "
    assert f"{expected}float16, found NaN or infinite ones" in refusal(sharded, dtype="float16")
    reweigh(sharded / file, lambda stored: stored[QUERY].view(-1).__setitem__(0, float("nan")))
    assert f"{expected}float32" in refusal(sharded)


def test_a_tensor_that_is_missing_everywhere(sharded):
    file = holder(sharded)
    reweigh(sharded / file, lambda stored: stored.pop(QUERY))
    assert f"{INDEX}: {QUERY}: expected in the file None, which holds it, found {file}" in refusal(sharded)
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"][QUERY]
    (sharded / INDEX).write_text(json.dumps(index))
    assert (
        f"expected exactly the weights of llada in the shapes of config.json, found 1 missing: {QUERY} (48, 48)"
        in refusal(sharded)
    )


def test_an_index_entry_that_is_missing(sharded):
    index = json.loads((sharded / INDEX).read_text())
    file = index["weight_map"].pop(QUERY)
    (sharded / INDEX).write_text(json.dumps(index))
    assert f"{INDEX}: {QUERY}: expected in the file {file}, which holds it, found None" in refusal(sharded)


def test_an_index_that_names_another_shard(sharded):
    index = json.loads((sharded / INDEX).read_text())
    file = index["weight_map"][QUERY]
    other = next(one for one in SHARDS if one != file)
    index["weight_map"][QUERY] = other
    (sharded / INDEX).write_text(json.dumps(index))
    assert f"{QUERY}: expected in the file {file}, which holds it, found {other}" in refusal(sharded)


@pytest.mark.parametrize("name", ["../elsewhere.safetensors", "/etc/weights.safetensors", "pytorch_model.bin"])
def test_an_index_that_leads_out_of_the_folder(sharded, name):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"][QUERY] = name
    (sharded / INDEX).write_text(json.dumps(index))
    assert f"weight_map: expected safetensors files of this folder, found [{name!r}]" in refusal(sharded)


def test_a_tensor_that_is_there_twice(sharded):
    file = holder(sharded)
    other = next(one for one in SHARDS if one != file)
    reweigh(sharded / other, lambda stored: stored.update({QUERY: torch.ones(48, 48)}))
    assert f"{QUERY}: expected once, found it in" in refusal(sharded)


def test_quantised_tensors(sharded):
    file = holder(sharded)
    reweigh(sharded / file, lambda stored: stored.update({QUERY: torch.ones(48, 48, dtype=torch.int8)}))
    assert f"{sharded / file}: {QUERY}: expected F32, BF16, F16, found I8; quantised weights are not read" in refusal(
        sharded
    )


def test_files_that_the_index_does_not_name_are_ignored(sharded, tmp_path):
    (sharded / "consolidated.safetensors").write_bytes(b"nothing")
    (sharded / "pytorch_model.bin").write_bytes(b"nothing")
    assert sinkscope.load(str(sharded)).tensors.files == tuple(SHARDS)


def test_an_adapter_is_no_model(sharded):
    (sharded / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    assert "expected whole weights, found adapter_config.json; merge the adapter" in refusal(sharded)


def test_both_names_of_one_tensor(tmp_path):
    """A published name and transformers' own for the same parameter."""
    folder = SAVE["llada"](save_tiny("llada", tmp_path))
    drawn = weights(TINY["llada"])
    save_file(drawn | {"model.norm.weight": torch.ones(48)}, folder / "model.safetensors", metadata={"format": "pt"})
    assert "1 unused: m" in refusal(folder)


@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="device_map needs accelerate, which is no dependency"
)
@pytest.mark.parametrize("device_map", ["auto", {"": "cpu"}])
def test_a_device_map_gives_the_same_network(sharded, device_map):
    plain, mapped = (sinkscope.load(str(sharded), dtype="bfloat16", device_map=one) for one in (None, device_map))
    mine, theirs = (
        {**dict(one.network.named_parameters()), **dict(one.network.named_buffers())} for one in (mapped, plain)
    )
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in theirs)
    assert mapped.network.model.rotary_emb.inv_freq.dtype == torch.float32
    tokens = TINY["llada"].tokens
    with torch.no_grad():
        in_fp32 = [one.network.float()(tokens).logits for one in (mapped, plain)]  # bfloat16 would hide too much
    assert_close(*in_fp32, terms=TINY["llada"].terms)


needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="device_map needs accelerate"
)


@needs_accelerate
def test_a_device_map_that_transformers_refuses(sharded, monkeypatch):
    """The message does not blame the weights, which fit."""
    import transformers

    def refuse(*_, **__):
        raise ValueError("no device for lm_head")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "from_pretrained", refuse)
    message = refusal(sharded, CallError, device_map={"model": "cpu"})
    assert "device_map: found {'model': 'cpu'}, which cannot be used (no device for lm_head)" in message


# Tokenizers


def test_a_mask_that_the_tokenizer_has_elsewhere(sharded):
    save_llada_tokenizer(sharded, {**LLADA_ADDED, 60: "<|other|>", 62: "<|mdm_mask|>"})
    assert (
        "as mask_token_id in config.json says, found '<|mdm_mask|>', token 62; one of the two files belongs to another model"
        in refusal(sharded)
    )


def test_a_tokenizer_without_a_mask(sharded):
    save_llada_tokenizer(sharded, {**LLADA_ADDED, 60: "<|other|>"})
    assert (
        "mask_token: expected token 60, as mask_token_id in config.json says, found none (its token 60 is '<|other|>')"
        in refusal(sharded)
    )
    save_llada_tokenizer(sharded, {56: "<|startoftext|>", 57: "<|endoftext|>"})
    assert "found none (it has 58 tokens)" in refusal(sharded)


def test_a_dream_tokenizer_whose_ids_have_moved(tmp_path):
    """A gap in the numbering: transformers would number on without it."""
    folder = save_tiny("dream", tmp_path)
    save_dream_tokenizer(folder, {57: "<|endoftext|>", 58: "<|im_start|>", 60: "<|mask|>"})
    assert "tokenizer_config.json: expected '<|mask|>' to be token 60, found 59" in refusal(folder)


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
def test_a_dream_tokenizer_with_a_file_missing(tmp_path, file):
    folder = save_dream_tokenizer(save_tiny("dream", tmp_path))
    (folder / file).unlink()
    assert "found no tokenizer that loads" in refusal(folder)


# Code in a folder

EVIL = "from pathlib import Path\nPath({path!r}).touch()\nclass Evil: pass\n"


def lay_traps(folder, proof):
    """Code of the folder's own in every place where transformers looks for some."""
    names = (
        "modeling_llada",
        "configuration_llada",
        "modeling_dream",
        "configuration_dream",
        "tokenization_dream",
        "evil",
    )
    for name in names:
        (folder / f"{name}.py").write_text(EVIL.format(path=str(proof)))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(EVIL.format(path=str(proof)))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {
        "AutoConfig": "evil.Evil",
        "AutoModel": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"custom_generate": "evil"}')


@pytest.mark.parametrize("name", ["llada", "mmada", "dream", "llama"])
def test_the_code_of_a_folder_is_ignored_for_the_families_we_know(name, tmp_path):
    folder, proof = SAVE[name](save_tiny(name, tmp_path / "model")), tmp_path / "was-run"
    plain = sinkscope.load(str(folder))
    lay_traps(folder, proof)
    model = sinkscope.load(str(folder))
    assert type(model.network).__module__.startswith(("transformers.models.", "sinkscope.models."))
    assert type(model.tokenizer).__module__.startswith("transformers.")
    assert torch.equal(model.network(TINY[name].tokens).logits, plain.network(TINY[name].tokens).logits)
    assert not proof.exists()
    exec(compile((folder / "evil.py").read_text(), "evil.py", "exec"), {})
    assert proof.exists(), "the code would not have shown that it ran"


@pytest.mark.parametrize("name", ["llada", "mmada", "dream"])
def test_a_tokenizer_that_only_code_of_the_folder_could_run(name, tmp_path):
    folder, proof = save_tiny(name, tmp_path / "model"), tmp_path / "was-run"
    save_llada_tokenizer(folder, tokenizer_class="EvilTokenizer", auto_map={"AutoTokenizer": ["evil.Evil", None]})
    lay_traps(folder, proof)
    message = refusal(folder)
    assert "tokenizer_class: expected PreTrainedTokenizerFast" in message and "'EvilTokenizer'" in message
    assert not proof.exists()


def test_a_network_that_only_code_of_the_folder_could_run(tmp_path):
    folder, proof = SAVE["llada"](save_tiny("llada", tmp_path / "model", model_type="rnd1")), tmp_path / "was-run"
    lay_traps(folder, proof)
    message = refusal(folder)
    assert "found model_type 'rnd1'" in message and "remote code (auto_map), which sinkscope never runs" in message
    assert not proof.exists()
