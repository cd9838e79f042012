"""Tiny checkpoints with the published config keys and tensor names; weights from a seed, the same everywhere."""

import json
from dataclasses import dataclass, field

import numpy as np
import torch
from safetensors.torch import save_file

MASK, EOS, BOS = 60, 57, 56

REMOTE = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}


def all_of(value, keys):
    return dict.fromkeys(keys.split(), value)


LLADA_CONFIG = {
    "activation_type": "silu",
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_layer_norm_with_affine": True,
    "auto_map": REMOTE,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 48,
    "embedding_size": 64,
    "eos_token_id": EOS,
    "init_device": "meta",
    "init_fn": "mitchell",
    "init_std": 0.02,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": MASK,
    "max_sequence_length": 128,
    "mlp_hidden_size": 88,
    "mlp_ratio": 4,
    "model_type": "llada",
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 3,
    "pad_token_id": EOS,
    "precision": "amp_bf16",
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "transformers_version": "4.46.3",
    "vocab_size": 64,
    **all_of(False, "alibi attention_layer_norm bias_for_layer_norm flash_attention include_bias include_qkv_bias"),
    **all_of(False, "input_emb_norm scale_logits use_cache weight_tying"),
    **all_of(None, "init_cutoff_factor multi_query_attention"),
    **all_of(0.0, "attention_dropout embedding_dropout residual_dropout"),
}
MMADA_CONFIG = LLADA_CONFIG | {
    "architectures": ["MMadaModelLM"],
    "model_type": "mmada",
    "codebook_size": 16,
    "llm_vocab_size": 64,
    "new_vocab_size": 80,
    "num_new_special_tokens": 0,
    "num_vq_tokens": 4,
    "tie_word_embeddings": False,
    "vocab_size": 80,
    "embedding_size": 80,
    "n_kv_heads": 2,
}
_STOCK = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
_DIFFUSING = _STOCK | {"eos_token_id": EOS, "mask_token_id": MASK, "max_position_embeddings": 128, "rope_scaling": None}
_DIFFUSING |= {"auto_map": REMOTE}
_SMALL = _DIFFUSING | {"hidden_size": 48, "num_hidden_layers": 3, "vocab_size": 64}
DREAM_CONFIG = _DIFFUSING | {
    "architectures": ["DreamModel"],
    "bos_token_id": EOS,
    "hidden_size": 56,
    "intermediate_size": 72,
    "max_window_layers": 28,
    "model_type": "Dream",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pad_token_id": EOS,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "transformers_version": "4.46.2",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 62,
}
LLAMA_CONFIG = _STOCK | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": BOS,
    "eos_token_id": [EOS, EOS + 1],
    "hidden_size": 64,
    "intermediate_size": 72,
    "max_position_embeddings": 512,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "transformers_version": "4.43.0",
    "use_cache": True,
    "vocab_size": 63,
}

SDAR_CONFIG = _SMALL | {
    "architectures": ["SDARForCausalLM"],
    "attn_implementation": "flex_attention",
    "bos_token_id": EOS,
    "block_size": 4,
    "ep_size": 1,
    "fuse_cross_entropy": True,
    "head_dim": 16,
    "intermediate_size": 72,
    "max_window_layers": 36,
    "micro_forward": False,
    "model_type": "sdar",
    "num_attention_heads": 6,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000,
    "sliding_window": None,
    "transformers_version": "4.52.4",
    **all_of(False, "attention_bias debug skip_checkpoint use_cache use_deepep use_sliding_window"),
}

LLADA_MOE_CONFIG = _SMALL | {
    "architectures": ["LLaDAMoEModelLM"],
    "attention_bias": False,
    "dense_intermediate_size": 72,
    "expert_intermediate_size": 24,
    "model_type": "llada",
    "moe_layer_freq": [1, 1, 1],
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "num_attention_heads": 4,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "pad_token_id": EOS,
    "partial_rotary_factor": 1,
    "qk_layernorm": True,
    "rms_norm_eps": 1e-05,
    "rope_theta": 50000,
    "routed_scaling_factor": 1,
    "router_aux_loss_coef": 0.01,
    "transformers_version": "4.46.3",
    "use_cache": False,
    **all_of(
        None, "bos_token_id clip_qkv norm_topk_prob router_num_group router_topk_group shared_expert_intermediate_size"
    ),
}

