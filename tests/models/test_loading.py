import hashlib
import json

import pytest
import torch
from damage import CONFIG, WEIGHTS, shard
from safetensors.torch import load_file

import sinkscope
from sinkscope.errors import CallError
from sinkscope.models.fingerprints import hash_stored
from sinkscope.models.loading import outline


def test_a_folder_loads(folder):
    model = sinkscope.load(folder)
    expected = load_file(folder / WEIGHTS)
    assert model.family.name == "llada" and not model.family.causal
    assert model.card.name == str(folder)
    assert not model.network.training
    for name, parameter in model.network.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_an_outline_is_the_model_without_its_weights(folder):
    whole, found = sinkscope.load(str(folder)), outline(str(folder))
    unknown = {"weight_hash": "", "stored_dtype": "", "dtype": ""}
    assert found.card.as_dict() == whole.card.as_dict() | unknown and found.limit == whole.limit
    assert {one.device.type for one in found.network.parameters()} == {"meta"}
    for path in folder.glob("*.safetensors"):
        path.unlink()
    assert outline(str(folder)).encode("w3 w5") == whole.encode("w3 w5")


def test_the_card(folder, causal_folder):
    config, weights = json.loads((causal_folder / CONFIG).read_text()), load_file(causal_folder / WEIGHTS)
    card = sinkscope.load(str(causal_folder)).card
    assert card.as_dict() == {
        "name": str(causal_folder),
        "family": "llama",
        "weight_hash": hashlib.sha256((causal_folder / WEIGHTS).read_bytes()).hexdigest(),
        "parameters": sum(tensor.numel() for tensor in weights.values()),
        "layers": 3,
        "heads": 6,
        "kv_heads": 2,
        "hidden_size": 48,
        "vocabulary": config["vocab_size"],
        "stored_dtype": "float32",
        "dtype": "float32",
        "mask_id": None,
        "eos_id": 1,
        "max_positions": 256,
        "eos_ids": [],
        "sink_token": None,
        "config_hash": hash_stored(config),
    }
    diffusion = sinkscope.load(str(folder)).card
    assert (diffusion.family, diffusion.mask_id, diffusion.heads, diffusion.kv_heads) == ("llada", 2, 5, 5)


def test_shards_load_and_are_hashed_in_order_of_their_names(folder, diffusion):
    shard(folder)
    model = sinkscope.load(str(folder))
    for (name, mine), (_, theirs) in zip(
        model.network.named_parameters(), diffusion.network.named_parameters(), strict=True
    ):
        assert torch.equal(mine, theirs), name
    both = b"".join((folder / f"model-0000{number}.safetensors").read_bytes() for number in (1, 2))
    assert model.card.weight_hash == hashlib.sha256(both).hexdigest()


@pytest.mark.parametrize("dtype", ["float32", torch.float16])
def test_a_dtype_asked_for_is_given(folder, dtype):
    sinkscope.load(str(folder)).network.to(torch.bfloat16).save_pretrained(folder)
    model = sinkscope.load(str(folder), dtype=dtype)
    wanted = getattr(torch, dtype) if isinstance(dtype, str) else dtype
    assert {parameter.dtype for parameter in model.network.parameters()} == {wanted}
    assert (model.card.stored_dtype, model.card.dtype) == ("bfloat16", str(wanted).removeprefix("torch."))


def test_the_generate_of_a_bidirectional_network_is_refused(diffusion, autoregressive):
    with pytest.raises(CallError, match=r"both directions.*sinkscope\.generate"):
        diffusion.network.generate(torch.tensor([[0, 40]]), max_new_tokens=2)
    assert autoregressive.network.generate(
        torch.tensor([[0, 40]]), max_new_tokens=2, do_sample=False, pad_token_id=1
    ).shape == (1, 4)
