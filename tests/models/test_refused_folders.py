import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from damage import CONFIG, WEIGHTS, configure, refusal, reweigh, shard

from sinkscope.errors import CallError
from sinkscope.models import BUNDLED, FAMILIES, folders

# What is not there


def test_a_name_that_is_nothing():
    message = refusal("lab-nonsense", CallError)
    for fragment in ("no model 'lab-nonsense'", *BUNDLED, "existing folder", "hub id owner/name"):
        assert fragment in message


@pytest.mark.parametrize("name", ["", "/no/such/folder", "./nowhere", "~/nowhere/at/all", "a/b/c"])
def test_a_folder_that_is_missing(name):
    assert "existing folder" in refusal(name, CallError)


def test_a_hub_id_offline_is_refused_with_the_reason():
    message = refusal("sinkscope-tests/no-such-model")
    assert message.startswith(
        "sinkscope-tests/no-such-model: no such folder here, the cache does not hold it, and HF_HUB_OFFLINE is set"
    )
    assert "fetch it on another machine and pass its folder" in message


def test_a_name_that_no_hub_can_hold():
    assert "no name of a repository" in refusal("white space/model")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("https://huggingface.co/GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Base"),
        ("hf.co/o/n.2/tree/main?x=1", "o/n.2"),
        ("lab-diffusion/", "lab-diffusion"),
        ("Lab-Shifted//", "lab-shifted"),
    ],
)
def test_a_name_with_more_around_it(name, meant):
    assert f"no model {name!r}: did you mean {meant}" in refusal(name, CallError)


def test_a_bundled_model_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(folders, "bundled_folder", lambda name: tmp_path)
    assert "holds no config.json; reinstall sinkscope" in refusal("lab-diffusion")


def test_a_file_is_no_folder(folder):
    assert "is a file; expected a folder" in refusal(folder / CONFIG, CallError)


def test_a_link_to_nothing_is_no_file(tmp_path):
    for name in ("gone", "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(name)
        assert "is a link that leads nowhere; expected a folder" in refusal(tmp_path / "link", CallError)


def test_a_folder_without_a_config(tmp_path):
    assert "expected config.json in it, found an empty folder" in refusal(tmp_path)
    for number in range(9):
        (tmp_path / f"{number}.txt").touch()
    assert "found 0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, 6.txt, 7.txt …" in refusal(tmp_path)


# What is not right


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ('{"model_type": ', "expected JSON"),
        ("[1, 2]", "expected a JSON object, found a list of 2"),
        ("\udcff", "expected UTF-8 text"),
    ],
)
def test_a_config_that_is_no_json(folder, text, fragment):
    (folder / CONFIG).write_bytes(text.encode(errors="surrogateescape"))
    message = refusal(folder)
    assert fragment in message and CONFIG in message