LLADA2_CONFIG = _SMALL | {  # the arguments of the published config class; its config.json was not seen
    "architectures": ["LLaDA2MoeModelLM"],
    "block_size": 4,
    "embedding_dropout": 0.0,
    "first_k_dense_replace": 1,
    "head_dim": 16,
    "intermediate_size": 56,
    "max_window_layers": 28,
    "model_type": "llada2_moe",
    "moe_intermediate_size": 24,
    "n_group": 4,
    "num_attention_heads": 6,
    "num_experts": 16,
    "num_experts_per_tok": 3,
    "num_shared_experts": 2,
    "output_dropout": 0.0,
    "pad_token_id": EOS,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-06,
    "rope_theta": 600000.0,
    "routed_scaling_factor": 2.5,
    "sliding_window": 4096,
    "topk_group": 2,
    "transformers_version": "4.56.2",
    "use_qk_norm": True,
    **all_of(False, "norm_head output_router_logits use_bias use_cache use_qkv_bias use_sliding_window"),
}


@dataclass(frozen=True)
class Tiny:
    """One tiny checkpoint: its config, the seed of its weights, and what it is asked."""

    config: dict
    seed: int
    length: int = 12
    padding: int = 0
    shapes: dict = field(default_factory=dict)

    @property
    def tokens(self):
        """int64 [1, length], every third a mask where there is one."""
        tokens = np.random.RandomState(self.seed + 1).randint(0, 50, size=(1, self.length))
        if "mask_token_id" in self.config:
            tokens[:, ::3] = self.config["mask_token_id"]
        return torch.from_numpy(tokens)

    @property
    def real(self):
        """int64 [1, length], 0 on the padding in front."""
        real = torch.ones(1, self.length, dtype=torch.long)
        real[:, : self.padding] = 0
        return real

    @property
    def terms(self):
        """Numbers that are added up on the way to a logit (see closeness.py)."""
        layers = self.config.get("n_layers") or self.config["num_hidden_layers"]
        return sum(shape[-1] for shape in self.shapes.values()) + 2 * layers * self.length


def llada_shapes(config):
    """Published name → shape."""
    width, inner = config["d_model"], config["mlp_hidden_size"]
    keys = config["n_kv_heads"] * width // config["n_heads"]
    shapes = {"wte": (config["embedding_size"], width), "ln_f": (width,), "ff_out": (config["embedding_size"], width)}
    for number in range(config["n_layers"]):
        block = all_of((width,), "attn_norm ff_norm") | all_of((width, width), "q_proj attn_out")
        block |= all_of((keys, width), "k_proj v_proj") | all_of((inner, width), "ff_proj up_proj")
        block["ff_out"] = (width, inner)
        shapes |= {f"blocks.{number}.{name}": shape for name, shape in block.items()}
    return {f"model.transformer.{name}.weight": shape for name, shape in shapes.items()}


def stock_shapes(config, biases, norms=False):
    width, inner, rows = config["hidden_size"], config.get("intermediate_size"), config["vocab_size"]
    dim = config.get("head_dim", width // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        "model.embed_tokens.weight": (rows, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (rows, width),
    }
    for number in range(config["num_hidden_layers"]):
        layer = all_of((width,), "input_layernorm.weight post_attention_layernorm.weight")
        layer |= all_of((keys, width), "self_attn.k_proj.weight self_attn.v_proj.weight")
        layer |= {"self_attn.q_proj.weight": (queries, width), "self_attn.o_proj.weight": (width, queries)}
        experts = [f".experts.{one}" for one in range(config.get("num_experts", 0))] or [""]
        inner = config.get("expert_intermediate_size", inner)
        for one in experts:
            layer |= {f"mlp{one}.{name}_proj.weight": (inner, width) for name in ("gate", "up")} | {
                f"mlp{one}.down_proj.weight": (width, inner)
            }
        if "num_experts" in config:
            layer["mlp.gate.weight"] = (config["num_experts"], width)
        if biases:
            layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", width), ("k", keys), ("v", keys))}
        if norms:
            layer |= {f"self_attn.{name}_norm.weight": (dim,) for name in "qk"}
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


