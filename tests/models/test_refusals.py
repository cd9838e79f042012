"""Folders, weights and tokenizers that contradict each other or their config.json: each is refused in one line."""

import json
import re
import shutil

import pytest
import torch
from damage import CONFIG, WEIGHTS, configure, refusal, reweigh, shard
from tiny import EOS, TINY, save_tiny
from tiny_tokenizers import LLADA_ADDED, SAVE, save_dream_tokenizer, save_llada_tokenizer, save_words

import sinkscope
from sinkscope.errors import CallError

INDEX = f"{WEIGHTS}.index.json"
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("./nowhere", "no model './nowhere': .*lab-diffusion.*existing folder or .gguf file, or a hub id owner/name"),
        ("https://huggingface.co/GSAI-ML/LLaDA-8B-Base", "did you mean GSAI-ML/LLaDA-8B-Base"),
        ("Lab-Shifted//", "did you mean lab-shifted"),
    ],
)
def test_a_name_that_is_nothing(name, says):
    assert re.search(says, refusal(name, CallError))


def test_a_hub_id_offline_is_refused_in_the_words_of_its_library():
    message = refusal("sinkscope-tests/no-such-model")
    assert message.startswith("sinkscope-tests/no-such-model: no such folder here, and it cannot be fetched: ")
    assert "offline" in message.lower()


def _write(name, text):
    return lambda folder: (folder / name).write_text(text)


def _index(**changes):
    def change(folder):
        shard(folder)
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"] = {k: v for k, v in (index["weight_map"] | changes).items() if v is not None}
        (folder / INDEX).write_text(json.dumps(index))

    return change


def _two_sets(folder):
    shutil.copy(folder / WEIGHTS, folder / "kept")
    shard(folder)
    (folder / "kept").rename(folder / WEIGHTS)


def _twice(folder):
    shard(folder)
    shutil.copy(folder / "model-00001.safetensors", folder / "model-00002.safetensors")


def _tensors(change):
    return lambda folder: reweigh(folder, change)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "expected config.json in it, found chat_template.jinja"),
        (_write(CONFIG, '{"model_type": '), "config.json: expected JSON"),
        (lambda folder: (folder / WEIGHTS).unlink(), f"expected weights in {WEIGHTS}, found chat_template.jinja"),
        (
            lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
            "is a pickle, which can run code: conv",
        ),
        (_two_sets, f"two sets of weights, {WEIGHTS} and those of {INDEX}"),
        (_twice, "expected once, found it in"),
        (_index(**{QUERY: "../elsewhere.safetensors"}), r"of this folder, found \['../elsewhere.safetensors'\]"),
        (_index(**{QUERY: "model-00003.safetensors"}), "expected weights in model-00003.safetensors"),
        (_write(WEIGHTS, "version https://git-lfs.github.com/spec/v1\nsize 9\n"), "found damage .*git lfs pull"),
        (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100]), "whole safetensors"),
        (_tensors(lambda held: held.pop(QUERY)), rf"exactly the weights of llama .* found 1 missing: {QUERY} \("),
        (_tensors(lambda held: held.update(extra=torch.ones(3))), r"1 unused: extra \(3,\) in model.safetensors"),
        (
            _tensors(lambda held: held.update({"model.norm.weight": torch.ones(41)})),
            r"1 of another shape: model.norm.weight \(41,\) instead of \(40,\)",
        ),
        (
            _tensors(lambda held: held.update({"model.norm.weight": torch.ones(40, dtype=torch.int8)})),
            "model.norm.weight: expected F32, BF16, F16, found I8; quantised weights are not read",
        ),
        (
            _tensors(lambda held: held[QUERY].view(-1).__setitem__(0, float("nan"))),
            f"{WEIGHTS}: {QUERY}: expected finite numbers in float32, found NaN",
        ),
        (lambda folder: configure(folder, num_hidden_layers=2), r"9 unused: model\.layers\.2\."),
        (lambda folder: configure(folder, mask_token_id=3), "mask_token: expected token 3, as mask_token_id in config"),
        (lambda folder: configure(folder, mask_token_id=None), "mask_token_id: expected it or mask_token in"),
        (lambda folder: configure(folder, quantization_config={"load_in_8bit": True}), "quantization_config"),
        (
            lambda folder: configure(folder, model_type="mamba"),
            "expected a causal model of transformers, model_type .*Dream.*found model_type 'mamba'",
        ),
        (lambda folder: (folder / "tokenizer.json").unlink(), "found no tokenizer that loads"),
    ],
)
def test_a_damaged_folder(folder, damage, says):
    damage(folder)
    message = refusal(folder)
    assert re.search(says, message), message
    assert str(folder) in message


def test_weights_beyond_a_dtype_are_refused_in_it(folder):
    """Attention of CPUs turns an infinite key into a finite output."""
    reweigh(folder, lambda held: held[QUERY].view(-1).__setitem__(0, 1e30))
    assert sinkscope.load(folder)
    assert f"{QUERY}: expected finite numbers in float16, found NaN or infinite ones" in refusal(
        folder, dtype="float16"
    )


