"""LLaDA, a bidirectional Llama whose config keys and tensors have names of their own, and two families like it.

MMaDA is LLaDA with codes of images behind the text tokens, which text never uses. SMDM are paper 2's own models ("One
Token Is Enough"), in the folders that `sinkscope convert` writes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sinkscope.models.family import IGNORED, NEVER, NUMBERS, Family, Fixed, Layout, PublishedShape

_BLOCK = {
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",  # the one that goes through SiLU
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
LAYOUT = Layout(
    body="llama",
    sizes={
        "d_model": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "mlp_hidden_size": "intermediate_size",
        "embedding_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings",
    },
    fallbacks={"n_kv_heads": "n_heads", "embedding_size": "vocab_size"},
    numbers=NUMBERS,
    flags={"weight_tying": "tie_word_embeddings", "tie_word_embeddings": "tie_word_embeddings"},
    fixed={
        "block_type": Fixed(("llama",), "sequential"),
        "activation_type": Fixed(("silu",), "swiglu"),
        "layer_norm_type": Fixed(("rms",), "default"),
        "layer_norm_with_affine": Fixed((True,), True),
        "bias_for_layer_norm": Fixed((False, None), None),
        "rope": Fixed((True,), False),
        "rope_scaling": Fixed((None,), None),
        "alibi": Fixed((False,), False),
        "include_bias": Fixed((False,), False),
        "include_qkv_bias": Fixed((False, None), False),
        "attention_layer_norm": Fixed((False,), False),
        "input_emb_norm": Fixed((False,), False),
        "scale_logits": Fixed((False,), False),
        "multi_query_attention": Fixed((False, None), None),
        "block_group_size": Fixed((1,), 1),
        "clip_qkv": Fixed((None,), None),
        **NEVER,
    },
    ignored=IGNORED
    | set(
        "vocab_size mlp_ratio attention_layer_norm_with_affine residual_dropout embedding_dropout flash_attention "
        "alibi_bias_max init_fn init_device init_std init_cutoff_factor precision".split()
    ),
    full_precision_rotary="rope_full_precision",
    tensors={
        "model.transformer.ff_out.weight": "lm_head.weight",
        "model.transformer.wte.weight": "model.embed_tokens.weight",
        "model.transformer.ln_f.weight": "model.norm.weight",
        **{
            f"model.transformer.blocks.{{N}}.{theirs}.weight": f"model.layers.{{N}}.{ours}.weight"
            for theirs, ours in _BLOCK.items()
        },
    },
)
_IMAGE_KEYS = frozenset(
    "llm_vocab_size llm_model_path codebook_size num_vq_tokens num_new_special_tokens new_vocab_size".split()
)
_MMADA_VOCABULARY = 134656  # text tokens, special tokens and codes of images


def _template(newlines: str) -> str:
    """Return Llama 3's chat template as LLaDA and MMaDA write it; they differ in the newlines after a header."""
    header = "<|start_header_id|>%s<|end_header_id|>" + newlines
    turn = header % "{{ message['role'] }}" + "{{ message['content'] | trim }}<|eot_id|>"
    first = "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    return first + turn + "{% endfor %}{% if add_generation_prompt %}" + header % "assistant" + "{% endif %}"


def _has_image_codes(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json that says ``llada`` is MMaDA's: by its class, its keys or its vocabulary."""
    rows = [config.get(key) for key in ("embedding_size", "vocab_size", "new_vocab_size")]
    named = (config.get("architectures") or []) == ["MMadaModelLM"]
    return config.get("model_type") == "llada" and bool(_MMADA_VOCABULARY in rows or _IMAGE_KEYS & set(config) or named)


LLADA = Family(
    "llada",
    causal=False,
    sampler="llada",
    model_types=("llada", "llama"),
    source="ML-GSAI/LLaDA, generate.py",
    layout=LAYOUT,
    architectures=("LLaDAModelLM",),
    mask_text="<|mdm_mask|>",
    chat_template=_template("\n\n"),
    chat_tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    shapes=(PublishedShape("GSAI-ML/LLaDA-8B-Base", 8_015_581_184, 32, 4096, vocabulary=126464),),
)
MMADA = replace(
    LLADA,
    name="mmada",
    sampler="mmada",
    model_types=("mmada",),
    source="Gen-Verse/MMaDA, generate.py",
    layout=replace(
        LAYOUT,
        fixed={**LAYOUT.fixed, "w_clip_vit": Fixed((False,), False)},
        ignored=LAYOUT.ignored | _IMAGE_KEYS | {"pretrained_model_path", "tokenizer_path"},
    ),
    architectures=("LLaDAModelLM", "MMadaModelLM"),
    claims=_has_image_codes,
    chat_template=_template("\n"),
    shapes=(PublishedShape("Gen-Verse/MMaDA-8B-Base", 8_082_690_048, 32, 4096, vocabulary=_MMADA_VOCABULARY),),
)
SMDM = Family(
    "smdm",
    causal=False,
    sampler="llada",
    model_types=(),  # known by the family's name in its config.json
    source="skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel_extratoken.py",
    architectures=("MasklessHeadLlama",),
    network="sinkscope.models.networks:MasklessHeadLlama",
)