def llada2_shapes(config):
    """Published name → shape: one tensor for queries, keys and values, dense layers first, then experts with a router
    and shared ones.
    """
    width, rows, dim, count = config["hidden_size"], config["vocab_size"], config["head_dim"], config["num_experts"]
    heads, keys, inner = config["num_attention_heads"], config["num_key_value_heads"], config["moe_intermediate_size"]
    shapes = {
        "model.word_embeddings.weight": (rows, width),
        "model.norm.weight": (width,),
        "lm_head.weight": (rows, width),
    }
    for number in range(config["num_hidden_layers"]):
        layer = all_of((width,), "input_layernorm.weight post_attention_layernorm.weight")
        layer |= all_of((dim,), "attention.query_layernorm.weight attention.key_layernorm.weight")
        layer["attention.query_key_value.weight"] = ((heads + 2 * keys) * dim, width)
        layer["attention.dense.weight"] = (width, heads * dim)
        sizes = {"mlp": config["intermediate_size"]}
        if number >= config["first_k_dense_replace"]:
            sizes = {f"mlp.experts.{one}": inner for one in range(count)}
            sizes["mlp.shared_experts"] = config["num_shared_experts"] * inner
            layer |= {"mlp.gate.weight": (count, width), "mlp.gate.expert_bias": (count,)}
        for name, size in sizes.items():
            layer |= {f"{name}.{one}_proj.weight": (size, width) for one in ("gate", "up")} | {
                f"{name}.down_proj.weight": (width, size)
            }
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return shapes


TINY = {
    "llada": Tiny(LLADA_CONFIG, 1, shapes=llada_shapes(LLADA_CONFIG)),
    "llada-padded": Tiny(LLADA_CONFIG, 1, padding=4, shapes=llada_shapes(LLADA_CONFIG)),
    "mmada": Tiny(MMADA_CONFIG, 2, shapes=llada_shapes(MMADA_CONFIG)),
    "dream": Tiny(DREAM_CONFIG, 3, shapes=stock_shapes(DREAM_CONFIG, biases=True)),
    "dream-padded": Tiny(DREAM_CONFIG, 3, padding=3, shapes=stock_shapes(DREAM_CONFIG, biases=True)),
    "llama": Tiny(LLAMA_CONFIG, 4, shapes=stock_shapes(LLAMA_CONFIG, biases=False)),
    "llada_moe": Tiny(LLADA_MOE_CONFIG, 6, shapes=stock_shapes(LLADA_MOE_CONFIG, biases=False, norms=True)),
    "llada2": Tiny(LLADA2_CONFIG, 7, length=14, shapes=llada2_shapes(LLADA2_CONFIG)),
    "sdar": Tiny(SDAR_CONFIG, 5, length=14, shapes=stock_shapes(SDAR_CONFIG, biases=False, norms=True)),
}


def weights(tiny):
    """Drawn with NumPy's frozen legacy generator, in order of their names, large enough for attention to be sharp."""
    source, drawn = np.random.RandomState(tiny.seed), {}
    for name in sorted(tiny.shapes):
        shape = tiny.shapes[name]
        values = source.standard_normal(shape).astype(np.float32)
        scale = 1.0 if len(shape) == 1 or "wte" in name or "embed" in name else float(1.6 / np.sqrt(shape[-1]))
        drawn[name] = torch.from_numpy(1 + 0.2 * values if len(shape) == 1 and "bias" not in name else scale * values)
    return drawn


def save_tiny(name, folder, shards=1, **changes):
    """Writes a folder as it is published; ``changes`` are of its config, None removes a key."""
    tiny = TINY[name]
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in (tiny.config | changes).items() if value is not None or key not in changes}
    (folder / "config.json").write_text(json.dumps(config))
    drawn = weights(tiny)
    if shards == 1:
        save_file(drawn, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names, index = sorted(drawn), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        mine = names[number::shards]
        save_file({one: drawn[one] for one in mine}, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(mine, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder
