"""Every key of a published config is handled, ignored on purpose, or refused with file, key, expected and found."""

import re

import pytest
from damage import configure, refusal
from tiny import TINY, save_tiny
from tiny_tokenizers import SAVE

import sinkscope


@pytest.fixture
def published(tmp_path):
    """Writes a folder as published, with changes of its config."""

    def write(name, **changes):
        return SAVE[name](save_tiny(name, tmp_path, **changes))

    return write


LLADA_REFUSED = [
    ("alibi", True, "expected False, found True"),
    ("clip_qkv", 8.0, "expected None, found 8.0"),
    ("block_type", "sequential", "expected 'llama', found 'sequential'"),
    ("activation_type", "swiglu", "expected 'silu', found 'swiglu'"),
    ("layer_norm_type", "default", "expected 'rms', found 'default'"),
    ("layer_norm_with_affine", False, "expected True, found False"),
    ("bias_for_layer_norm", True, "expected False or None, found True"),
    ("rope", False, "expected True, found False"),
    ("rope_scaling", {"factor": 2.0}, "expected None, found {'factor': 2.0}"),
    ("include_bias", True, "expected False, found True"),
    ("include_qkv_bias", True, "expected False or None, found True"),
    ("attention_layer_norm", True, "expected False, found True"),
    ("input_emb_norm", True, "expected False, found True"),
    ("scale_logits", True, "expected False, found True"),
    ("multi_query_attention", True, "expected False or None, found True"),
    ("block_group_size", 3, "expected 1, found 3"),
    ("is_encoder_decoder", True, "expected False, found True"),
    ("weight_tying", "no", "expected true or false, found 'no'"),
    ("rope_full_precision", 1, "expected true or false, found 1"),
    ("d_model", "wide", "expected a whole number above 0, found 'wide'"),
    ("n_layers", True, "expected a whole number above 0, found True"),
    ("mlp_hidden_size", None, "expected a whole number above 0, found None"),
    ("n_heads", 5, "expected a divisor of d_model 48, found 5"),
    ("n_kv_heads", 3, "expected a divisor of n_heads 4, found 3"),
    ("rope_theta", 0, "expected a number above 0, found 0"),
    ("rms_norm_eps", "small", "expected a number above 0, found 'small'"),
    ("mask_token_id", None, "expected the id of the mask token, found None"),
    ("mask_token_id", 60.0, "expected the id of a token, found 60.0"),
    ("eos_token_id", "end", "expected the id of a token, found 'end'"),
    ("softcap", 30.0, "expected a key known for model_type 'llada', found softcap = 30.0"),
    ("tie_word_embeddings", True, "expected False as the keys before it say, found True"),
]


@pytest.mark.parametrize(("key", "value", "fragment"), LLADA_REFUSED, ids=lambda value: str(value)[:20])
def test_a_value_that_is_not_modelled(published, key, value, fragment):
    folder = published("llada", **{key: value})
    assert f"{folder}/config.json: {key}: {fragment}" in refusal(folder)


@pytest.mark.parametrize("key", ["block_type", "activation_type", "layer_norm_type", "rope"])
def test_a_key_whose_absence_means_another_network(published, key):
    """The published code's defaults are GPT-2's: a key left out is not the value that LLaDA has."""
    folder = published("llada")
    configure(folder, **{key: None})
    assert re.search(rf"config.json: {key}: expected .* \(the key is missing, and the published code takes this\)", refusal(folder))


def test_a_head_that_may_be_tied_or_not(published):
    folder = published("llada")
    configure(folder, weight_tying=None)
    assert "config.json: expected weight_tying or tie_word_embeddings to be true or false" in refusal(folder)


def test_tied_embeddings_with_a_head_of_their_own(published):
    folder = published("llada", weight_tying=True)
    assert "1 unused: model.transformer.ff_out.weight (64, 48) in model.safetensors" in refusal(folder)


def test_two_keys_that_contradict(published):
    folder = published("mmada", tie_word_embeddings=True)
    assert "config.json: tie_word_embeddings: expected False as the keys before it say, found True" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "key", "value", "fragment"),
    [
        ("mmada", "w_clip_vit", True, "expected False, found True"),
        ("mmada", "sigma", 2, "expected a key known for model_type 'mmada', found sigma = 2"),
        ("dream", "use_sliding_window", True, "expected False, found True"),
        ("dream", "use_mrope", True, "expected False, found True"),
        ("dream", "attention_bias", False, "expected True, found False"),
        ("dream", "hidden_act", "gelu", "expected 'silu', found 'gelu'"),
        ("dream", "rope_scaling", {"type": "yarn"}, "expected None, found {'type': 'yarn'}"),
        ("dream", "block_size", 32, "expected a key known for model_type 'Dream', found block_size = 32"),
        ("dream", "num_attention_heads", 3, "expected a divisor of hidden_size 56, found 3"),
        ("llama", "rope_type", "llama3", "expected a key known for model_type 'llama', found rope_type = 'llama3'"),
        ("llama", "attention_bias", "yes", "expected true or false, found 'yes'"),
        ("llama", "rope_scaling", "llama3", "expected an object or null, found 'llama3'"),
        ("llama", "num_hidden_layers", -1, "expected a whole number above 0, found -1"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_value_that_is_not_modelled_in_the_other_families(published, name, key, value, fragment):
    folder = published(name, **{key: value})
    assert f"{folder}/config.json: {key}: {fragment}" in refusal(folder)


def test_rotations_that_change_with_the_length(published):
    folder = published("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert "rope_type: expected one of default, linear, llama3, yarn, found 'dynamic'" in refusal(folder)


IGNORED = {
    "llada": {"mlp_ratio": 7, "precision": None, "init_std": 3.0, "attention_dropout": 0.5, "flash_attention": True, "alibi_bias_max": 1.0},
    "mmada": {"codebook_size": 3, "llm_vocab_size": 5, "num_vq_tokens": 9, "gradient_checkpointing": True},
    "dream": {"max_window_layers": 3, "sliding_window": 7, "attention_dropout": 0.5, "use_cache": False},
    "llama": {"pretraining_tp": 4, "initializer_range": 0.5, "_name_or_path": "somewhere"},
}


@pytest.mark.parametrize("name", IGNORED)
def test_keys_without_effect_have_none(published, name):
    """Ignored on purpose: the converted network is the same."""
    before = sinkscope.load(str(published(name)))
    configs = [before.network.config.to_dict()]
    configs.append(sinkscope.load(str(published(name, **IGNORED[name]))).network.config.to_dict())
    assert configs[0] == configs[1]
    assert not set(IGNORED[name]) & {"vocab_size"} and set(IGNORED[name]) - set(TINY[name].config) <= {
        "gradient_checkpointing",
        "_name_or_path",
    }


def test_a_size_that_is_null_falls_back(published):
    folder = published("llada", embedding_size=None, n_kv_heads=None)
    configure(folder, embedding_size=None, n_kv_heads=None)
    card = sinkscope.load(str(folder)).card
    assert (card.vocabulary, card.kv_heads) == (64, 4)
