"""Tokenizers: the file is read unchanged, and an error names the file."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch
from damage import refusal, shard
from tiny import EOS, save_tiny
from tiny_tokenizers import LLADA_ADDED, SAVE, save_llada_tokenizer, save_words
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import sinkscope
from sinkscope.errors import CallError, ModelError
from sinkscope.models import template_process
from sinkscope.models.panics import panics_as_errors


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
    with pytest.raises(CallError, match=r"ids: expected token ids from 0 upwards, below \d+, found 1000000"):
        model.decode([10**6])


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


@pytest.mark.parametrize("name", ["llada", "llama"])
@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("{}", "/tokenizer.json: model: expected an object, found None"),
        ("[]", "/tokenizer.json: expected a JSON object, found a list of 0"),
        ("null", "/tokenizer.json: expected a JSON object, found null"),
        ("{", "/tokenizer.json: expected JSON, found "),
        ('{"model": {}}', ": expected a tokenizer in tokenizer.json and tokenizer_config.json, found none that loads"),
        (
            '{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": [1]}}',
            ": expected a tokenizer in tokenizer.json",
        ),
    ],
)
def test_a_tokenizer_file_that_is_damaged(name, text, fragment, tmp_path):
    folder = SAVE[name](save_tiny(name, tmp_path))
    (folder / "tokenizer.json").write_text(text)
    assert f"{folder}{fragment}" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "text", "fragment"),
    [
        ("vocab.json", "[]", "/vocab.json: expected a JSON object, found a list of 0"),
        ("vocab.json", "{", "/vocab.json: expected JSON, found "),
        ("vocab.json", '{"a": "b"}', "/vocab.json: a: expected the id of a token, found 'b'"),
        ("vocab.json", '{"a": -1}', "/vocab.json: a: expected the id of a token, found -1"),
        (
            "vocab.json",
            "{}",
            ": expected a tokenizer in vocab.json and merges.txt and tokenizer_config.json, found none that loads",
        ),
        ("added_tokens.json", '{"a": "b"}', "/added_tokens.json: a: expected the id of a token, found 'b'"),
        ("merges.txt", "#version: 0.2\nhe\n", "/merges.txt: line 2: expected two pieces, found 'he'"),
        ("merges.txt", "h e x", "/merges.txt: line 1: expected two pieces, found 'h e x'"),
        (
            "merges.txt",
            "q zz",
            ": expected a tokenizer in vocab.json and merges.txt and tokenizer_config.json, found none that loads",
        ),
    ],
)
def test_a_table_of_byte_pairs_that_is_damaged(file, text, fragment, tmp_path):
    folder = SAVE["dream"](save_tiny("dream", tmp_path))
    (folder / file).write_text(text)
    assert f"{folder}{fragment}" in refusal(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [{"Sequence": {"id": "B", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {},
            }
        },
    ],
)
def test_a_tokenizer_in_which_the_library_panics(change, tmp_path, capfd):
    save_words(save_tiny("llama", tmp_path), {})
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(
        ModelError, match=r"expected a tokenizer in tokenizer.json .*\(the tokenizers library cannot use it\)"
    ):
        sinkscope.load(str(tmp_path))
    assert capfd.readouterr() == ("", "")


def test_what_is_printed_beside_a_panic_is_kept(capfd):
    with panics_as_errors():
        os.write(2, b"a warning\n")
    assert capfd.readouterr().err == "a warning\n"
    with pytest.raises(KeyboardInterrupt), panics_as_errors():
        raise KeyboardInterrupt


def test_merges_that_are_no_text(tmp_path):
    folder = SAVE["dream"](save_tiny("dream", tmp_path))
    (folder / "merges.txt").write_bytes(b"\xff\xfe")
    assert f"{folder}/merges.txt: expected text, found something else" in refusal(folder)


@pytest.mark.parametrize("name", ["dream", "llama"])
@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        (
            {"added_tokens_decoder": [1]},
            "/tokenizer_config.json: added_tokens_decoder: expected an object from id to token, found [1]",
        ),
        (
            {"added_tokens_decoder": {"x": {"content": "a"}}},
            "/tokenizer_config.json: added_tokens_decoder: x: expected an id and a token",
        ),
        (
            {"added_tokens_decoder": {"57": {"content": 3}}},
            "/tokenizer_config.json: added_tokens_decoder: 57: expected an id and a token",
        ),
        ({"tokenizer_class": 3}, "/tokenizer_config.json: tokenizer_class: expected the name of a class, found 3"),
        ({"chat_template": 3}, "/tokenizer_config.json: chat_template: expected Jinja as text, found 3"),
        (
            {"chat_template": [1]},
            "/tokenizer_config.json: chat_template: expected templates with name and template as text, found 1",
        ),
        (
            {"chat_template": [{"name": "default"}]},
            "chat_template: expected templates with name and template as text, found {'name': 'd",
        ),
        ({"eos_token": 5}, "tokenizer_config.json, found none that loads (Special token eos_token has to be"),
    ],
)
def test_settings_that_are_damaged(name, settings, fragment, tmp_path):
    folder = SAVE[name](save_tiny(name, tmp_path))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    message = refusal(folder)
    assert fragment in message and str(folder) in message


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


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        (
            {"added_tokens_decoder": {"57": {"content": ""}}},
            "added_tokens_decoder: 57: content: expected the text of a token, found none",
        ),
        (
            {"added_tokens_decoder": {"57": {"content": "<|end|>", "foo": 1}}},
            "added_tokens_decoder: 57: expected the keys __type, content",
        ),
        ({"eos_token": {"content": "<|eot|>", "foo": 1}}, "eos_token: expected the keys __type, content, lstrip, "),
    ],
)
def test_a_token_that_says_what_no_token_says(settings, fragment, tmp_path, capfd):
    """The tokenizers library would print a line and go on."""
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    assert f"{file}: " in refusal(folder) and fragment in refusal(folder)
    assert not any(capfd.readouterr())


def test_a_special_token_that_says_what_no_token_says(tmp_path, capfd):
    file = SAVE["llama"](save_tiny("llama", tmp_path)) / "special_tokens_map.json"
    file.write_text(json.dumps({"eos_token": {"content": "<|eot|>", "foo": 1}}))
    assert f"{file}: eos_token: expected the keys __type, content" in refusal(tmp_path)
    assert not any(capfd.readouterr())


@pytest.mark.parametrize("number", [63, 3])
def test_an_added_token_under_another_id(number, tmp_path):
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    (folder / "added_tokens.json").write_text(json.dumps({"<|end|>": 57}))
    assert sinkscope.load(str(folder)).encode("<|end|>")[-1] == 57
    (folder / "added_tokens.json").write_text(json.dumps({"<|end|>": number}))
    assert "/added_tokens.json: expected '<|end|>' to be token 57, as tokenizer.json and" in refusal(folder)


OF_A_MODEL = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
]
OF_A_MODEL += ["added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt", "model.safetensors.index.json"]


def made_of_all_files(folder, name):
    if name in ("vocab.json", "merges.txt"):
        SAVE["dream"](save_tiny("dream", folder))
    else:
        SAVE["llama"](save_tiny("llama", folder))
    if name.endswith("index.json"):
        shard(folder)
    elif not (folder / name).exists():
        (folder / name).write_text("{}")
    sinkscope.load(str(folder))
    return folder / name


@pytest.mark.parametrize("name", OF_A_MODEL)
def test_a_byte_order_mark(name, tmp_path):
    """transformers does not know it, and would say that the file holds something else."""
    file = made_of_all_files(tmp_path, name)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert f"{file}: expected text without a byte order mark, found one in front; save it as plain UTF-8" in refusal(
        tmp_path
    )


@pytest.mark.parametrize("name", [*OF_A_MODEL, "model.safetensors"])
def test_a_pointer_of_git_lfs(name, tmp_path):
    file = made_of_all_files(tmp_path, name)
    file.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
    assert (
        f"{file}: expected a file of a model, found a pointer of Git LFS, whose content was not fetched; run"
        in refusal(tmp_path)
    )


def test_a_pointer_that_nobody_reads_is_left_alone(tmp_path):
    (SAVE["llama"](save_tiny("llama", tmp_path)) / "tokenizer.model").write_text(
        "version https://git-lfs.github.com/spec/v1\n"
    )
    sinkscope.load(str(tmp_path))


def test_pieces_that_no_package_here_reads(tmp_path, monkeypatch):
    folder = SAVE["llama"](save_tiny("llama", tmp_path))
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")
    for package in ("sentencepiece", "protobuf"):
        monkeypatch.setattr(f"transformers.utils.is_{package}_available", lambda: False)
    assert (
        "expected tokenizer.json, found tokenizer.model, which cannot be read without sentencepiece and protobuf; add"
        in refusal(folder)
    )


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


def test_an_unknown_token_that_is_none_of_the_tokens(tmp_path):
    file = SAVE["llama"](save_tiny("llama", tmp_path)) / "tokenizer.json"
    core = json.loads(file.read_text())
    core["model"]["unk_token"] = "<nothing>"
    file.write_text(json.dumps(core))
    model = sinkscope.load(str(tmp_path))
    assert model.encode("w3") == [3]
    with pytest.raises(
        ModelError,
        match=r"expected a tokenizer for any text, found one that fails at 'w3 zzz' \(WordLevel error: Missing",
    ):
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

LIMITS = "chat_template of its tokenizer: expected a prompt within 2 seconds, 512 MB and 10,000,000 letters, found none"


@pytest.mark.parametrize(
    ("template", "kind", "message"),
    [
        ("w1 \n{% for %}", ModelError, "chat_template of its tokenizer: expected Jinja, found a mistake in line 2"),
        (
            "{{ raise_exception('roles must alternate') }}",
            CallError,
            r"messages: .* found one that it refuses \(roles must alternate\)",
        ),
        (
            "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
            CallError,
            r"found one that it refuses \(maximum recursion depth",
        ),
        ("{{ 'a' * 10**15 }}", ModelError, LIMITS),
        ("{% set x = 9 ** (9 ** 9) %}", ModelError, LIMITS),
        ("{{ 'a' * 1000000000000000 }}", ModelError, LIMITS),
        ("{% set n = 4000000000 %}{{ 'a' * n }}", ModelError, LIMITS),
        ("{{ 'a' * 20000000 }}", ModelError, LIMITS),
        (
            "{% set all = namespace(text='a') %}{% for i in range(99) %}{% set all.text = all.text ~ all.text %}{% endfor %}",
            ModelError,
            LIMITS,
        ),
        (
            "{% set a = namespace(l=[], r=[]) %}{% for i in range(40) %}{% set a.l = [a.l, a.l] %}{% set a.r = [a.r, a.r] %}{% endfor %}"
            "{{ a.l == a.r }}",
            ModelError,
            LIMITS,
        ),
        (
            "{{ messages[0]['content'] + 1 }}",
            CallError,
            "messages: expected a conversation that the chat template of .* can write",
        ),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            ModelError,
            LIMITS,
        ),
        (
            "hello",
            ModelError,
            "chat_template of its tokenizer: expected it to write the question, found a prompt without it, 'hello'",
        ),
        (
            "{{ ['w1', 'w2'] | random }}",
            ModelError,
            "expected the same prompt each time, found one that draws at random",
        ),
    ],
)
def test_a_conversation_that_the_template_cannot_write(template, kind, message, tmp_path):
    save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template)
    with pytest.raises(kind, match=message):
        sinkscope.load(str(tmp_path)).chat([{"role": "user", "content": "w3"}])


def test_a_template_may_compute_and_the_next_one_is_rendered_after_one_that_was_ended(tmp_path):
    long = "{% set n = messages[0]['content'] | length %}{% set x = 9 ** (n * 10 ** 8) %}"
    template = f"{{% if messages[0]['content'] == 'w1' %}}{long}{{% endif %}}{{{{ messages[0]['content'] }}}} w{{{{ 2 ** 2 }}}}"
    save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template)
    model = sinkscope.load(str(tmp_path))
    ask = [{"role": "user", "content": "w3"}]
    assert model.chat(ask) == model.encode("w3 w4")
    with pytest.raises(ModelError, match=LIMITS):
        model.chat([{"role": "user", "content": "w1"}])
    assert model.chat(ask) == model.encode("w3 w4")
    template_process._own._process.kill()  # as a system without memory does
    template_process._own._process.wait()
    assert model.chat(ask) == model.encode("w3 w4")
    child = os.fork()
    if not child:  # a forked process has a process of its own for templates, and does not read the answers of this one
        os._exit(0 if model.chat(ask) == model.encode("w3 w4") else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert model.chat(ask) == model.encode("w3 w4")


def test_messages_are_plain_data(tmp_path):
    save_words(
        save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template="{{ messages[0]['content'] }}"
    )
    with pytest.raises(CallError, match="messages: expected texts, numbers, lists and objects, found something else"):
        sinkscope.load(str(tmp_path)).chat([{"role": "user", "content": "w3", "more": object()}])


def test_parts_are_for_templates_that_know_them(tmp_path):
    parts = [{"role": "user", "content": [{"type": "text", "text": "w3"}, {"type": "text", "text": "w4"}]}]
    knows, prints = (
        "{% for part in messages[0]['content'] %}{{ part['text'] }} {% endfor %}",
        "{{ messages[0]['content'] }}",
    )
    save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=knows)
    model = sinkscope.load(str(tmp_path))
    assert model.chat(parts) == model.encode("w3 w4")
    for content in ([], ["w3"], [{"text": "w3"}]):
        with pytest.raises(CallError, match="expected messages as a list of"):
            model.chat([{"role": "user", "content": content}])
    model.tokenizer.chat_template = prints
    with pytest.raises(
        CallError, match=r"expected content as text, which is what the chat template of .* writes, found parts"
    ):
        model.chat(parts)


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


@pytest.mark.parametrize(
    ("name", "found", "message"),
    [
        ("additional_special_tokens", ["w1", 5], "a list of texts, found 5"),
        ("additional_special_tokens", "w1", "a list of texts, found 'w1'"),
        ("extra_special_tokens", {"w1": 3}, "a list of texts, found 3"),
        ("bos_token", 5, "the text of a token, found 5"),
        ("bos_token", {"content": 5}, r"the text of a token, found \{'content': 5\}"),
        ("unk_token", ["w1"], r"the text of a token, found \['w1'\]"),
    ],
)
def test_special_tokens_that_are_no_texts_are_refused_by_their_file(tmp_path, name, found, message):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    (folder / "special_tokens_map.json").write_text(json.dumps({name: found}))
    with pytest.raises(ModelError, match=f"special_tokens_map.json: {name}: expected {message}; fetch the file again"):
        sinkscope.load(str(folder))


def test_special_tokens_may_be_texts_or_objects(tmp_path):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    special = {
        "eos_token": {"content": "<|end|>"},
        "bos_token": None,
        "additional_special_tokens": ["w1", "w2"],
        "extra_special_tokens": None,
    }
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    assert sinkscope.load(str(folder)).encode("w3") == [3]


def test_a_tokenizer_that_draws_at_random_is_refused(tmp_path):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    core = json.loads((folder / "tokenizer.json").read_text())
    core["model"]["dropout"] = 0.5
    (folder / "tokenizer.json").write_text(json.dumps(core))
    with pytest.raises(
        ModelError, match=r"tokenizer.json: model: dropout: expected null or 0, found 0\.5, with which a text has other"
    ):
        sinkscope.load(str(folder))


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize(
    ("pattern", "content"), [({"String": "w"}, "ww"), ({"String": "ww"}, "wwww"), ({"Regex": ""}, "w")]
)
def test_a_tokenizer_that_makes_a_text_endless_is_refused(tmp_path, part, pattern, content):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    core = json.loads((folder / "tokenizer.json").read_text())
    double = {"type": "Replace", "pattern": pattern, "content": content * (2 if pattern == {"Regex": ""} else 1)}
    for count, refused in ((6, False), (60, True)):
        core[part] = {"type": "Sequence", f"{part}s": [{"type": "Sequence", f"{part}s": [double] * count}]}
        (folder / "tokenizer.json").write_text(json.dumps(core))
        expected = rf"tokenizer.json: {part}: expected replacements that make a text at most 1,000 times as long, found some for 1.15e\+18 t"
        if refused:
            with pytest.raises(ModelError, match=expected):
                sinkscope.load(str(folder))
        else:
            sinkscope.load(str(folder))


@pytest.mark.parametrize(
    ("part", "rules"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}),
        (
            "normalizer",
            {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"Regex": "(?=z)"}, "content": "z"}] * 40,
            },
        ),
        (
            "pre_tokenizer",
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
                ]
                * 40,
            },
        ),
    ],
    ids=["bytes", "empty matches", "pieces"],
)
def test_a_tokenizer_whose_rules_double_a_text_unseen_is_tried_first(tmp_path, part, rules):
    folder = save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>")
    core = json.loads((folder / "tokenizer.json").read_text())
    core[part] = rules
    (folder / "tokenizer.json").write_text(json.dumps(core))
    expected = (
        r"tokenizer\.json: expected a tokenizer that reads 1,0\d\d letters within 2 seconds and 1024 MB, found none"
    )
    with pytest.raises(ModelError, match=expected):
        sinkscope.load(str(folder))


def test_a_list_of_no_templates_is_none(tmp_path):
    model = sinkscope.load(
        str(save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=[]))
    )
    with pytest.raises(ModelError, match=r"its tokenizer has no chat template; pass the prompt as text"):
        model.chat([{"role": "user", "content": "w3"}])


def test_templates_without_a_default(tmp_path):
    template = [{"name": name, "template": "w1 w2"} for name in ("rag", "tool_use")]
    model = sinkscope.load(
        str(save_words(save_tiny("llama", tmp_path), {EOS: "<|end|>"}, eos_token="<|end|>", template=template))
    )
    with pytest.raises(
        ModelError,
        match=r"expected a chat template named 'default' in its tokenizer, found 'rag', 'tool_use'; name one",
    ):
        model.chat([{"role": "user", "content": "w3"}])


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/tool.jinja"])
def test_a_template_that_is_no_text(name, tmp_path):
    file = SAVE["llama"](save_tiny("llama", tmp_path)) / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"\xff\xfe")
    assert f"{file}: expected UTF-8 text, found byte 0xff at 0; save it as UTF-8 or fetch it again" in refusal(tmp_path)


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask_id": 10**9}, "card: mask_id: expected one of the 456 tokens of its vocabulary, found 1000000000"),
        ({"mask_id": "2"}, "card: mask_id: expected"),
        ({"mask_id": None}, "card: mask_id: expected the mask token of a llada, found None"),
        ({"eos_id": "x"}, "card: eos_id: expected"),
        ({"eos_ids": "x"}, "card: eos_ids: expected"),
        ({"max_positions": "x"}, "card: max_positions: expected a whole number, found 'x'"),
        ({"name": 5}, "card: name: expected text, found 5"),
        ({"layers": 9}, "card: layers: expected [0-9]+, as the network has it, found 9"),
        ({"family": "dream"}, "card: family: expected 'llada', as the family has it, found 'dream'"),
    ],
)
def test_a_card_of_another_network_is_refused(change, message, diffusion):
    with pytest.raises(CallError, match=message):
        other = dataclasses.replace(diffusion, card=dataclasses.replace(diffusion.card, **change))
        sinkscope.generate(other, "Q: Tom", length=4, steps=4, block=4)
