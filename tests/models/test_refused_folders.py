import json
import re
import shutil
import struct
from pathlib import Path

import pytest
import torch
from damage import CONFIG, WEIGHTS, configure, refusal, reweigh, shard

from sinkscope.errors import CallError
from sinkscope.models import BUNDLED, FAMILIES

# What is not there


def test_a_name_that_is_nothing():
    message = refusal("lab-nonsense", CallError)
    for fragment in ("no model 'lab-nonsense'", *BUNDLED, "existing folder", "hub id owner/name"):
        assert fragment in message


@pytest.mark.parametrize("name", ["", "/no/such/folder", "./nowhere", "~/nowhere/at/all", "a/b/c"])
def test_a_folder_that_is_missing(name):
    assert "existing folder" in refusal(name, CallError)


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


def test_a_file_is_no_folder(folder):
    assert "is a file; expected a folder" in refusal(folder / CONFIG, CallError)


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
        ("[1, 2]", "expected a JSON object, found [1, 2]"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_config_that_is_no_json(folder, text, fragment):
    (folder / CONFIG).write_bytes(text.encode(errors="surrogateescape"))
    message = refusal(folder)
    assert fragment in message and CONFIG in message


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
    (folder / "tokenizer.json").unlink()
    if damage != "missing":
        (folder / "tokenizer.json").write_text('{"version": ' if damage == "cut" else '{"a": 1}')
    assert re.search(f"{folder}: expected .*found no(ne| tokenizer) that loads", refusal(folder))


def test_a_hub_id_offline_is_refused_in_the_words_of_its_library():
    message = refusal("sinkscope-tests/no-such-model")
    assert message.startswith("sinkscope-tests/no-such-model: no such folder here, and it cannot be fetched: ")
    assert "offline" in message.lower()


@pytest.mark.parametrize(
    ("changes", "fragment"),
    [
        ({"mask_token_id": 3}, "mask_token: expected token 3, as mask_token_id in config.json says, found"),
        ({"mask_token_id": None}, "mask_token_id: expected the id of the mask token, found None"),
        ({"mask_token_id": 5000}, "mask_token_id: expected the id of one of the "),
        ({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, "found model_type 'qwen2', is_causal False"),
        ({"is_causal": "false"}, "is_causal false"),
        ({"hidden_size": "wide"}, "hidden_size: expected a whole number above 0, found 'wide'"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "quantization_config"),
        ({"hidden_act": "nonsense"}, "nonsense"),
        ({"dtype": "int8"}, "config.json: dtype: expected float32, bfloat16, float16 or null, found 'int8'"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit(folder, changes, fragment):
    configure(folder, **changes)
    message = refusal(folder)
    assert str(folder) in message and fragment in message


def test_a_dtype_that_is_none_of_ours(folder):
    for dtype in ("float99", torch.int8):
        assert f"expected float32, bfloat16 or float16, found {dtype!r}" in refusal(folder, CallError, dtype=dtype)


@pytest.mark.parametrize("text", ['{"weight_map": ', '{"metadata": {}}', "[]", '{"weight_map": 3}'])
def test_an_index_that_is_damaged(folder, text):
    shard(folder)
    (folder / f"{WEIGHTS}.index.json").write_text(text)
    assert f"{WEIGHTS}.index.json: expected JSON with a weight_map" in refusal(folder)


def test_two_sets_of_weights(folder, diffusion_folder):
    """It would not be clear which of them is loaded and which is hashed."""
    shard(folder)
    shutil.copy(diffusion_folder / WEIGHTS, folder / WEIGHTS)
    assert f"two sets of weights, {WEIGHTS} and those of {WEIGHTS}.index.json" in refusal(folder)
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    for name in (WEIGHTS, "model-00001-of-00002.safetensors"):
        shutil.copy(diffusion_folder / WEIGHTS, folder / name)
    assert "two sets of weights, model.safetensors and those of model-00001-of-00002.safetensors" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, -100])
def test_weights_that_are_cut_short(folder, kept):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:kept])
    assert "its weights cannot be read, the file is damaged or cut short (" in refusal(folder)


@pytest.mark.parametrize(
    "content", [b"not safetensors, and longer than a header" * 20, b"[]", b'{"a": {"dtype": "F32"}}']
)
def test_weights_that_are_something_else(folder, content):
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(content)) * content.startswith((b"[", b"{")) + content)
    assert "its weights cannot be read" in refusal(folder)


def test_a_pointer_of_git_lfs(folder):
    (folder / WEIGHTS).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
    assert "a pointer of Git LFS, whose content was not fetched: run `git lfs pull`" in refusal(folder)
