"""Tokenizers: the file is read unchanged, and an error names the file."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from damage import refusal
from tiny import EOS, save_tiny
from tiny_tokenizers import LLADA_ADDED, SAVE, save_llada_tokenizer, save_words
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import sinkscope
from sinkscope.errors import CallError, ModelError


@pytest.fixture
def qwen2(tmp_path):
    """A causal Qwen2 without a tokenizer."""
    sizes = {
        "vocab_size": 63,
        "hidden_size": 48,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
    }
    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**sizes, num_key_value_heads=2, eos_token_id=57)).save_pretrained(tmp_path)
    return tmp_path


CLASSES = [
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "Qwen2Tokenizer",
    "GPT2Tokenizer",
    None,
]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_tokenizer_file_is_read_as_it_stands(name, kind, request, tmp_path):
    """transformers' classes would put byte pairs or their own spaces in the place of the words."""
    folder = request.getfixturevalue("qwen2") if name == "qwen2" else save_tiny("llama", tmp_path)
    save_words(folder, {57: "<|end|>"}, tokenizer_class=kind, eos_token="<|end|>")
    model = sinkscope.load(str(folder))
    text = "w3 w5 w9"
    plain = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    assert model.encode(text) == plain(text).input_ids == [3, 5, 9]
    assert model.decode([3, 5, 9]) == "w3 w5 w9"


@pytest.mark.parametrize(
    ("name", "text", "ids"), [("llada", "w3 w5", [3, 5]), ("mmada", "w3 w5", [3, 5]), ("dream", "hehe", [56, 56])]
)
def test_the_other_families_read_theirs(name, text, ids, tmp_path):
    model = sinkscope.load(str(SAVE[name](save_tiny(name, tmp_path))))
    assert model.encode(text) == ids


def test_a_dream_saved_as_one_file_is_read_as_it_stands(tmp_path):
    save_llada_tokenizer(
        save_tiny("dream", tmp_path), LLADA_ADDED, tokenizer_class="Qwen2Tokenizer", mask_token="<|mdm_mask|>"
    )
    assert sinkscope.load(str(tmp_path)).encode("w3 w5 w9") == [3, 5, 9]


# Tokens that the network does not have


@pytest.fixture
def foreign(tmp_path):
    """A Llama of 63 tokens with a tokenizer that has a 70th."""
    folder = save_words(
        save_tiny("llama", tmp_path),
        {57: "<|end|>", 58: "<|eot|>", 70: "w70"},
        eos_token="<|eot|>",
        template="{{ messages[0]['content'] }} w70",
    )
    return sinkscope.load(str(folder))


def test_text_beyond_the_vocabulary(foreign):
    message = "expected a tokenizer with the 63 tokens of the network, found that it makes 'w70' token 70; its tokenizer belongs"
    for call in (
        lambda: foreign.encode("w3 w70"),
        lambda: foreign.chat([{"role": "user", "content": "w3"}]),
        lambda: sinkscope.generate(foreign, "w3 w70", length=2),
        lambda: sinkscope.log_likelihood(foreign, "w3 w70", " w4"),
        lambda: sinkscope.log_likelihood(foreign, "w3", " w70"),
        lambda: sinkscope.log_likelihood(foreign, [3], "w70"),
    ):
        with pytest.raises(ModelError, match=message):
            call()


def test_an_end_beyond_the_vocabulary(tmp_path):
    """Batches are padded with it."""
    save_words(save_tiny("llama", tmp_path), {57: "<|end|>", 70: "<|eot|>"}, eos_token="<|eot|>")
    expected = "tokenizer_config.json: eos_token: expected one of the 63 tokens of the network, found '<|eot|>', which is token 70"
    assert expected in refusal(tmp_path)


# Files that are damaged


def test_a_stock_tokenizer_that_needs_code_of_the_folder(tmp_path):
    save_words(
        save_tiny("llama", tmp_path),
        {57: "<|end|>"},
        tokenizer_class="Own",
        auto_map={"AutoTokenizer": ["own.Own", None]},
    )
    assert "tokenizer_config.json: tokenizer_class: expected PreTrainedTokenizerFast for llama, found 'Own'" in refusal(
        tmp_path
    )


@pytest.mark.parametrize("number", [63, 3])
def test_an_added_token_under_another_id(number, tmp_path):
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    (folder / "added_tokens.json").write_text(json.dumps({"<|end|>": 57}))
    assert sinkscope.load(str(folder)).encode("<|end|>")[-1] == 57
    (folder / "added_tokens.json").write_text(json.dumps({"<|end|>": number}))
    assert f"/added_tokens.json: expected '<|end|>' to be token {number}, found 57" in refusal(folder)


# Words that it does not know


def test_an_unknown_token_that_only_tokenizer_json_names(tmp_path):
    model = sinkscope.load(str(SAVE["llama"](save_tiny("llama", tmp_path))))
    assert model.tokenizer.unk_token is None and model.encode("w3 w0") == [3, 0]
    calls = (
        lambda: model.encode("zzz w3"),
        lambda: model.chat([{"role": "user", "content": "zzz"}]),
        lambda: sinkscope.log_likelihood(model, [3], "zzz"),
    )
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    for call in calls:
        with pytest.raises(CallError, match="does not know 'zzz'"):
            call()


def test_an_unknown_token_that_also_begins_texts(tmp_path):
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    core = json.loads((folder / "tokenizer.json").read_text())
    begin = {"id": "w0", "ids": [0], "tokens": ["w0"]}
    single = [{"SpecialToken": {"id": "w0", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}]
    core["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {"w0": begin},
    }
    (folder / "tokenizer.json").write_text(json.dumps(core))
    model = sinkscope.load(str(folder))
    assert model.encode("w3") == [0, 3]
    with pytest.raises(CallError, match="does not know 'zzz';"):
        model.encode("w3 zzz")


def test_nothing_is_said_of_a_length_that_the_tokenizer_was_made_for(tmp_path):
    """The canvas is compared with the network's; the tokenizer's warning would be untrue."""
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    save_words(
        folder,
        {57: "<|end|>", 58: "<|eot|>"},
        eos_token="<|eot|>",
        unk_token="w0",
        model_max_length=2,
        template="{{ messages }} w1 w2",
    )
    code = f"import sinkscope\nm = sinkscope.load({str(folder)!r})\nprint(m.encode('w1 w2 w3'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")


# Conversations


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("w1 \n{% for %}", "messages: the chat template of .* refuses them"),
        (
            "{{ raise_exception('roles must alternate') }}",
            r"refuses them \(roles must alternate\); pass the prompt as text",
        ),
        ("{{ messages.__class__.__mro__ }}", "refuses them .*unsafe"),
    ],
)
def test_a_conversation_that_the_template_cannot_write(template, message, tmp_path):
    """transformers renders templates in a sandbox: they reach no attribute of Python's own."""
    save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template)
    with pytest.raises(CallError, match=message):
        sinkscope.load(str(tmp_path)).chat([{"role": "user", "content": "w3"}])


def test_a_template_may_leave_out_spaces_and_earlier_turns(tmp_path):
    template = "{{ messages[-1]['content'] | trim }}"
    model = sinkscope.load(
        str(save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template))
    )
    turns = [
        {"role": "user", "content": "w9"},
        {"role": "assistant", "content": "w8"},
        {"role": "user", "content": " w3\nw4 "},
    ]
    assert model.chat(turns) == model.encode("w3\nw4")


def test_a_tokenizer_that_draws_at_random_is_refused(tmp_path):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    core = json.loads((folder / "tokenizer.json").read_text())
    core["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(core))
    with pytest.raises(ModelError, match=r"tokenizer.json: model: dropout: expected null or 0, found 0\.5"):
        sinkscope.load(str(folder))


@pytest.mark.parametrize(("name", "key"), [("llada", "max_sequence_length"), ("dream", "max_position_embeddings")])
def test_a_canvas_is_refused_with_the_key_that_says_so(name, key, tmp_path):
    model = sinkscope.load(str(SAVE[name](save_tiny(name, tmp_path))))
    assert model == dataclasses.replace(model, positions_key=key)
    for call in (
        lambda: sinkscope.generate(model, [3], length=128),
        lambda: sinkscope.log_likelihood(model, [3] * 100, [4] * 100),
    ):
        with pytest.raises(CallError, match=rf"was made for 128 \({key} in its config.json\)"):
            call()
