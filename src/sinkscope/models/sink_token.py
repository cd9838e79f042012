"""Sink tokens and their alternatives: the kinds, their parameters, and transformers' Llama and Qwen2 with one of them.

A sink token attends only to itself, so its hidden states do not depend on the text and are computed once for each call.
Its key and value in each layer are put in front of those of the text (`Prefix`); no canvas, cache, mask or loss has a
row for it. The key is rotated to its position: 0 … n−1 in front, where the text begins at n; or after the last token.

A network with a sink has its own class and its own ``model_type`` (``sink_llama``, ``sink_qwen2``), so that software
that does not know it refuses its checkpoints instead of running the network without its sink.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sinkscope.attention import NAME, Prefix, register_interface
from sinkscope.errors import AttentionError, CallError, ModelError
from sinkscope.models.devices import own_defaults
from sinkscope.models.family import MARK_POSITIONS, ROPE_TYPES

KEY, PREFIX = "sink_token", "sink_"  # in config.json, and in front of its model_type


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
        folded: of a token: whether its keys and values are stored as constants; see `converting.fold`.
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
        known = {"kind": ("token", "logit", "gate"), "position": ("front", "end"), "count": (1, 2, 4)}
        for name, allowed in known.items():
            if (found := getattr(self, name)) not in allowed:
                raise CallError(f"sink token: {name}: expected one of {', '.join(map(repr, allowed))}, found {found!r}")

    @property
    def name(self) -> str:
        """A name for tables and messages: that of `VARIANTS`, or the attributes that differ from the plain token's."""
        alike, plain = replace(self, folded=False, token_id=None, seed=0), SinkToken()
        for name, variant in VARIANTS.items():
            if variant == alike:
                return name + (" (folded)" if self.folded else "")
        return ", ".join(f"{key} {one}" for key, one in asdict(alike).items() if one != getattr(plain, key))


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
        known = "expected a variant that this version knows"
        raise ModelError(f"{where}: config.json: {KEY}: {known} ({error})") from error


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
        return not any(
            torch.equal(mine.detach().cpu(), first.to(kind).to(mine.dtype))
            for mine, first in zip(self.parameters(), self.initial_values(), strict=False)
            for kind in (torch.float32, torch.bfloat16, torch.float16)
        )


def sink_parameters(network: Any) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of a network's sink with their names; none without one."""
    owners = [(name, one) for name, one in network.named_modules() if isinstance(one, SinkWeights | Gate)]
    return [(f"{owner}.{name}", each) for owner, one in owners for name, each in one.named_parameters()]


def constant_keys(stack: Any) -> tuple[Tensor, Tensor | None]:
    """Return keys before rotation and values (None: zero) of the sink tokens, [layer, kv_head, count, dim] each."""
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
    """Return the constant keys of every layer for one call; None where there are none. ``first``, int64 [1 or batch],
    is the position of the first sink token of each row; None for a logit.
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


def _before_stack(stack: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Pass the constant keys on, and move the text's positions behind those in front."""
    if stack.config._attn_implementation != NAME:
        raise AttentionError(
            f"expected a network with a sink to attend through {NAME!r}, found {stack.config._attn_implementation!r}, "
            "which would leave its sink out; do not change its attention implementation"
        )
    variant: SinkToken = stack.sink_token.variant
    if variant.kind != "token":
        return args, {**kwargs, "sinkscope_prefixes": prefixes(stack, None)}
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds")
    inputs = dict(zip(names, args, strict=False)) | kwargs
    ids, mask, positions, cache = (inputs.get(name) for name in names[:4])
    entering = ids if ids is not None else inputs["inputs_embeds"]
    length = entering.shape[1]
    seen = 0 if cache is None else int(cache.get_seq_length())
    real = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None  # [batch, key], 0 on padding
    if positions is None:
        positions = torch.arange(seen, seen + length, device=entering.device)[None]
        if real is not None:  # the distance to the sink must not depend on padding; distances within the text do not
            positions = (real.long().cumsum(-1) - 1).clamp(min=0)[:, -length:]
    if variant.position == "front":
        inputs["position_ids"], first = positions + variant.count, positions.new_zeros(1)
    else:
        if seen:
            raise AttentionError(
                "a sink token at the end moves with every token that is added; run without a cache (use_cache=False)"
            )
        inputs["position_ids"] = positions
        first = (positions if real is None else positions.masked_fill(real == 0, -1)).amax(-1) + 1
    return (), {**inputs, "sinkscope_prefixes": prefixes(stack, first)}


