"""A small Llama with weights drawn by NumPy, which sinkscope, TransformerLens and tuned-lens read alike."""

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = np.random.default_rng(1).integers(0, 50, 12)


def small_llama():
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        rms_norm_eps=1e-5,
    )
    network, rng = LlamaForCausalLM(config).eval(), np.random.default_rng(0)
    with torch.no_grad():
        for name, one in sorted(network.named_parameters()):
            drawn = rng.normal(1 if "norm" in name else 0, 0.3, one.shape)
            one.copy_(torch.from_numpy(drawn))
    return network
