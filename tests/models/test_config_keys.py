"""Keys of a config.json as they are in the world: what transformers ignores is listed, what changes the network is
refused.
"""

import dataclasses
import json

import pytest
from damage import configure
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import LLAMA_CONFIG, TINY, save_tiny
from tiny_tokenizers import SAVE

import sinkscope
from sinkscope.commands.check import Check
from sinkscope.errors import ModelError
from sinkscope.models import recognise
from sinkscope.models.conversion import completed, convert_config, known_keys


def convert(config):
    family = recognise(config, "here")
    return convert_config(completed(config, family), family, "here")


QWEN = {key: value for key, value in LLAMA_CONFIG.items() if key not in ("rope_scaling", "attention_bias", "mlp_bias")}
QWEN2 = QWEN | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = QWEN | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
KNOWN = [LLAMA_CONFIG, QWEN2, QWEN3]
HARMLESS = {
    "unk_token_id": 0,
    "license": "mit",
    "use_flashattn": True,
    "position_embedding_type": "rope",
    "classifier_dropout": 0.0,
    "rotary_emb_base": 10000,
    "qkv_bias": False,
    "n_positions": 512,
    "adapter": None,
    "no_rope_layers": [1, 1],
    "rope_type": "llama3",
    "layer_types": ["full_attention"] * LLAMA_CONFIG["num_hidden_layers"],
    "partial_rotary_factor": 1.0,
    "sliding_window": None,
    "is_encoder_decoder": False,
}
DANGEROUS = {
    "partial_rotary_factor": 0.5,
    "attention_chunk_size": 64,
    "is_encoder_decoder": True,
    "quantization": {"bits": 4},
    "quantization_config": {"quant_method": "awq"},
    "layer_types": ["full_attention", "sliding_attention"],
    "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4},
}


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config["model_type"])
@given(keys=st.sets(st.sampled_from(sorted(HARMLESS))))
@settings(max_examples=20, deadline=None)
def test_harmless_keys_change_nothing_and_are_listed(config, keys):
    """Any set of them; the network that transformers would build is the one without them."""
    plain, changed = convert(config), convert(config | {key: HARMLESS[key] for key in keys})
    assert changed.fields == plain.fields and changed.network == plain.network
    assert set(changed.unread_keys) == keys - known_keys(changed.layout)


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config["model_type"])
@given(key=st.sampled_from(sorted(DANGEROUS)), beside=st.sets(st.sampled_from(sorted(HARMLESS))))
@settings(max_examples=20, deadline=None)
def test_a_dangerous_key_is_refused_whatever_stands_beside_it(config, key, beside):
    rotations = {"rope_scaling": None} if key.startswith("rope") else {}
    with pytest.raises(ModelError, match="rope_type" if rotations else key):
        convert(config | {one: HARMLESS[one] for one in beside} | rotations | {key: DANGEROUS[key]})


def test_a_key_that_transformers_reads_and_no_layout_knows_is_refused(monkeypatch):
    """As a newer transformers may have one."""
    import transformers

    newer = dataclasses.make_dataclass("LlamaConfig", [("soft_cap", float, 1.0)], bases=(transformers.LlamaConfig,))
    monkeypatch.setattr(transformers, "LlamaConfig", newer)
    with pytest.raises(ModelError, match=r"soft_cap: expected a key known for model_type 'llama', found 2\.0"):
        convert(LLAMA_CONFIG | {"soft_cap": 2.0})


TRANSLATED = ["llada", "mmada", "dream", "sdar", "llada2", "llada_moe"]


@pytest.mark.parametrize("name", TRANSLATED)
@given(
    keys=st.dictionaries(
        st.sampled_from(["soft_cap", "qk_clip", "vision_config", "use_alibi", "experts_per_layer"]),
        st.sampled_from([None, False, 0, 0.0, "", [], {}]),
        min_size=1,
    )
)
@settings(max_examples=20, deadline=None)
def test_an_unknown_key_that_switches_nothing_on_is_listed(name, keys):
    converted = convert(TINY[name].config | keys)
    assert converted.fields == convert(TINY[name].config).fields
    assert set(converted.unread_keys) == set(keys)


@pytest.mark.parametrize("name", TRANSLATED)
def test_all_keys_that_may_change_a_translated_network_are_refused_at_once(name):
    wrong = {"soft_cap": 30.0, "window": 7, "norm": "layer", "flag": True, "parts": [1]}
    with pytest.raises(ModelError) as refused:
        convert(TINY[name].config | wrong | {"partial_rotary": None, "quantization": {"bits": 4}})
    assert all(f"{key}: expected" in str(refused.value) for key in (*wrong, "quantization"))
    assert "partial_rotary:" not in str(refused.value)


def test_check_lists_the_keys_that_are_not_read(tmp_path, capsys):
    folder = SAVE["llama"](save_tiny("llama", tmp_path, unk_token_id=0, speculators_config=None))
    configure(folder, unk_token_id=0, use_flashattn=True)
    assert sinkscope.load(folder).unread_keys == ("unk_token_id", "use_flashattn")
    Check(model=str(folder)).run()
    keys = "keys of config.json that the network does not read: unk_token_id, use_flashattn"
    assert " ".join(capsys.readouterr().out.split()).endswith(keys)
    Check(model=str(folder), json=True).run()
    assert json.loads(capsys.readouterr().out)["unread_keys"] == ["unk_token_id", "use_flashattn"]


REFUSED = {
    "llada": {"alibi": True, "rope_scaling": {"factor": 2.0}, "d_model": "wide"},
    "mmada": {"w_clip_vit": True},
    "dream": {"use_sliding_window": True, "attention_bias": False},
    "llama": {"sliding_window": 4096},
    "sdar": {"num_experts": 128, "block_size": 0, "attention_bias": True},
    "llada_moe": {"moe_layer_freq": [0, 1, 1], "qk_layernorm": False, "partial_rotary_factor": 0.5},
    "llada2": {"score_function": "softmax", "num_shared_experts": 0, "edit_threshold": 0.5, "use_rmsnorm": False},
}


@pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in REFUSED.items() for key in keys])
def test_a_value_that_is_not_modelled(name, key):
    with pytest.raises(ModelError, match=rf"here/config\.json: {key}: expected .*found"):
        convert(TINY[name].config | {key: REFUSED[name][key]})


@pytest.mark.parametrize("key", ["block_type", "rope"])
def test_a_key_whose_absence_means_another_network(key):
    """The published code's defaults are GPT-2's: a key left out is not the value that LLaDA has."""
    config = {name: value for name, value in TINY["llada"].config.items() if name != key}
    with pytest.raises(ModelError, match=rf"{key}: expected .* \(the key is missing, and the published code takes"):
        convert(config)


def test_rotations_that_contradict():
    linear = {"rope_type": "linear", "factor": 2.0}
    for scaling in (linear | {"type": "yarn"}, linear | {"rope_theta": 7.0}, linear | {"partial_rotary_factor": 0.5}):
        with pytest.raises(ModelError, match=r"config\.json: rope_"):
            convert(LLAMA_CONFIG | {"rope_scaling": scaling})
    with pytest.raises(ModelError, match="rope_parameters: expected one record of rotations"):
        convert(LLAMA_CONFIG | {"rope_parameters": linear})


@pytest.mark.parametrize("architecture", ["LlamaForSequenceClassification", "FullPrecisionLlama"])
def test_another_network_under_the_name_of_llama(architecture):
    with pytest.raises(ModelError, match=rf"expected LlamaForCausalLM for .*, found \['{architecture}'\]"):
        convert(LLAMA_CONFIG | {"architectures": [architecture]})
