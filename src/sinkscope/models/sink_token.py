"""Sink tokens and their alternatives: the kinds, their parameters, and their constant keys and values in each layer.

A sink token attends only to itself, so its hidden states do not depend on the text and are computed once for each call.
Its key and value in each layer are put in front of those of the text (`Prefix`); no canvas, cache, mask or loss has a
row for it. The key is rotated to its position: 0 … n−1 in front, where the text begins at n; or after the last token.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.attention import Prefix
from sinkscope.errors import CallError, ModelError

KEY = "sink_token"  # in config.json


@dataclass(frozen=True)
class SinkToken:
    """A place for attention that holds no text (arXiv 2601.19657, §3).

    Attributes:
        kind: ``token``: learned embeddings; each attends only to itself, and all tokens of the text attend to it.
            ``logit``: one score for each layer and head that takes part in the softmax and has no value (gpt-oss).
            ``gate``: no sink; the output of attention is multiplied by sigmoid(X W_g) before the output projection (the
            paper's baseline GA).
        position: of a token: in front of the text (the text's RoPE positions begin behind it) or at its end.
        count: of a token: 1, 2 or 4 of them.
        zero_value: of a token: whether its value is zero, so that it takes attention and gives nothing.
        learned: of a logit: False is softmax-off-by-one, where all scores are 0.
        folded: of a token: whether its keys and values are stored as constants; see `folding`.
        token_id: of a token: its id in a tokenizer, which no other token may have.
        seed: of the initial values.
    """

    kind: Literal["token", "logit", "gate"] = "token"
    position: Literal["front", "end"] = "front"
    count: int = 1
    zero_value: bool = False
    learned: bool = True
    folded: bool = False
    token_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in {
            "kind": ("token", "logit", "gate"),
            "position": ("front", "end"),
            "count": (1, 2, 4),
        }.items():
            if (found := getattr(self, name)) not in allowed:
                raise CallError(f"sink token: {name}: expected one of {', '.join(map(repr, allowed))}, found {found!r}")

    @property
    def name(self) -> str:
        """A name for tables and messages: that of `VARIANTS`, or the attributes that differ from the plain token's."""
        for name, variant in VARIANTS.items():
            if variant is not None and _mathematics(variant) == _mathematics(self):
                return name + (" (folded)" if self.folded else "")
        plain = _mathematics(SinkToken())
        return ", ".join(f"{key} {value}" for key, value in _mathematics(self).items() if value != plain[key])


def _mathematics(variant: SinkToken) -> dict[str, Any]:
    return {key: value for key, value in asdict(variant).items() if key not in ("folded", "token_id", "seed")}


VARIANTS: dict[str, SinkToken | None] = {
    "none": None,
    "token": SinkToken(),
    "token-end": SinkToken(position="end"),
    "token-2": SinkToken(count=2),
    "token-4": SinkToken(count=4),
    "token-zero-value": SinkToken(zero_value=True),
    "logit": SinkToken(kind="logit"),
    "off-by-one": SinkToken(kind="logit", learned=False),
    "gate": SinkToken(kind="gate"),
}


def variant_of(name: str) -> SinkToken | None:
    """Return the variant of a name, None for ``"none"``; raise CallError for an unknown name."""
    if name not in VARIANTS:
        raise CallError(f"sink token: no variant {name!r}; expected one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def read_variant(stored: Any, where: str) -> SinkToken:
    """Return the variant that a config.json describes; ``where`` names its folder in errors."""
    try:
        return SinkToken(**stored)
    except (TypeError, CallError) as error:
        raise ModelError(
            f"{where}: config.json: {KEY}: expected a variant that this version knows ({error})"
        ) from error


class SinkWeights(nn.Module):
    """The parameters of a network's sink, ``model.sink_token``.

    A token has an ``embedding`` [count, width]; a folded one has ``keys`` and ``values`` [layer, kv_head, count, dim],
    the keys before rotation; a learned logit has ``logits`` [layer, head].
    """

    def __init__(self, variant: SinkToken, config: Any) -> None:
        super().__init__()
        self.variant, self.std = variant, float(config.initializer_range)
        layers, heads, kv_heads = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if variant.folded:
            shape = (layers, kv_heads, variant.count, dim)
            self.keys = nn.Parameter(torch.zeros(shape), requires_grad=False)
            if not variant.zero_value:
                self.values = nn.Parameter(torch.zeros(shape), requires_grad=False)
        elif variant.kind == "token":
            self.embedding = nn.Parameter(torch.empty(variant.count, config.hidden_size))
        elif variant.kind == "logit" and variant.learned:
            self.logits = nn.Parameter(torch.empty(layers, heads))
        self.layers, self.heads = layers, heads
        self.draw()

    @torch.no_grad()
    def draw(self) -> None:
        """Set the initial values, as those of an ordinary embedding."""
        from transformers import initialization

        for parameter, values in zip(self.parameters(), self.initial_values(), strict=False):
            if not parameter.is_meta:
                initialization.copy_(parameter, values.to(parameter))  # unless a checkpoint has filled it

    def initial_values(self) -> list[Tensor]:
        """Return the initial values of the learned parameters; none for a folded sink."""
        if self.variant.folded:
            return []
        generator = torch.Generator().manual_seed(self.variant.seed)
        return [
            torch.randn(one.shape, generator=generator, device="cpu", dtype=torch.float32) * self.std
            for one in self.parameters()
        ]

    @property
    def trained(self) -> bool:
        """Whether the parameters differ from their initial values, in whichever float type these were stored."""
        pairs = list(zip(self.parameters(), self.initial_values(), strict=False))
        types = (torch.float32, torch.bfloat16, torch.float16)
        return not any(
            torch.equal(mine.detach().cpu(), first.to(kind).to(mine.dtype)) for mine, first in pairs for kind in types
        )


def constant_keys(stack: Any) -> tuple[Tensor, Tensor | None]:
    """Return the keys before rotation and the values of the sink tokens, [layer, kv_head, count, dim] each; None for
    values of zero.
    """
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.folded:
        return sink.keys, None if variant.zero_value else sink.values
    hidden, keys, values = sink.embedding, [], []
    last = len(stack.layers) - 1
    for number, layer in enumerate(stack.layers):
        entering = layer.input_layernorm(hidden)
        split = (variant.count, -1, layer.self_attn.head_dim)
        keys.append(layer.self_attn.k_proj(entering).view(split).transpose(0, 1))
        if not variant.zero_value:
            value = layer.self_attn.v_proj(entering).view(split)
            values.append(value.transpose(0, 1))
            if number < last:  # it attends only to itself, so the output of attention is its own value
                repeated = value.repeat_interleave(layer.self_attn.num_key_value_groups, dim=1)
                hidden = hidden + layer.self_attn.o_proj(repeated.flatten(1))
        if number < last:
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return torch.stack(keys), None if variant.zero_value else torch.stack(values)


def prefixes(stack: Any, first: Tensor | None) -> list[Prefix] | None:
    """Return the constant keys of every layer for one call; None where there are none.

    ``first``, int64 [1 or batch], is the position of the first sink token of each row; None for a logit.
    """
    sink: SinkWeights = stack.sink_token
    variant = sink.variant
    if variant.kind == "gate":
        return None
    if variant.kind == "logit":
        zero = next(stack.parameters()).new_zeros(sink.layers, sink.heads)
        return [Prefix(logits=row[:, None]) for row in (sink.logits if variant.learned else zero)]
    assert first is not None
    with torch.autocast(first.device.type, enabled=False):  # casting costs more than it saves for so few rows
        keys, values = constant_keys(stack)
    positions = first[:, None] + torch.arange(variant.count, device=first.device)
    cosines, sines = (one[:, None] for one in stack.rotary_emb(keys, positions))
    half = keys.shape[-1] // 2
    turned = torch.cat([-keys[..., half:], keys[..., :half]], dim=-1)
    rotated = (keys[:, None] * cosines + turned[:, None] * sines).to(keys.dtype)
    if values is None:
        return [Prefix(keys=key) for key in rotated]
    return [Prefix(keys=key, values=value) for key, value in zip(rotated, values, strict=True)]
