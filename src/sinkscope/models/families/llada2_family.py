"""LLaDA 2: a mixture of experts that writes block by block, each block by diffusion; GLM-4-MoE of transformers computes
it.
"""

from sinkscope.models.family import Family
from sinkscope.models.layouts import STOCK, Fixed, Layout

QWEN3 = STOCK["qwen3"]
_SAME = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)
_MIXTURE = ("num_experts_per_tok", "moe_intermediate_size", "first_k_dense_replace", "n_group", "topk_group")
_LAYER = "model.layers.{N}."

FAMILY = Family(
    "llada2",
    causal=False,
    sampler="llada2",
    model_types=("llada2_moe",),
    source="inclusionAI/LLaDA2.0-mini, modeling_llada2_moe.py, as ZHZisZZ/dllm carries it",
    architectures=("LLaDA2MoeModelLM",),
    network="sinkscope.models.block_causal:BlockCausalMixture",
    layout=Layout(
        body="glm4_moe",
        sizes={
            **{name: name for name in (*_SAME, *_MIXTURE, "max_position_embeddings", "block_size")},
            "num_experts": "n_routed_experts",
            "num_shared_experts": "n_shared_experts",
        },
        optional=frozenset({"head_dim"}),
        numbers={
            name: name for name in ("rms_norm_eps", "rope_theta", "partial_rotary_factor", "routed_scaling_factor")
        },
        flags={"tie_word_embeddings": "tie_word_embeddings"},
        fixed={
            **{key: rule for key, rule in QWEN3.fixed.items() if key != "partial_rotary_factor"},
            "hidden_act": Fixed(("silu",), "silu"),
            "rope_scaling": Fixed((None,), None),
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
