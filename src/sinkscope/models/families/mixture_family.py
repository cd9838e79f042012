"""Mixtures of experts that diffuse: LLaDA-MoE, which transformers' Qwen3-MoE, looking both ways, computes; and LLaDA 2,
which writes block by block and is a GLM-4-MoE.
"""

from sinkscope.models.family import NUMBERS, STOCK, TIED, UNROTATED, Family, Fixed, Layout, same

QWEN3 = STOCK["qwen3"]
_LAYER = "model.layers.{N}."
_MOE = ("LLaDAMoEModelLM", "LLaDAMoEModel")

LLADA_MOE = Family(
    "llada_moe",
    causal=False,
    sampler="llada",
    model_types=("lladamoe",),
    source="inclusionAI/dInfer, tools/modeling_fused_lladamoe.py",
    architectures=_MOE,
    claims=lambda config: (  # also one that says ``llada``, by its class
        config.get("model_type") in ("llada", "lladamoe") and bool({*_MOE} & {*(config.get("architectures") or [])})
    ),
    layout=Layout(
        body="qwen3_moe",
        sizes={
            **same("hidden_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size"),
            **same("max_position_embeddings num_experts num_experts_per_tok"),
            "expert_intermediate_size": "moe_intermediate_size",
        },
        fallbacks={"num_key_value_heads": "num_attention_heads"},
        numbers=NUMBERS,
        flags=TIED,
        fixed={
            **QWEN3.fixed,
            **UNROTATED,
            "attention_bias": Fixed((False,), False),
            "clip_qkv": Fixed((None,), None),
            "qk_layernorm": Fixed((True,), None),
            "shared_expert_intermediate_size": Fixed((None,), -1),
            "moe_router_enable_expert_bias": Fixed((False, None), None),
        },
        repeated={"moe_layer_freq": 1, **QWEN3.repeated},
        # The published code takes the softmax of the router and does not normalise it again, whatever these say.
        ignored=QWEN3.ignored
        | set(
            "norm_topk_prob moe_router_score_function routed_scaling_factor router_num_group router_topk_group "
            "dense_intermediate_size output_router_logits router_aux_loss_coef".split()
        ),
        given={"norm_topk_prob": False},
        absent={"mask_token_id": 156895},  # not in the published config.json; compared with the tokenizer's
    ),
    mask_text="<|mask|>",
)
LLADA2 = Family(
    "llada2",
    causal=False,
    sampler="llada2",
    model_types=("llada2_moe",),
    source="inclusionAI/LLaDA2.0-mini, modeling_llada2_moe.py, as ZHZisZZ/dllm carries it",
    architectures=("LLaDA2MoeModelLM",),
    network="sinkscope.models.networks:BlockCausalMixture",
    layout=Layout(
        body="glm4_moe",
        sizes={
            **same("hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim"),
            **same("vocab_size max_position_embeddings block_size num_experts_per_tok moe_intermediate_size"),
            **same("first_k_dense_replace n_group topk_group"),
            "num_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
        },
        numbers={**NUMBERS, **same("partial_rotary_factor routed_scaling_factor")},
        flags=TIED,
        fixed={
            **{key: rule for key, rule in QWEN3.fixed.items() if key != "partial_rotary_factor"},
            **UNROTATED,
            "use_qk_norm": Fixed((True,), True),
            "use_qkv_bias": Fixed((False,), False),
            "use_bias": Fixed((False,), True),
            "norm_head": Fixed((False,), False),
            "norm_topk_prob": Fixed((True,), True),
            "score_function": Fixed(("sigmoid",), "sigmoid"),
            "router_dtype": Fixed(("fp32", None), None),
            "moe_router_enable_expert_bias": Fixed((True,), True),
            "use_rmsnorm": Fixed((True,), True),
        },
        repeated=QWEN3.repeated,
        ignored=QWEN3.ignored | {"embedding_dropout", "output_dropout", "output_router_logits"},
        given={"use_qk_norm": True, "attention_bias": False, "num_mtp_layers": 0},
        # Arguments of the published ``generate``, whose config class names none of them.
        absent={"block_size": 32, "mask_token_id": 156895, "eos_token_id": 156892},
        tensors={
            "model.word_embeddings.weight": "model.embed_tokens.weight",
            f"{_LAYER}attention.query_key_value.weight": f"{_LAYER}self_attn.query_key_value.weight",
            f"{_LAYER}attention.query_layernorm.weight": f"{_LAYER}self_attn.q_norm.weight",
            f"{_LAYER}attention.key_layernorm.weight": f"{_LAYER}self_attn.k_norm.weight",
            f"{_LAYER}attention.dense.weight": f"{_LAYER}self_attn.o_proj.weight",
            f"{_LAYER}mlp.gate.expert_bias": f"{_LAYER}mlp.gate.e_score_correction_bias",
        },
    ),
    mask_text="<|mask|>",
)
