"""Tiny networks whose weights follow from a seed alone, the same under any version of transformers; it imports nothing
of ours.
"""

import zlib
from contextlib import contextmanager

import torch

VOCABULARY, MASK, EOS, EOT = 61, 60, 59, 58


def seeded_network(kind, seed, layers=2):
    """A random bidirectional (`llama`, `qwen2`) or causal (`causal`, `qwen3`) network of 61 tokens that writes varied
    tokens.
    """
    import transformers

    shape = {"num_hidden_layers": layers, "vocab_size": VOCABULARY, "max_position_embeddings": 128}
    if kind in ("qwen2", "qwen3"):
        shape |= {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 64}
        shape |= {"head_dim": 16} if kind == "qwen3" else {}
    else:
        shape |= {"hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5, "intermediate_size": 56}
    body = {"qwen2": "Qwen2", "qwen3": "Qwen3"}.get(kind, "Llama")
    config = getattr(transformers, f"{body}Config")(attn_implementation="sdpa", tie_word_embeddings=False, **shape)
    config.is_causal = kind in ("causal", "qwen3")
    return seed_weights(getattr(transformers, f"{body}ForCausalLM")(config), seed).eval()


@torch.no_grad()
def seed_weights(network, seed):
    """Give a network the weights that follow from their names and a seed."""
    for name, weight in network.named_parameters():
        weight.copy_(_weight(name, weight.shape, seed))
    return network


def _weight(name, shape, seed):
    source = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    drawn = torch.randn(shape, generator=source)
    if "norm" in name.lower():
        return 1 + 0.1 * drawn
    if "bias" in name:
        return 0.5 * drawn
    gain = 3 if any(part in name for part in ("q_proj", "k_proj", "o_proj", "lm_head")) else 1
    if "lm_head" in name:
        drawn[MASK] = 0  # a network that predicts masks is made by `leaning`
    return drawn if "embed" in name else gain * drawn / shape[1] ** 0.5


@contextmanager
def leaning(network, amounts, dtype=None):
    """Adds amounts to the logits of some tokens, ``{token: amount}``, and gives all logits in another dtype."""

    def lean(module, args, logits):
        logits = logits.clone()
        for token, amount in amounts.items():
            logits[..., int(token)] += amount
        return logits if dtype is None else logits.to(dtype)

    handle = network.lm_head.register_forward_hook(lean)
    try:
        yield
    finally:
        handle.remove()
