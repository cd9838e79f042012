"""Keys of a config.json as they are in the world: what transformers ignores is listed, what changes the network is refused."""

import dataclasses
import json

import pytest
from damage import configure, refusal
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
    "_name_or_path": "x",
    "unk_token_id": 0,
    "license": "mit",
    "max_new_tokens": 128,
    "use_flashattn": True,
    "position_embedding_type": "rope",
    "pixel_shuffle_factor": 4,
    "use_resampler": False,
    "classifier_dropout": 0.0,
    "additional_special_tokens": [],
    "is_decoder": True,
    "add_cross_attention": False,
    "use_bidirectional_attention": False,
    "rotary_emb_base": 10000,
    "qkv_bias": False,
    "layer_norm_eps": 1e-5,
    "n_positions": 512,
    "num_experts": 0,
    "adapter": None,
    "final_logit_softcapping": None,
    "no_rope_layers": [1, 1],
    "vision_config": None,
    "summary_type": "cls_index",
    "rope_interleaved": False,
    "rope_type": "llama3",
    "unsloth_fixed": True,
    "mlp_ratio": 4,
    "layer_types": ["full_attention"] * LLAMA_CONFIG["num_hidden_layers"],
    "partial_rotary_factor": 1.0,
    "use_sliding_window": False,
    "sliding_window": None,
    "chunk_size_feed_forward": 0,
    "is_encoder_decoder": False,
    "attention_chunk_size": None,
    "quantization": None,
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
@settings(max_examples=40, deadline=None)
def test_harmless_keys_change_nothing_and_are_listed(config, keys):
    """Any set of them; the network that transformers would build is the one without them."""
    plain, changed = convert(config), convert(config | {key: HARMLESS[key] for key in keys})
    assert changed.fields == plain.fields and changed.network == plain.network
    assert set(changed.unread_keys) == keys - known_keys(changed.layout)


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config["model_type"])
@given(key=st.sampled_from(sorted(DANGEROUS)), beside=st.sets(st.sampled_from(sorted(HARMLESS))))
@settings(max_examples=40, deadline=None)
def test_a_dangerous_key_is_refused_whatever_stands_beside_it(config, key, beside):
    rotations = {"rope_scaling": None} if key.startswith("rope") else {}
    with pytest.raises(ModelError, match="rope_type" if rotations else key):
        convert(config | {one: HARMLESS[one] for one in beside} | rotations | {key: DANGEROUS[key]})


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (LLAMA_CONFIG, {"sliding_window": 4096}),
        (QWEN2, {"use_sliding_window": True}),
        (QWEN3, {"use_sliding_window": True}),
    ],
)
def test_a_window_of_attention_is_refused(config, change):
    with pytest.raises(ModelError, match=f"{next(iter(change))}: expected"):
        convert(config | change)


def test_a_key_that_transformers_reads_and_no_layout_knows_is_refused(monkeypatch):
    """As a newer transformers may have one."""
    import transformers

    newer = dataclasses.make_dataclass("LlamaConfig", [("soft_cap", float, 1.0)], bases=(transformers.LlamaConfig,))
    monkeypatch.setattr(transformers, "LlamaConfig", newer)
    with pytest.raises(ModelError, match=r"soft_cap: expected a key known for model_type 'llama', found 2\.0"):
        convert(LLAMA_CONFIG | {"soft_cap": 2.0})


@pytest.mark.parametrize("config", KNOWN, ids=lambda config: config["model_type"])
def test_what_a_config_does_not_say_is_transformers_default(config):
    from transformers import AutoConfig

    bare = {key: value for key, value in config.items() if key not in ("max_position_embeddings", "rms_norm_eps")}
    converted = convert(bare)
    kind = type(AutoConfig.for_model(config["model_type"]))
    assert kind(**converted.fields).max_position_embeddings == kind().max_position_embeddings


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


