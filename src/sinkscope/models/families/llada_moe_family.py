"""LLaDA-MoE: a mixture of experts that diffuses; transformers' Qwen3-MoE, looking both ways, computes it."""

from collections.abc import Mapping
from typing import Any

from sinkscope.models.family import Family
from sinkscope.models.layouts import STOCK, Fixed, Layout

QWEN3 = STOCK["qwen3"]
ARCHITECTURES = ("LLaDAMoEModelLM", "LLaDAMoEModel")


def is_mixture(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json that says ``llada`` is LLaDA-MoE's: by its class."""
    return config.get("model_type") in ("llada", "lladamoe") and bool(
        {*ARCHITECTURES} & {*(config.get("architectures") or [])}
    )


FAMILY = Family(
    "llada_moe",
    causal=False,
    sampler="llada",
    model_types=("lladamoe",),
    source="inclusionAI/dInfer, tools/modeling_fused_lladamoe.py",
    architectures=ARCHITECTURES,
    claims=is_mixture,
    layout=Layout(
        body="qwen3_moe",
        sizes={
            **{
                name: name
                for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
            },
            **{name: name for name in ("vocab_size", "max_position_embeddings", "num_experts", "num_experts_per_tok")},
            "expert_intermediate_size": "moe_intermediate_size",
        },
        fallbacks={"num_key_value_heads": "num_attention_heads"},
        numbers={"rms_norm_eps": "rms_norm_eps", "rope_theta": "rope_theta"},
        flags={"tie_word_embeddings": "tie_word_embeddings"},
        fixed={
            **QWEN3.fixed,
            "hidden_act": Fixed(("silu",), "silu"),
            "rope_scaling": Fixed((None,), None),
            "attention_bias": Fixed((False,), False),
            "clip_qkv": Fixed((None,), None),
            "qk_layernorm": Fixed((True,), None),
            "shared_expert_intermediate_size": Fixed((None,), -1),
            "moe_router_enable_expert_bias": Fixed((False, None), None),
        },
        repeated={"moe_layer_freq": 1, **QWEN3.repeated},
        # The published code takes the softmax of the router and does not normalise it again, whatever these say.
        ignored=QWEN3.ignored
        | {
            "norm_topk_prob",
            "moe_router_score_function",
            "routed_scaling_factor",
            "router_num_group",
            "router_topk_group",
        }
        | {"dense_intermediate_size", "output_router_logits", "router_aux_loss_coef"},
        given={"norm_topk_prob": False},
        absent={"mask_token_id": 156895},  # not in the published config.json; compared with the tokenizer's
    ),
    mask_text="<|mask|>",
)
