"""The limits of rules to layers and heads, compared with those of a network."""

from collections.abc import Sequence

from sinkscope.argument_types import fits, in_words
from sinkscope.attention import Session, query_heads
from sinkscope.errors import CallError
from sinkscope.interventions.rule_context import Rule


def check_limits(rules: Sequence[Rule], session: Session) -> None:
    """Raise an error for a rule that is limited to layers or heads that a network does not have, or whose ``most`` is no number.

    Raises:
        CallError: such a rule, or one that is limited to heads of a network that shows its heads only as it runs.
    """
    numbers = [stack.layer_numbers(alone=len(session.stacks) == 1) for stack in session.stacks]
    longest = max(len(set(stack.values())) for stack in numbers)
    for part in rules:
        if not fits(part.most, int | None) or (part.most is not None and part.most < 0):
            raise CallError(
                f"{type(part).__name__}.most: expected a whole number from 0 upwards or None, found {in_words(part.most)}"
            )
    for part in rules if longest else ():  # a foreign network shows its layers only as they run
        beyond = [layer for layer in part.layers or () if layer >= longest]
        if beyond:
            raise CallError(f"layers: the model has the layers 0…{longest - 1}, found {beyond[0]}")
    for layer, head in [pair for part in rules for pair in part.heads or ()]:
        known = [query_heads(module) for stack in numbers for module, number in stack.items() if number == layer]
        if longest and not known:
            raise CallError(f"heads: the model has the layers 0…{longest - 1}, found head {layer}.{head}")
        if not known or None in known:
            raise CallError(
                f"heads: expected a network whose heads are known before it runs, found {type(session.network).__name__}; "
                "limit the rule by layers= instead"
            )
        if head >= (most := max(one or 0 for one in known)):
            raise CallError(f"heads: layer {layer} of the model has the heads 0…{most - 1}, found head {layer}.{head}")