@pytest.mark.parametrize("name", [CONFIG, "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_name_that_stands_twice(folder, name):
    """The last would be taken without a word."""
    content = (folder / name).read_text() if (folder / name).exists() else "{}"
    (folder / name).write_text(
        '{"model_type": 1,' + content.lstrip()[1:].rstrip()[:-1].rstrip() + "," * (content != "{}") + '"model_type": 2}'
    )
    assert f"{folder / name}: expected each name once in an object, found 'model_type' twice" in refusal(folder)


def test_an_unknown_model_type(folder):
    configure(folder, model_type="mamba")
    message = refusal(folder)
    assert re.search(r"expected model_type Dream, (\w+, )*llada, (\w+, )*mmada, (\w+, )*llama or qwen2", message)
    listed = re.search(r"expected model_type (.+?) or qwen2", message)[1].split(", ")
    assert {*listed, "qwen2"} >= {
        name for family in FAMILIES.values() if family.layout is not None for name in family.model_types
    }
    assert "found model_type 'mamba', is_causal False" in message
    assert "remote code" not in message


EVIL = "from pathlib import Path\nPath({path!r}).touch()\nclass Evil: pass\n"


@pytest.mark.parametrize("model_type", ["evil", "llama"])
def test_code_of_a_folder_is_never_run(folder, tmp_path, model_type):
    """A folder that names code of its own in every place where transformers looks for some."""
    proof = tmp_path / "was-run"
    for name in ("modeling_evil", "configuration_evil", "tokenization_evil"):
        (folder / f"{name}.py").write_text(EVIL.format(path=str(proof)))
    auto_map = {
        "AutoConfig": "configuration_evil.Evil",
        "AutoModel": "modeling_evil.Evil",
        "AutoModelForCausalLM": "modeling_evil.Evil",
        "AutoTokenizer": ["tokenization_evil.Evil", None],
    }
    configure(folder, model_type=model_type, auto_map=auto_map)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(tokenizer | {"auto_map": auto_map, "tokenizer_class": "EvilTokenizer"})
    )
    message = refusal(folder)
    assert not proof.exists()
    assert ("names remote code (auto_map), which sinkscope never runs" in message) == (model_type == "evil")
    exec(compile((folder / "modeling_evil.py").read_text(), "modeling_evil.py", "exec"), {})
    assert proof.exists(), "the code would not have shown that it ran"


@pytest.mark.parametrize(
    ("changes", "fragments"),
    [
        (
            {"mask_token_id": 3},
            [
                "tokenizer_config.json: mask_token: expected token 3, as mask_token_id in config.json says",
                "token 2",
                "another model",
            ],
        ),
        ({"mask_token_id": None}, ["mask_token_id: expected a token id for a bidirectional model", "found None"]),
        ({"mask_token_id": "2"}, ["mask_token_id: expected a token id for a bidirectional model", "found '2'"]),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, ["found model_type 'qwen2', is_causal False"]),
        ({"is_causal": "false"}, ["is_causal", "found 'false'"]),
        ({"hidden_size": "wide"}, ["config.json", "hidden_size", "wide"]),
        (
            {"num_attention_heads": 7},
            ["config.json: num_key_value_heads: expected a divisor of num_attention_heads 7, found 5"],
        ),
        ({"soft_cap": 3}, ["config.json: soft_cap: expected a key known for model_type 'llama', found soft_cap = 3"]),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, ["quantization_config"]),
        ({"hidden_act": "nonsense"}, ["config.json: hidden_act: expected 'silu' or ", "found 'nonsense'"]),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit(folder, changes, fragments):
    configure(folder, **changes)
    message = refusal(folder)
    for fragment in (str(folder), *fragments):
        assert fragment in message


def test_a_mask_beyond_the_vocabulary(folder):
    """Also where the tokenizer knows of no mask and cannot contradict."""
    configure(folder, mask_token_id=5000)
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).exists():
            values = json.loads((folder / file).read_text())
            values.pop("mask_token", None)
            (folder / file).write_text(json.dumps(values))
    assert re.search(
        r"config.json: mask_token_id: expected the id of one of the \d+ rows of its vocabulary, found 5000",
        refusal(folder),
    )


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("found", ["int8", "float64", "auto", 3, ["float32"]], ids=str)
def test_a_stored_dtype_that_is_none_of_ours(folder, key, found):
    configure(folder, dtype=None, torch_dtype=None)
    configure(folder, **{key: found})
    assert f"{folder}/config.json: {key}: expected float32, bfloat16, float16 or null, found {found!r}" in refusal(
        folder
    )
    assert f"config.json: {key}" in refusal(folder, dtype="float32")


@pytest.mark.parametrize("dtype", ["float99", "int8", torch.int8, torch.float64, 3, "nn"], ids=str)
def test_a_dtype_that_is_none_of_ours(folder, dtype):
    assert f"expected float32, bfloat16 or float16, found {dtype!r}" in refusal(folder, CallError, dtype=dtype)


def test_a_device_that_does_not_exist(folder):
    message = refusal(folder, CallError, device="abacus")
    assert "device 'abacus' cannot be used here" in message and "pass device='cpu'" in message


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a CUDA device where there is none")
def test_a_device_that_is_not_here(folder):
    assert "device 'cuda' cannot be used here" in refusal(folder, CallError, device="cuda")


# Weights


