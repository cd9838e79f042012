"""A sink token the published way, as rows of the sequence under an explicit mask, and small networks that have one."""

import torch
import transformers

from sinkscope.lab.prompts import build_tokenizer
from sinkscope.models import SinkToken, add_sink_token

SHAPE = {
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "max_position_embeddings": 256,
}


def body(kind="llama", causal=False, kv_heads=5, seed=0, tokenizer=None):
    """A random network that attends sharply, without a sink."""
    tokenizer = tokenizer or build_tokenizer()
    classes = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
        "qwen2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config),
    }
    network_class, config_class = classes[kind]
    more = {
        "vocab_size": len(tokenizer),
        "num_key_value_heads": kv_heads,
        "pad_token_id": None,
        "eos_token_id": 1,
        "bos_token_id": 0,
    }
    config = config_class(**SHAPE, **more)
    config.is_causal = causal
    if not causal:
        config.mask_token_id = tokenizer.mask_token_id
        config.sinkscope_family = "llada"
    torch.manual_seed(seed)
    network = network_class(config).eval()
    sharpen(network)
    return network


@torch.no_grad()
def sharpen(network):
    for name, parameter in network.named_parameters():
        if parameter.ndim == 2:
            parameter.mul_(20 if "embed" in name else 6)
        if "bias" in name:
            parameter.normal_()


@torch.no_grad()
def trained(network):
    """Moves the parameters of a sink away from where they began."""
    for parameter in network.model.sink_token.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    return network


def with_sink(variant=None, **shape):
    return trained(add_sink_token(body(**shape), variant or SinkToken()))


def save(network, folder):
    network.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


def dense_logits(plain, embedding, tokens, *, end=False, zero_value=False):
    """[sink; text] or [text; sink] as one sequence: a sink row sees itself, every row sees the sinks, sink rows are
    dropped.
    """
    text, sinks = plain.model.embed_tokens(tokens), embedding[None].expand(len(tokens), -1, -1)
    hidden = torch.cat([text, sinks] if end else [sinks, text], dim=1)
    length, count = hidden.shape[1], len(embedding)
    is_sink = torch.arange(length) >= length - count if end else torch.arange(length) < count
    visible = torch.ones(length, length, dtype=torch.bool)
    visible = visible.tril() if plain.config.is_causal else visible
    visible = torch.where(is_sink[:, None], torch.eye(length, dtype=torch.bool), visible | is_sink)
    positions = torch.arange(length)[None]
    rotations = plain.model.rotary_emb(hidden, position_ids=positions)
    handles = []
    if zero_value:
        handles = [
            layer.self_attn.v_proj.register_forward_hook(lambda m, i, out: out.masked_fill(is_sink[:, None], 0.0))
            for layer in plain.model.layers
        ]
    for layer in plain.model.layers:
        hidden = layer(
            hidden, attention_mask=visible[None, None], position_embeddings=rotations, position_ids=positions
        )
    for handle in handles:
        handle.remove()
    return plain.lm_head(plain.model.norm(hidden[:, ~is_sink]))