def test_a_llada_saved_again_says_its_sizes_twice():
    """By transformers' names, as its config class writes them; other sizes are another network."""
    again = {"num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 4, "head_dim": 12}
    assert convert(TINY["llada"].config | again).unread_keys == tuple(again)
    with pytest.raises(ModelError, match="hidden_size: expected a key known"):
        convert(TINY["llada"].config | again | {"hidden_size": 50})


LLADA2_MINI = {  # keys of the config.json of LLaDA2.0-mini as inclusionAI/dFactory c29d72c carries it
    "use_rmsnorm": True,
    "norm_softmax": False,
    "using_split_qkv_in_self_attention": False,
    "router_dtype": "fp32",
    "moe_router_enable_expert_bias": True,
}


def test_the_keys_of_the_published_llada2():
    config = TINY["llada2"].config
    rotated = {"rotary_dim": int(config["head_dim"] * config["partial_rotary_factor"])}
    assert convert(config | LLADA2_MINI | rotated).fields == convert(config).fields
    for key, value in {**LLADA2_MINI, **rotated}.items():
        other = not value if isinstance(value, bool) else 7
        with pytest.raises(ModelError, match=f"{key}: expected"):
            convert(config | {key: other})


def test_check_lists_the_keys_that_are_not_read(tmp_path, capsys):
    folder = SAVE["llama"](save_tiny("llama", tmp_path, unk_token_id=0, speculators_config=None))
    configure(folder, unk_token_id=0, use_flashattn=True)
    assert sinkscope.load(folder).unread_keys == ("unk_token_id", "use_flashattn")
    Check(model=str(folder)).run()
    assert (
        "keys of config.json that the network does not read: unk_token_id, use_flashattn\n" in capsys.readouterr().out
    )
    Check(model=str(folder), json=True).run()
    assert json.loads(capsys.readouterr().out)["unread_keys"] == ["unk_token_id", "use_flashattn"]


# What the layouts say of the keys that they know

LLADA_REFUSED = {
    "alibi": True,
    "clip_qkv": 8.0,
    "block_type": "sequential",
    "activation_type": "swiglu",
    "layer_norm_type": "default",
    "layer_norm_with_affine": False,
    "bias_for_layer_norm": True,
    "rope": False,
    "rope_scaling": {"factor": 2.0},
    "include_bias": True,
    "include_qkv_bias": True,
    "attention_layer_norm": True,
    "input_emb_norm": True,
    "scale_logits": True,
    "multi_query_attention": True,
    "block_group_size": 3,
    "is_encoder_decoder": True,
    "d_model": "wide",
    "mlp_hidden_size": None,
    "rope_theta": 0,
    "mask_token_id": None,
    "eos_token_id": "end",
    "softcap": 30.0,
    "tie_word_embeddings": True,
}


def test_a_value_that_is_not_modelled():
    for key, value in LLADA_REFUSED.items():
        with pytest.raises(ModelError, match=rf"here/config\.json: {key}: expected .*found"):
            convert(TINY["llada"].config | {key: value})
    for name, key, value in (
        ("mmada", "w_clip_vit", True),
        ("dream", "use_sliding_window", True),
        ("dream", "use_mrope", True),
        ("dream", "attention_bias", False),
        ("dream", "hidden_act", "gelu"),
        ("dream", "rope_scaling", {"type": "yarn"}),
        ("dream", "block_size", 32),
    ):
        with pytest.raises(ModelError, match=f"{key}: expected"):
            convert(TINY[name].config | {key: value})


@pytest.mark.parametrize("key", ["block_type", "activation_type", "layer_norm_type", "rope"])
def test_a_key_whose_absence_means_another_network(key):
    """The published code's defaults are GPT-2's: a key left out is not the value that LLaDA has."""
    config = {name: value for name, value in TINY["llada"].config.items() if name != key}
    with pytest.raises(ModelError, match=rf"{key}: expected .* \(the key is missing, and the published code takes"):
        convert(config)


def test_tied_embeddings_with_a_head_of_their_own(tmp_path):
    message = refusal(SAVE["llada"](save_tiny("llada", tmp_path, weight_tying=True)))
    assert "1 unused: model.transformer.ff_out.weight (64, 48) in model.safetensors; weight_tying in" in message
    assert message.endswith("set it to false, or remove the tensor")


LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {"factor": 2.0},
        LINEAR | {"type": "yarn"},
        LINEAR | {"rope_theta": 7.0},
        LINEAR | {"partial_rotary_factor": 0.5},
    ],
)
def test_rotations_that_are_not_modelled_or_contradict(scaling):
    with pytest.raises(ModelError, match=r"config\.json: (rope_|partial_rotary)"):
        convert(LLAMA_CONFIG | {"rope_scaling": scaling})
    with pytest.raises(ModelError, match="rope_parameters: expected one record of rotations"):
        convert(LLAMA_CONFIG | {"rope_parameters": LINEAR})


YARN = {"factor": 2, "original_max_position_embeddings": 256, "truncate": False}


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, {"rope_type": "default"}),
        (LINEAR | {"type": "linear", "partial_rotary_factor": 1.0}, LINEAR),
        (YARN | {"type": "yarn", "finetuned": True}, YARN | {"rope_type": "yarn", "factor": 2.0}),
    ],
)
def test_rotations_as_they_are_published(scaling, expected):
    found = convert(LLAMA_CONFIG | {"rope_scaling": scaling}).fields["rope_parameters"]
    assert found == {"rope_theta": 500000.0, **expected}


@pytest.mark.parametrize(
    ("architecture", "more", "why"),
    [
        ("A2DLlamaLMHeadModel", {"auto_map": {"AutoModel": "a.B"}}, "a model that only remote code could run"),
        ("LlamaForSequenceClassification", {}, "that network is another one"),
        ("FullPrecisionLlama", {}, "that network is another one"),
    ],
)
def test_another_network_under_the_name_of_llama(architecture, more, why):
    with pytest.raises(ModelError, match=rf"expected LlamaForCausalLM for .*, found \['{architecture}'\]; {why}"):
        convert(LLAMA_CONFIG | {"architectures": [architecture]} | more)


def test_a_family_that_was_saved_again_is_known(tmp_path):
    model = sinkscope.load(str(SAVE["llada"](save_tiny("llada", tmp_path / "model"))))
    (tmp_path / "again").mkdir()
    again = SAVE["llada"](tmp_path / "again")
    model.network.save_pretrained(again)
    assert json.loads((again / "config.json").read_text())["architectures"] == ["FullPrecisionLlama"]
    assert sinkscope.load(str(again)).family is model.family


IGNORED = {
    "llada": {"mlp_ratio": 7, "precision": None, "init_std": 3.0, "flash_attention": True, "alibi_bias_max": 1.0},
    "mmada": {"codebook_size": 3, "llm_vocab_size": 5, "num_vq_tokens": 9, "gradient_checkpointing": True},
    "dream": {"max_window_layers": 3, "sliding_window": 7, "attention_dropout": 0.5, "use_cache": False},
}


@pytest.mark.parametrize("name", IGNORED)
def test_keys_that_a_layout_ignores_have_no_effect(name):
    changed = convert(TINY[name].config | IGNORED[name])
    assert changed.fields == convert(TINY[name].config).fields and not changed.unread_keys


def test_a_size_that_is_null_falls_back():
    fields = convert(TINY["llada"].config | {"embedding_size": None, "n_kv_heads": None}).fields
    assert (fields["vocab_size"], fields["num_key_value_heads"]) == (64, 4)
