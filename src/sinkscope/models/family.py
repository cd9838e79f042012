"""The record of a family of checkpoints, and how its folders are written, as data: keys of config.json, tensor names.

Each key is handled, knowingly ignored, or held to the values that are modelled; `conversion` judges any other key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

MARK = "sinkscope_family"
"""Key of config.json by which a family is known again once it was saved in transformers' own layout."""
MARK_ROTARY = "sinkscope_full_precision_rotary"
MARK_POSITIONS = "sinkscope_learned_positions"
MARK_FIRST = "sinkscope_first_alone"
"""Key of config.json of a Llama with learned absolute positions instead of rotations."""

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""The kinds of rotation that do not change with the length of the text, by transformers' names."""


@dataclass(frozen=True)
class Fixed:
    """A key that is modelled for some values only; ``default`` is what the published code takes without the key."""

    allowed: tuple[Any, ...]
    default: Any


@dataclass(frozen=True)
class Layout:
    """One kind of checkpoint folder.

    Attributes:
        body: transformers' network that computes the same.
        sizes: whole numbers above 0: key → transformers' name.
        fallbacks: a size that is missing or null is that of another key.
        numbers: other numbers above 0: key → transformers' name.
        flags: true or false: key → transformers' name.
        optional: sizes that may be missing; the network then has its own.
        absent: what the published code takes where a key is missing or null.
        repeated: keys that hold one value for each layer; only this value is modelled.
        given: fields of transformers' config that are the same for every folder.
        passed: keys that transformers' config takes as they are.
        fixed: keys with the only values that are modelled.
        ignored: keys without effect on what a forward pass computes.
        full_precision_rotary: queries and keys are rotated in fp32 whatever the dtype, unless this key says otherwise.
        tensors: published name → transformers' name, ``{N}`` is the number of a layer; empty where they are the same.
    """

    body: Literal["llama", "qwen2", "qwen3", "qwen3_moe", "glm4_moe"]
    sizes: Mapping[str, str]
    numbers: Mapping[str, str]
    flags: Mapping[str, str]
    fixed: Mapping[str, Fixed]
    ignored: frozenset[str]
    fallbacks: Mapping[str, str] = field(default_factory=dict)
    optional: frozenset[str] = frozenset({"head_dim"})
    absent: Mapping[str, int] = field(default_factory=dict)
    repeated: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    full_precision_rotary: str | None = None
    tensors: Mapping[str, str] = field(default_factory=dict)


def same(keys: str) -> dict[str, str]:
    """Return keys that transformers calls by the same name."""
    return {key: key for key in keys.split()}


# What transformers writes into any config.json, and what speaks of training, storage or the library only.
IGNORED = frozenset(
    "model_type architectures auto_map dtype torch_dtype transformers_version _name_or_path name_or_path use_cache "
    "return_dict output_hidden_states output_attentions id2label label2id problem_type finetuning_task "
    "task_specific_params tokenizer_class prefix torchscript use_bfloat16 gradient_checkpointing attention_dropout "
    "initializer_range pretraining_tp _attn_implementation attn_implementation _attn_implementation_autoset "
    "quantization_config unsloth_fixed unsloth_version _commit_hash transformers.js_config model_max_length "
    "use_flash_attention _flash_attn_2_enabled keys_to_ignore_at_inference "
    # How transformers' generate() would write, which sinkscope never calls; older releases kept it in config.json.
    "max_length min_length do_sample early_stopping num_beams temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate "
    "forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens diversity_penalty num_beam_groups encoder_no_repeat_ngram_size sep_token_id "
    "decoder_start_token_id tf_legacy_loss max_new_tokens chunk_size_feed_forward license version model_name "
    "tokenizer_name max_batch_size weight_decay".split()
)
NEVER = {  # keys that transformers or a publisher reads, and that would make it another network
    "is_encoder_decoder": Fixed((False,), False),
    "quantization": Fixed((None,), None),
    "compression_config": Fixed((None,), None),
    "partial_rotary_factor": Fixed((None, 1, 1.0), None),
}
UNROTATED = {"hidden_act": Fixed(("silu",), "silu"), "rope_scaling": Fixed((None,), None)}
"""Two keys of published diffusing checkpoints, which have one activation and plain rotations."""
NUMBERS, TIED = same("rms_norm_eps rope_theta"), same("tie_word_embeddings")
SIZES = same(
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads intermediate_size vocab_size "
    "max_position_embeddings"
)
_PASSED = frozenset({"hidden_act", MARK, MARK_ROTARY, "is_causal", "rope_theta", "rope_scaling", "rope_parameters"})