def test_a_call_that_does_not_fit(folder):
    assert "is a file; expected a folder" in refusal(folder / CONFIG, CallError)
    assert "device 'abacus' cannot be used here" in refusal(folder, CallError, device="abacus")
    assert "expected float32, bfloat16 or float16, found 'float99'" in refusal(folder, CallError, dtype="float99")
    configure(folder, dtype="int8")
    assert "expected float32, bfloat16 or float16, found 'int8'" in refusal(folder, CallError)


@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "Qwen2Tokenizer", None])
def test_a_tokenizer_file_is_read_as_it_stands(kind, tmp_path):
    """transformers' classes would put byte pairs or their own spaces in the place of the words."""
    folder = save_words(save_tiny("llama", tmp_path), {57: "<|end|>"}, tokenizer_class=kind, eos_token="<|end|>")
    model = sinkscope.load(folder)
    assert model.encode("w3 w5 w9") == [3, 5, 9] and model.decode([3, 5, 9]) == "w3 w5 w9"


def _saved(name, save, *arguments, **options):
    return lambda folder: save(save_tiny(name, folder), *arguments, **options)


CODE = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            _saved("llada", save_llada_tokenizer, {**LLADA_ADDED, 60: "<|other|>", 62: "<|mdm_mask|>"}),
            r"mask_token: expected token 60, .* found '<\|mdm_mask\|>', token 62",
        ),
        (
            _saved("llada", save_llada_tokenizer, {**LLADA_ADDED, 60: "<|other|>"}),
            r"found none \(its token 60 is '<\|other\|>'\)",
        ),
        (
            _saved("dream", save_dream_tokenizer, {57: "<|endoftext|>", 58: "<|im_start|>", 60: "<|mask|>"}),
            r"tokenizer_config.json: expected '<\|mask\|>' to be token 60, found 59",
        ),
        (
            _saved("llama", save_words, {57: "<|end|>", 70: "<|eot|>"}, eos_token="<|eot|>"),
            r"eos_token: expected one of the 63 tokens of the network, found '<\|eot\|>', which is token 70",
        ),
        (_saved("llada", save_llada_tokenizer, **CODE), "expected PreTrainedTokenizerFast for llada, found 'Own'"),
    ],
)
def test_a_tokenizer_of_another_model(make, says, tmp_path):
    make(tmp_path)
    assert re.search(says, refusal(tmp_path))


def test_text_beyond_the_vocabulary_and_unknown_words(tmp_path):
    added = {57: "<|end|>", 58: "<|eot|>", 70: "w70"}
    template = "{{ messages[0]['content'] }} w70"
    model = sinkscope.load(save_words(save_tiny("llama", tmp_path), added, eos_token="<|eot|>", template=template))
    for call in (
        lambda: model.encode("w3 w70"),
        lambda: model.chat([{"role": "user", "content": "w3"}]),
        lambda: sinkscope.log_likelihood(model, "w3", " w70"),
    ):
        with pytest.raises(
            sinkscope.errors.ModelError, match="63 tokens of the network, found that it makes 'w70' token"
        ):
            call()
    with pytest.raises(CallError, match="does not know 'zzz';"):  # tokenizer.json alone names the unknown token, a word
        model.encode("w0 w3 zzz")
    assert model.encode("w0 w3") == [0, 3]


def test_a_conversation_that_the_template_cannot_write(tmp_path):
    """transformers renders templates in a sandbox: they reach no attribute of Python's own."""
    template = "{{ messages.__class__.__mro__ }}"
    save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template)
    with pytest.raises(CallError, match=r"refuses them .*unsafe"):
        sinkscope.load(tmp_path).chat([{"role": "user", "content": "w3"}])


@pytest.mark.parametrize("name", ["dream", "llama"])
def test_the_code_of_a_folder_is_ignored_for_the_families_we_know(name, tmp_path):
    folder, proof = SAVE[name](save_tiny(name, tmp_path / "model")), tmp_path / "was-run"
    plain = sinkscope.load(folder)
    for file in ("modeling_llada", "modeling_dream", "tokenization_dream", "evil"):
        (folder / f"{file}.py").write_text(f"open({str(proof)!r}, 'w')\nclass Evil: pass\n")
    kinds = ("AutoConfig", "AutoModel", "AutoModelForCausalLM")
    configure(folder, auto_map=dict.fromkeys(kinds, "evil.Evil") | {"AutoTokenizer": ["evil.Evil", "evil.Evil"]})
    (folder / "generation_config.json").write_text('{"custom_generate": "evil"}')
    model = sinkscope.load(folder)
    assert type(model.tokenizer).__module__.startswith("transformers.")
    assert torch.equal(model.network(TINY[name].tokens).logits, plain.network(TINY[name].tokens).logits)
    configure(folder, model_type="rnd1")
    assert "remote code (auto_map), which sinkscope never runs" in refusal(folder)
    assert not proof.exists()