class Gate(nn.Linear):
    """sigmoid(X W_g), a factor for each element of the output of attention (arXiv 2601.19657, baseline GA)."""

    entering: Tensor | None = None

    def note(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep X, the input of attention, until its output is projected."""
        self.entering = args[0] if args else kwargs["hidden_states"]

    def multiply(self, projection: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the output projection, the first one multiplied by the factors."""
        assert self.entering is not None
        factors, self.entering = torch.sigmoid(self(self.entering)), None
        return (args[0] * factors, *args[1:])


def _install(network: Any, variant: SinkToken) -> None:
    register_interface()
    stack, config = network.model, network.config
    stack.sink_token = SinkWeights(variant, config)
    stack.register_forward_pre_hook(_before_stack, with_kwargs=True)
    if variant.kind == "gate":
        for layer in stack.layers:
            attention = layer.self_attn
            attention.sink_gate = Gate(config.hidden_size, attention.o_proj.in_features, bias=False)
            attention.register_forward_pre_hook(attention.sink_gate.note, with_kwargs=True)
            attention.o_proj.register_forward_pre_hook(attention.sink_gate.multiply)
        _draw_gates(network, variant)
    network.set_attn_implementation(NAME)


def _check_body(config: Any, variant: SinkToken) -> None:
    rotations = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if variant.kind == "token" and getattr(config, MARK_POSITIONS, False):
        why = "expected rotated positions, found learned ones, among which the token has no place; use another kind"
    elif rotations not in ROPE_TYPES:
        why = f"expected rotations of type {', '.join(ROPE_TYPES)}, found {rotations!r}, which change with the text"
    elif variant.position == "end" and getattr(config, "is_causal", True):
        why = "expected a bidirectional network (is_causal false), found a causal one; use position 'front'"
    else:
        return
    raise CallError(f"sink token {variant.name!r}: {why}")


@functools.cache
def sink_classes(network_class: Any, config_class: Any) -> tuple[Any, Any]:
    """Return subclasses of a transformers network and of its configuration that have a sink."""

    class SinkConfig(config_class):
        model_type = PREFIX + config_class.model_type

    class SinkNetwork(network_class):
        config_class = SinkConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            variant = read_variant(getattr(config, KEY, None), "config")
            _check_body(config, variant)
            _install(self, variant)

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, SinkWeights):
                module.draw()
            else:
                super()._init_weights(module)

    for made, body in ((SinkConfig, config_class), (SinkNetwork, network_class)):
        made.__name__ = made.__qualname__ = f"Sink{body.__name__}"
    return SinkNetwork, SinkConfig


def with_sink(network_class: Any, config: Any, variant: SinkToken | None) -> tuple[Any, Any]:
    """Return the class and the configuration of a network with a sink; both as they are where there is none."""
    if variant is None:
        return network_class, config
    made, kind = sink_classes(network_class, type(config))
    stored = {key: value for key, value in config.to_dict().items() if key not in ("model_type", "architectures")}
    return made, kind.from_dict({**stored, KEY: asdict(variant)})


def split_config(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], SinkToken | None]:
    """Return a config.json as the network without its sink would have it, and the sink's variant, None without one."""
    model_type = str(config.get("model_type"))
    if model_type.startswith(PREFIX) != (KEY in config):
        raise ModelError(
            f"{where}: config.json: expected {KEY} and a model_type that begins with {PREFIX!r} together, "
            f"found model_type {model_type!r} {'with' if KEY in config else 'without'} {KEY}"
        )
    if KEY not in config:
        return dict(config), None
    body = {key: value for key, value in config.items() if key != KEY}
    body["model_type"] = model_type.removeprefix(PREFIX)
    body["architectures"] = [str(one).removeprefix("Sink") for one in config.get("architectures") or []]
    return body, read_variant(config[KEY], where)


@own_defaults()
def add_sink_token(network: Any, variant: SinkToken | str = "token", *, tokenizer: Any = None) -> Any:
    """Give a Llama or Qwen2 of yours an untrained sink, in place, and return it; train it as you would without, and
    ``save_pretrained`` writes a folder that `sinkscope.load` reads.

    Args:
        network: a `transformers.LlamaForCausalLM` or `Qwen2ForCausalLM`, causal or bidirectional.
        variant: a `SinkToken`, or a name such as ``"token"``, ``"token-zero-value"``, ``"logit"``, ``"gate"``.
        tokenizer: a tokenizer that must not use ``variant.token_id``.

    Raises:
        CallError: the variant does not fit the network, the network has a sink already, or the id is taken.
    """
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    wanted = variant_of(variant) if isinstance(variant, str) else variant
    if wanted is None:
        return network
    if not isinstance(network, LlamaForCausalLM | Qwen2ForCausalLM) or getattr(network.config, KEY, None) is not None:
        expected = "expected a LlamaForCausalLM or Qwen2ForCausalLM without a sink"
        raise CallError(f"sink token {wanted.name!r}: {expected}, found {type(network).__name__}")
    before = network.config
    _check_body(before, wanted)
    check_token_id(tokenizer, wanted, "the tokenizer", CallError)
    parameter = next(network.parameters())
    network.__class__, config = with_sink(type(network), before, wanted)  # checkpoints are loaded by this class
    config._attn_implementation_internal = before._attn_implementation_internal
    for module in network.modules():  # several networks may share one configuration; this one has its own from now on
        if getattr(module, "config", None) is before:
            module.config = config
    _install(network, wanted)
    for module in network.modules():
        if isinstance(module, SinkWeights | Gate):
            module.to(device=parameter.device, dtype=parameter.dtype)
        if isinstance(module, SinkWeights):
            module.draw()  # again, as a default dtype of the caller's may have rounded the values
    _draw_gates(network, wanted)
    return network


@torch.no_grad()
def _draw_gates(network: Any, variant: SinkToken) -> None:
    generator = torch.Generator().manual_seed(variant.seed)
    for module in network.modules():
        if isinstance(module, Gate) and not module.weight.is_meta:
            drawn = torch.randn(module.weight.shape, generator=generator, device="cpu", dtype=torch.float32)
            module.weight.copy_(drawn * network.config.initializer_range)


def check_token_id(tokenizer: Any, variant: SinkToken, where: str, error: type[Exception]) -> None:
    """Raise an ``error`` where a tokenizer uses the id of the sink for another token."""
    taken = {} if tokenizer is None else {index: text for text, index in tokenizer.get_vocab().items()}
    if variant.token_id in taken:
        raise error(
            f"sink token {variant.name!r} has token_id {variant.token_id}, but {where} has "
            f"{taken[variant.token_id]!r} there; its free ids begin at {max(taken) + 1}"
        )
