"""What a rule has answered, checked: the keys that it chose, and the numbers by which it ranks keys."""

import torch
from torch import Tensor

from sinkscope.argument_types import in_words
from sinkscope.attention import LayerCall, upload
from sinkscope.attention.records import described
from sinkscope.errors import CallError
from sinkscope.interventions.ranking import SCOPES, Scope
from sinkscope.interventions.rule_context import Observation, Rule


def read_choice(rule: Rule, choice: object, call: LayerCall) -> Tensor:
    """Return the keys that a rule has chosen in a layer, bool [1 or batch, 1 or head, 1 or query, key].

    Raises:
        CallError: something else, or of another shape.
    """
    batch, heads, queries = call.query.shape[:3]
    sizes = ((1, batch), (1, heads), (1, queries), (call.keys,))
    if (
        isinstance(choice, Tensor)
        and choice.dtype == torch.bool
        and choice.ndim in (3, 4)
    ):
        keys = choice[:, :, None] if choice.ndim == 3 else choice
        if all(size in allowed for size, allowed in zip(keys.shape, sizes, strict=True)):
            return keys if keys.device == call.key.device else upload(keys, call.key.device)
    shape = f"[1 or {batch}, 1 or {heads}, {call.keys}] (batch, head, key), or with [1 or {queries}] queries before the keys"
    raise CallError(
        f"{type(rule).__name__}.choose in {call.name}: expected bool {shape}, or None, found {described(choice)}"
    )


def read_criterion(rule: Rule, criterion: object, local: Observation) -> tuple[Tensor, Scope]:
    """Return what a rule ranks keys by, and which heads share a ranking.

    Raises:
        CallError: something else.
    """
    values, scope = criterion if isinstance(criterion, tuple) and len(criterion) == 2 else (criterion, None)
    if isinstance(values, Tensor) and values.shape == local.columns.shape and scope in SCOPES:
        return values, scope
    raise CallError(
        f"{type(rule).__name__}.criterion: expected numbers {list(local.columns.shape)} (batch, head, key), and {' or '.join(SCOPES)}, "
        f"found {described(values)}, and {in_words(scope)}"
    )
