"""Every key of a published config is handled, ignored on purpose, or refused with file, key, expected and found."""

import json
import math
import re

import pytest
from damage import configure, refusal
from tiny import LLAMA_CONFIG, TINY, save_tiny
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
    ("rms_norm_eps", 1e308, "expected a number below 1e+300, found 1e+308"),
    ("rope_theta", 1e300, "expected a number below 1e+300, found 1e+300"),
    ("d_model", 1 << 41, "expected a whole number below 1.09951e+12, found 2199023255552"),
    ("d_model", "wide", "expected a whole number above 0, found 'wide'"),
    ("n_layers", True, "expected a whole number above 0, found True"),
    ("mlp_hidden_size", None, "expected a whole number above 0, found None"),
    ("n_heads", 5, "expected a divisor of d_model 48, found 5"),
    ("n_kv_heads", 3, "expected a divisor of n_heads 4, found 3"),
    ("rope_theta", 0, "expected a number above 0, found 0"),
    ("rope_theta", 1, "expected a number above 1, the base of the rotations, found 1"),
    ("rms_norm_eps", "small", "expected a number above 0, found 'small'"),
    ("mask_token_id", None, "expected the id of the mask token, found None"),
    ("eos_token_id", 60, "expected another token than the mask token 60, found the same"),
    ("eos_token_id", [2, 60], "expected another token than the mask token 60, found the same"),
    ("bos_token_id", 60, "expected another token than the mask token 60, found the same"),
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
    assert re.search(
        rf"config.json: {key}: expected .* \(the key is missing, and the published code takes this\)", refusal(folder)
    )


def test_a_head_that_may_be_tied_or_not(published):
    folder = published("llada")
    configure(folder, weight_tying=None)
    assert "config.json: expected weight_tying or tie_word_embeddings to be true or false" in refusal(folder)


def test_tied_embeddings_with_a_head_of_their_own(published):
    folder = published("llada", weight_tying=True)
    message = refusal(folder)
    assert (
        "1 unused: model.transformer.ff_out.weight (64, 48) in model.safetensors; weight_tying in config.json says that"
        in message
    )
    assert message.endswith("set it to false, or remove the tensor")


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
    assert "rope_scaling: rope_type: expected one of default, linear, llama3, yarn, found 'dynamic'" in refusal(folder)


LLAMA3 = LLAMA_CONFIG["rope_scaling"]
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("scaling", "fragment"),
    [
        ({"rope_type": "llama3"}, "factor: expected a number above 0 for rope_type 'llama3', found none"),
        ({"type": "linear"}, "factor: expected a number above 0 for rope_type 'linear', found none"),
        ({"type": "yarn"}, "factor: expected a number above 0 for rope_type 'yarn', found none"),
        (LINEAR | {"factor": "a"}, "factor: expected a number above 0, found 'a'"),
        (LINEAR | {"factor": 0}, "factor: expected a number above 0, found 0"),
        (LINEAR | {"factor": -2}, "factor: expected a number above 0, found -2"),
        (LINEAR | {"factor": math.nan}, "factor: expected a number above 0, found nan"),
        (LINEAR | {"factor": math.inf}, "factor: expected a number below 1e+300, found inf"),
        (LINEAR | {"factor": 10**400}, "factor: expected a number below 1e+300, found 1000"),
        (LINEAR | {"factor": None}, "factor: expected a number above 0, found None"),
        (LINEAR | {"foo": 1}, "foo: expected a key known for rope_type 'linear' (factor), found foo = 1"),
        (LINEAR | {"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected a key known for rope_type 'linear'"),
        (LINEAR | {"type": "yarn"}, "rope_type: expected 'linear', found 'yarn'"),
        (LINEAR | {"rope_theta": 7.0}, "rope_theta: expected 500000.0 as rope_theta beside it says, found 7.0"),
        (
            {"type": "default", "factor": 2},
            "factor: expected a key known for rope_type 'default' (none), found factor = 2",
        ),
        ({"type": ["linear"]}, "rope_type: expected one of default, linear, llama3, yarn, found ['linear']"),
        ({"factor": 2.0}, "rope_type: expected one of default, linear, llama3, yarn, found only 'factor'"),
        (
            LLAMA3 | {"original_max_position_embeddings": 0.5},
            "original_max_position_embeddings: expected a whole number above 0",
        ),
        (
            LLAMA3 | {"high_freq_factor": 1.0},
            "high_freq_factor: expected a number above low_freq_factor 1.0, found 1.0",
        ),
        ({"type": "yarn", "factor": 2, "truncate": 1}, "truncate: expected true or false, found 1"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_rotations_that_cannot_be(published, scaling, fragment):
    folder = published("llama", rope_scaling=scaling)
    assert f"{folder}/config.json: rope_scaling: {fragment}" in refusal(folder)


def test_rotations_told_twice(published):
    folder = published("llama", rope_parameters=LINEAR)
    assert "rope_scaling: expected it missing beside rope_parameters, found {'factor': 8.0" in refusal(folder)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, {"rope_type": "default"}),
        (LINEAR | {"type": "linear", "partial_rotary_factor": 1.0}, LINEAR),
        (
            {
                "type": "yarn",
                "factor": 2,
                "original_max_position_embeddings": 256,
                "finetuned": True,
                "truncate": False,
            },
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256, "truncate": False},
        ),
    ],
)
def test_rotations_as_they_are_published(published, scaling, expected):
    model = sinkscope.load(str(published("llama", rope_scaling=scaling)))
    assert model.network.config.rope_parameters == {"rope_theta": 500000.0, **expected}


