"""House rule 6: a context manager leaves no trace on a network, also when its body raises."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class _Values:
    """A tensor to be compared by its values; any other has to be the same object."""

    tensor: Tensor


class BodyRaised(Exception):
    """Raised by the check inside the context."""


def check_leaves_no_trace(
    network: nn.Module, open_context: Callable[[], AbstractContextManager[Any]], input_ids: Tensor
) -> None:
    """Run the network inside the context, once to the end and once into an exception, and compare its whole state."""
    before = look(network, input_ids)
    with open_context():
        _logits(network, input_ids)
    compare(before, look(network, input_ids), "after the context")
    with pytest.raises(BodyRaised), open_context():
        _logits(network, input_ids)
        raise BodyRaised
    compare(before, look(network, input_ids), "after a context whose body raised")


def _logits(network: nn.Module, input_ids: Tensor) -> Tensor:
    with torch.no_grad():
        return network(input_ids).logits.clone()


def look(network: nn.Module, input_ids: Tensor) -> dict[str, Any]:
    """Return everything that a context could leave behind, and the logits."""
    seen: dict[str, Any] = {"logits": _Values(_logits(network, input_ids))}
    for path, module in network.named_modules():
        for name, value in vars(module).items():
            seen[f"{path}.{name}"] = dict(value) if isinstance(value, dict) else value
        for kind in type(module).__mro__:
            for name, value in vars(kind).items():
                seen[f"{kind.__module__}.{kind.__qualname__}.{name}"] = value
        config = getattr(module, "config", None)
        if config is not None:
            seen[f"{path}.config.*"] = copy.deepcopy(vars(config))
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        seen[f"values of {name}"] = _Values(tensor.detach().clone())
        seen[f"gradient of {name}"] = (tensor.requires_grad, tensor.grad)
    return seen


def compare(before: dict[str, Any], after: dict[str, Any], when: str) -> None:
    different = [name for name in before.keys() | after.keys() if name not in before or name not in after]
    different += [name for name in before.keys() & after.keys() if not _equal(before[name], after[name])]
    assert not different, f"{when}, these differ from before: {', '.join(sorted(different))}"


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one.tensor, other.tensor) if isinstance(one, _Values) else _same(one, other)


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and not isinstance(one, nn.Module | Tensor) and bool(one == other)