def test_weights_that_are_missing(folder):
    (folder / WEIGHTS).unlink()
    message = refusal(folder)
    assert f"expected weights in {WEIGHTS}, found chat_template.jinja, config.json" in message
    assert "pickle" not in message


def test_weights_that_are_only_pickled(folder, tmp_path):
    """Never opened: unpickling it would leave a file behind."""

    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "was-run",)

    torch.save({"model.norm.weight": Evil()}, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    message = refusal(folder)
    assert "pytorch_model.bin is a pickle, which can run code: convert it to safetensors first" in message
    assert not (tmp_path / "was-run").exists()


def test_a_shard_that_is_missing(folder):
    shard(folder)
    (folder / "model-00002.safetensors").unlink()
    assert "expected weights in model-00002.safetensors" in refusal(folder)


@pytest.mark.parametrize("text", ['{"weight_map": ', '{"metadata": {}}', "[]", '{"weight_map": 3}'])
def test_an_index_that_is_damaged(folder, text):
    shard(folder)
    (folder / f"{WEIGHTS}.index.json").write_text(text)
    message = refusal(folder)
    assert f"{WEIGHTS}.index.json" in message and ("weight_map" in message or "expected a JSON object" in message)


def test_two_sets_of_weights(folder, diffusion_folder):
    """It would not be clear which of them is loaded and which is hashed."""
    shard(folder)
    shutil.copy(diffusion_folder / WEIGHTS, folder / WEIGHTS)
    assert "two sets of weights" in refusal(folder)
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    for name in (WEIGHTS, "model-00001-of-00002.safetensors"):
        shutil.copy(diffusion_folder / WEIGHTS, folder / name)
    message = refusal(folder)
    assert (
        "two sets of weights, model.safetensors and model-00001-of-00002.safetensors, which no model.safetensors.index.json"
        in message
    )


@pytest.mark.parametrize("kept", [0, 4, 100, -100], ids=lambda kept: f"first{kept}" if kept >= 0 else f"but{-kept}")
def test_weights_that_are_cut_short(folder, kept):
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:kept])
    message = refusal(folder)
    assert "its weights cannot be read" in message and "damaged or cut short, fetch it again" in message


def test_weights_that_are_something_else(folder):
    (folder / WEIGHTS).write_bytes(b"not safetensors at all, and longer than a header" * 20)
    assert "its weights cannot be read" in refusal(folder)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_a_tensor_that_is_missing(folder, name):
    reweigh(folder, lambda weights: weights.pop(name))
    assert f"expected exactly the weights of llama in the shapes of config.json, found 1 missing: {name} (" in refusal(
        folder
    )


def test_a_tensor_too_many(folder):
    reweigh(folder, lambda weights: weights.update({"model.layers.9.extra.weight": torch.ones(3)}))
    assert "found 1 unused: model.layers.9.extra.weight (3,) in model.safetensors" in refusal(folder)


def test_a_layer_too_many_or_too_few(folder):
    configure(folder, num_hidden_layers=2)
    assert re.search(r"found 9 unused: model\.layers\.2\.", refusal(folder))
    configure(folder, num_hidden_layers=4)
    assert re.search(r"found 9 missing: model\.layers\.3\.", refusal(folder))


def test_a_tensor_of_another_shape(folder):
    reweigh(folder, lambda weights: weights.update({"model.norm.weight": torch.ones(41)}))
    assert "found 1 of another shape: model.norm.weight (41,) instead of (40,)" in refusal(folder)


# Tokenizer


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_tokenizer_that_does_not_load(folder, damage):
    if damage == "missing":
        (folder / "tokenizer.json").unlink()
    else:
        (folder / "tokenizer.json").write_text('{"version": ' if damage == "cut" else '{"a": 1}')
    fragment = {
        "missing": f"{folder}: expected tokenizer.json and tokenizer_config.json, found no tokenizer that loads",
        "cut": f"{folder}/tokenizer.json: expected JSON, found ",
        "other": f"{folder}/tokenizer.json: model: expected an object, found None",
    }[damage]
    assert fragment in refusal(folder)