@pytest.mark.parametrize(
    ("key", "value", "fragment"),
    [
        ("hidden_act", "foo", "expected 'silu' or 'swish' or .* found 'foo'"),
        ("hidden_act", ["foo"], r"expected 'silu' or 'swish' or .* found \['foo'\]"),
        ("head_dim", 7, "expected heads of an even size, whose halves can be rotated, found 7"),
        ("num_attention_heads", 64, "expected heads of an even size, .* found 64, which makes heads of 1"),
        ("vocab_size", 10**30, r"expected a whole number below 1.09951e\+12, found 1000"),
        ("rms_norm_eps", 10**400, r"expected a number below 1e\+300, found 1000"),
        ("rope_interleaved", True, "expected False, found True"),
        ("use_sliding_window", True, "expected False, found True"),
        ("sliding_window", 4096, "expected None, found 4096"),
        ("quantization", {"bits": 4}, "expected None, found {'bits': 4}"),
        ("eos_token_id", 9999, "expected the id of one of the 63 rows of its vocabulary, found 9999"),
        ("eos_token_id", -1, "expected the id of one of the 63 rows of its vocabulary, found -1"),
        ("eos_token_id", [3, 63], "expected the id of one of the 63 rows of its vocabulary, found 63"),
        ("bos_token_id", 63, "expected the id of one of the 63 rows of its vocabulary, found 63"),
        ("architectures", 3, "expected a list of names or null, found 3"),
        ("architectures", "LlamaForCausalLM", "expected a list of names or null, found 'LlamaForCausalLM'"),
        ("architectures", [3], r"expected a list of names or null, found \[3\]"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_llama_that_is_not_modelled(published, key, value, fragment):
    folder = published("llama", **{key: value})
    assert re.search(rf"{folder}/config.json: {key}: {fragment}", refusal(folder))


@pytest.mark.parametrize(
    ("architecture", "more", "why"),
    [
        (
            "A2DLlamaLMHeadModel",
            {"auto_map": {"AutoModel": "a.B"}, "mask_token_id": 60},
            "a model that only remote code could run",
        ),
        ("LlamaForSequenceClassification", {}, "that network is another one"),
        ("Qwen2ForCausalLM", {}, "that network is another one"),
        ("FullPrecisionLlama", {}, "that network is another one"),
    ],
)
def test_another_network_under_the_name_of_llama(published, architecture, more, why):
    folder = published("llama", architectures=[architecture], **more)
    expected = (
        f"config.json: architectures: expected LlamaForCausalLM for model_type 'llama', found ['{architecture}']; {why}"
    )
    assert expected in refusal(folder)


def test_a_family_that_was_saved_again_is_known(published, tmp_path):
    model = sinkscope.load(str(published("llada")))
    again = SAVE["llada"](tmp_path / "again") if (tmp_path / "again").mkdir() is None else None
    model.network.save_pretrained(again)
    assert json.loads((again / "config.json").read_text())["architectures"] == ["FullPrecisionLlama"]
    assert sinkscope.load(str(again)).family is model.family


PUBLIC_KEYS = {  # of SmolLM2, Vicuna, TinyLlama, the first LLaMA, unsloth's copies
    "is_llama_config": True,
    "rope_interleaved": False,
    "max_sequence_length": 2048,
    "transformers.js_config": {"dtype": "q4"},
    "unsloth_fixed": True,
    "pad_token_id": -1,
    "temperature": 0.9,
    "top_p": 0.6,
    "max_length": 4096,
    "do_sample": True,
    "use_sliding_window": False,
    "sliding_window": None,
    "quantization": None,
    "head_dim": 16,
    "partial_rotary_factor": 1.0,
}
IGNORED = {
    "llada": {
        "mlp_ratio": 7,
        "precision": None,
        "init_std": 3.0,
        "attention_dropout": 0.5,
        "flash_attention": True,
        "alibi_bias_max": 1.0,
    },
    "mmada": {"codebook_size": 3, "llm_vocab_size": 5, "num_vq_tokens": 9, "gradient_checkpointing": True},
    "dream": {"max_window_layers": 3, "sliding_window": 7, "attention_dropout": 0.5, "use_cache": False},
    "llama": {"pretraining_tp": 4, "initializer_range": 0.5, "_name_or_path": "somewhere"} | PUBLIC_KEYS,
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
        *PUBLIC_KEYS,
    }


def test_a_size_that_is_null_falls_back(published):
    folder = published("llada", embedding_size=None, n_kv_heads=None)
    configure(folder, embedding_size=None, n_kv_heads=None)
    card = sinkscope.load(str(folder)).card
    assert (card.vocabulary, card.kv_heads) == (64, 4)


@pytest.mark.parametrize(
    ("name", "changes", "fragment"),
    [
        (
            "llada2",
            {"n_group": 3},
            "n_group: expected groups of two or more of the 16 experts, all of one size, found 3",
        ),
        (
            "llada2",
            {"n_group": 16},
            "n_group: expected groups of two or more of the 16 experts, all of one size, found 16",
        ),
        ("llada2", {"n_group": 1}, "topk_group: expected at most n_group 1, found 2"),
        ("llada2", {"topk_group": 7}, "topk_group: expected at most n_group 4, found 7"),
        (
            "llada2",
            {"num_experts_per_tok": 9},
            "num_experts_per_tok: expected at most the 8 experts of the chosen groups, found 9",
        ),
        (
            "llada_moe",
            {"num_experts_per_tok": 7},
            "num_experts_per_tok: expected at most the 5 experts of the chosen groups, found 7",
        ),
        ("llada2", {"num_experts": 1 << 20}, "num_experts: expected a whole number from 1 to "),
        ("llada_moe", {"num_experts": 1 << 20}, "num_experts: expected a whole number from 1 to "),
        (
            "llada2",
            {"partial_rotary_factor": 1.5},
            "partial_rotary_factor: expected an even part of the 16 dimensions",
        ),
        (
            "llada2",
            {"partial_rotary_factor": 0.2},
            "expected an even part of the 16 dimensions of a head, found 0.2",
        ),
        ("llada2", {"partial_rotary_factor": 1e-9}, "partial_rotary_factor: expected an even part"),
    ],
)
def test_a_mixture_that_cannot_choose_its_experts(published, name, changes, fragment):
    assert fragment in refusal(published(name, **changes))


@pytest.mark.parametrize(
    ("name", "key"), [("llada", "model_type"), ("llada", "embedding_size"), ("sdar", "vocab_size")]
)
@pytest.mark.parametrize("value", [[1], {"a": 1}], ids=str)
def test_a_list_or_an_object_in_the_place_of_a_word_or_a_number(published, name, key, value):
    folder = published(name)
    configure(folder, **{key: value})
    assert f"{key}: expected" in refusal(folder)


def test_a_base_of_the_rotations_beyond_all_bounds(published):
    folder = published("llama")
    for theta, expected in ((float("nan"), "above 0, found nan"), (10**400, "below 1e+300, found 1000")):
        configure(folder, rope_theta=theta)
        assert f"rope_theta: expected a number {expected}" in refusal(folder)
    configure(folder, rope_theta=10**30)
    assert sinkscope.load(folder)
