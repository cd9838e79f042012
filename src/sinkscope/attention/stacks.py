"""Stacks: the modules that own the layers (``model.model`` of a Llama; encoder and decoder apart)."""

from dataclasses import dataclass, field

from torch import nn

from sinkscope.errors import AttentionError


@dataclass(frozen=True)
class Stack:
    """A module that owns attention layers.

    Attributes:
        name: module path within the network, ``""`` for the network itself.
        module: the stack.
        layers: attention module → (its module path, its index), in order.
        blocks: attention module → the layer that holds it.
        causal: whether its queries see only what stands before them.
    """

    name: str
    module: nn.Module
    layers: dict[nn.Module, tuple[str, int]]
    blocks: dict[nn.Module, nn.Module]
    causal: bool = field(default=True)


def find_stacks(network: nn.Module) -> list[Stack]:
    """The stacks of a transformers model: owners of a `ModuleList` whose entries hold a module with ``layer_idx``.

    Raises:
        AttentionError: it has none.
    """
    stacks = []
    for name, module in network.named_modules():
        layers: dict[nn.Module, tuple[str, int]] = {}
        blocks: dict[nn.Module, nn.Module] = {}
        for child_name, child in module.named_children():
            if not isinstance(child, nn.ModuleList):
                continue
            for number, block in enumerate(child):
                for inner_name, inner in block.named_modules():
                    if isinstance(getattr(inner, "layer_idx", None), int) and inner is not block and _attends(inner):
                        path = ".".join(part for part in (name, child_name, str(number), inner_name) if part)
                        layers[inner] = (path, len(layers))
                        blocks[inner] = block
        if layers and not any(layers.keys() <= stack.layers.keys() for stack in stacks):  # a list within a layer is no stack of its own
            stacks.append(Stack(name, module, layers, blocks, _is_causal(network, module, next(iter(layers)))))
    if not stacks:
        raise AttentionError(
            f"expected a transformers model whose layers have a layer_idx, found none in {type(network).__name__}; "
            "watch a foreign torch module inside `with sinkscope.attention.foreign(module):`"
        )
    return stacks


def _attends(module: nn.Module) -> bool:
    """Feed-forward networks and convolutions may be numbered as well."""
    name = type(module).__name__.lower()
    return any(part in name for part in ("attention", "attn", "mla"))


def _is_causal(network: nn.Module, stack: nn.Module, attention: nn.Module) -> bool:
    """A configuration that says so decides; else the attention does."""
    for config in (getattr(stack, "config", None), getattr(network, "config", None)):
        said = getattr(config, "is_causal", None)
        if said is not None:
            return bool(said)
    return bool(getattr(attention, "is_causal", True))
