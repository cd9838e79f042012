"""transformers' Llama and Qwen2 with a sink; they are trained, saved and loaded like networks without one.

A network with a sink has its own class and its own ``model_type`` (``sink_llama``, ``sink_qwen2``), so that software
that does not know it refuses its checkpoints instead of running the network without its sink.
"""

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import NAME, register_interface
from sinkscope.errors import AttentionError, CallError, ModelError
from sinkscope.models.devices import own_defaults
from sinkscope.models.family import MARK_POSITIONS, ROPE_TYPES
from sinkscope.models.sink_token import KEY, SinkToken, SinkWeights, prefixes, read_variant, variant_of

PREFIX = "sink_"  # of model_type


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
    ids, mask, cache = (inputs.get(name) for name in ("input_ids", "attention_mask", "past_key_values"))
    entering = ids if ids is not None else inputs["inputs_embeds"]
    length = entering.shape[1]
    seen = 0 if cache is None else int(cache.get_seq_length())
    real = mask if isinstance(mask, Tensor) and mask.ndim == 2 else None  # [batch, key], 0 on padding
    positions = inputs.get("position_ids")
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
    """Add the parameters and hooks of a variant to a network."""
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
    """Raise CallError where a network's positions or its direction of attention do not go with a variant."""
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
    """Give a Llama or Qwen2 of yours an untrained sink, in place; then train it as you would train it without.

    Args:
        network: a `transformers.LlamaForCausalLM` or `Qwen2ForCausalLM`, causal or bidirectional.
        variant: a `SinkToken`, or a name such as ``"token"``, ``"token-zero-value"``, ``"logit"``, ``"gate"``.
        tokenizer: a tokenizer that must not use ``variant.token_id``.

    Returns:
        The network; ``save_pretrained`` writes a folder that `sinkscope.load` reads.

    Raises:
        CallError: the variant does not fit the network, the network has a sink already, or the id is taken.
    """
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    wanted = variant_of(variant) if isinstance(variant, str) else variant
    if wanted is None:
        return network
    if not isinstance(network, LlamaForCausalLM | Qwen2ForCausalLM):
        found = type(network).__name__
        raise CallError(f"sink token {wanted.name!r}: expected a LlamaForCausalLM or Qwen2ForCausalLM, found {found}")
    before = network.config
    if (present := getattr(before, KEY, None)) is not None:
        raise CallError(f"sink token {wanted.name!r}: the network has {read_variant(present, 'config').name!r} already")
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
    """Set the initial weights of all gates."""
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