_LLAMA = Layout(
    body="llama",
    sizes={**SIZES, "head_dim": "head_dim"},
    fallbacks={"num_key_value_heads": "num_attention_heads"},
    optional=frozenset({"head_dim", "max_position_embeddings", "rms_norm_eps", "block_size"}),
    numbers=same("rms_norm_eps"),
    flags=same("tie_word_embeddings attention_bias mlp_bias"),
    passed=_PASSED | {MARK_POSITIONS, MARK_FIRST},
    # Masks and caches of transformers read a window from any config.
    fixed={**NEVER, "sliding_window": Fixed((None,), None), "attention_chunk_size": Fixed((None,), None)},
    repeated={"layer_types": "full_attention"},
    ignored=IGNORED,
)
_QWEN2 = replace(
    _LLAMA,
    body="qwen2",
    sizes={**_LLAMA.sizes, "block_size": "block_size"},  # Fast-dLLM v2 and SDAR have blocks
    flags=TIED,
    passed=_PASSED,
    fixed={**NEVER, "use_sliding_window": Fixed((False, None), False), "attention_chunk_size": Fixed((None,), None)},
    ignored=IGNORED | {"sliding_window", "max_window_layers"},  # read with use_sliding_window only
)
_QWEN3 = replace(_QWEN2, body="qwen3", flags=same("tie_word_embeddings attention_bias"))

STOCK = {"llama": _LLAMA, "qwen2": _QWEN2, "qwen3": _QWEN3}
BODIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM"),
    "glm4_moe": ("Glm4MoeConfig", "Glm4MoeForCausalLM"),
}
"""The classes of transformers that compute each body: its config and its network."""


@dataclass(frozen=True)
class PublishedShape:
    """The size of a published checkpoint; a model with its layers, width and vocabulary is taken for it or its kin."""

    checkpoint: str
    parameters: int
    layers: int
    hidden_size: int
    vocabulary: int


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        name: in the literature; a folder that transformers saved again keeps it in its config.json.
        causal: whether a token attends only to the tokens before it.
        sampler: the module of `sinkscope.decoding` that writes with it.
        model_types: values of ``model_type`` in its config.json files; of ``llama`` and ``qwen2``, transformers' own
            layout, a causal family claims the causal ones, another family those with ``is_causal`` false.
        source: where its settings were read.
        layout: config keys and tensor names of its published folders; None where they are transformers' own.
        architectures: names of the network in its published config.json files; another name is refused.
        claims: whether a config.json with another family's ``model_type`` is of this one.
        network: ``module:Class``, where no network of transformers computes it.
        tokenizer_classes: names of Qwen2Tokenizer in its tokenizer_config.json.
        shift: whether the logits of a position predict the token after it, as in a causal model.
        mask_text: the text of the mask token in the published tokenizers.
        end_of_turn: the token that ends a turn of a conversation, beside EOS.
        chat_template, chat_tokens: Jinja for tokenizers without a template, and the control tokens that it needs.
    """

    name: str
    causal: bool
    sampler: str
    model_types: tuple[str, ...]
    source: str
    layout: Layout | None = None
    architectures: tuple[str, ...] = ()
    claims: Callable[[Mapping[str, Any]], bool] | None = None
    network: str | None = None
    tokenizer_classes: tuple[str, ...] = ()
    shift: bool = False
    mask_text: str | None = None
    end_of_turn: int | None = None
    chat_template: str | None = None
    chat_tokens: tuple[str, ...] = ()
    shapes: tuple[PublishedShape, ...] = ()
