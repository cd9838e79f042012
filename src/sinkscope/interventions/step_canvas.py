"""The canvas of one step as rules see it: tokens, padding, groups of keys, classes of tokens."""

from collections.abc import Callable, Collection, Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import StepContext, upload
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.sinks.token_classes import token_class

GROUPS = ("masked", "unmasked", "prompt", "answer")
"""Names of groups of keys or queries, for ``keys=`` and ``queries=`` of a rule."""


class StepCanvas:
    """The canvas of one step. What goes to a device is uploaded once, and the host does not wait for it.

    Args:
        context: the step.
        prompt_lengths: tokens of each prompt; the rows of guidance, behind those of the prompts, repeat them.
    """

    def __init__(self, context: StepContext, prompt_lengths: tuple[int, ...]) -> None:
        self.context, self._prompt_lengths = context, prompt_lengths
        self.rows, self.width = context.tokens.shape
        self.lengths: list[int] = context.lengths.tolist()
        self._made: dict[Any, Any] = {}

    @property
    def shortest(self) -> int:
        """Tokens of the shortest row."""
        return min(self.lengths)

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` returns; it is called at most once a step for each name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def tokens(self, device: torch.device) -> Tensor:
        """Return the token ids, int64 [batch, position]."""
        return self.once(("tokens", device), lambda: upload(self.context.tokens, device))

    def real(self, device: torch.device) -> Tensor:
        """Return which positions are tokens, bool [batch, position]: False on padding, which stands on the left."""
        return self.once(
            ("real", device),
            lambda: torch.arange(self.width, device=device) >= self.width - _uploaded(self.lengths, device)[:, None],
        )

    def among(self, where: str | Collection[int], device: torch.device) -> Tensor:
        """Return the positions of a group, or those with the given numbers, without padding: bool [batch, position]."""
        named = where if isinstance(where, str) else tuple(where)
        return self.once((named, device), lambda: self._among(named, device))

    def readers(self, device: torch.device) -> Tensor | None:
        """Return the queries whose outputs may be committed, bool [batch, position]; None where none will be."""
        found = self.context.readers
        return None if found is None else self.once(("readers", device), lambda: upload(found, device))

    def recorded(self, values: Tensor) -> Tensor:
        """Return the rows of ``values`` [batch, …] that are recorded, [row, …]."""
        rows, device = self.context.rows, values.device
        if rows == tuple(range(self.rows)):
            return values
        return values[self.once(("rows", device), lambda: _uploaded(rows, device))]

    def prompts(self, device: torch.device) -> Tensor:
        """Return the number of the prompt of each recorded row, int64 [row]."""
        return self.once(("prompts", device), lambda: _uploaded(self.context.prompts, device))

    def _among(self, where: str | tuple[int, ...], device: torch.device) -> Tensor:
        real = self.real(device)
        position = real.long().cumsum(-1) - 1
        if not isinstance(where, str):
            wanted = torch.zeros(self.width, dtype=torch.bool, device="cpu")
            wanted[[place for place in where if 0 <= place < self.width]] = True
            return real & upload(wanted, device)[position.clamp(min=0)]
        if where in ("masked", "unmasked"):
            masked = upload(self.context.masked, device)
            return real & (masked if where == "masked" else ~masked)
        lengths = self._prompt_lengths
        in_prompt = position < _uploaded([lengths[row % len(lengths)] for row in range(self.rows)], device)[:, None]
        return real & (in_prompt if where == "prompt" else ~in_prompt)


def _uploaded(numbers: Sequence[int], device: torch.device) -> Tensor:
    return upload(torch.tensor(numbers, dtype=torch.long, device="cpu"), device)


class TokenClasses:
    """The classes of the tokens that have occurred so far: newline, digit, mask …

    Args:
        model: its tokenizer says what a token reads; None for a bare network, which has no tokenizer.
    """

    def __init__(self, model: Model | None) -> None:
        self._model = model
        self._by_tokenizer = partial(class_in, model)
        # With the function, so that no other gets its id.
        self._known: dict[Any, tuple[Callable[[int], str], dict[int, int]]] = {}
        self._names: dict[str, int] = {}

    def places(
        self, canvas: StepCanvas, device: torch.device, classify: Callable[[int], str] | None
    ) -> dict[str, Tensor]:
        """Return where the tokens of each class stand, bool [batch, position].

        Raises:
            CallError: no ``classify`` (token id → name of its class) for a bare network.
        """
        if classify is None:
            if self._model is None:
                raise CallError("classify: expected a function, as a bare network has no tokenizer, found None")
            classify = self._by_tokenizer
        name = classify if isinstance(classify, Hashable) else id(classify)
        numbers = canvas.once(("classes", name), lambda: self._numbered(canvas, name, classify))
        there = canvas.once(("classes", name, device), lambda: upload(numbers, device))
        names = list(self._names)
        return canvas.once(
            ("of each class", name, device), lambda: {names[one]: there == one for one in numbers.unique().tolist()}
        )

    def _numbered(self, canvas: StepCanvas, name: Any, classify: Callable[[int], str]) -> Tensor:
        """Return the class of every token as a number, int64 [batch, position] on the host."""
        _, known = self._known.setdefault(name, (classify, {}))
        unique, places = canvas.context.tokens.cpu().unique(return_inverse=True)
        for token in unique.tolist():
            if token not in known:
                known[token] = self._names.setdefault(classify(token), len(self._names))
        return torch.tensor([known[token] for token in unique.tolist()], device="cpu")[places]


def class_in(model: Model, token: int) -> str:
    """Return the class of a token, one of `sinks.token_classes.CLASSES`."""
    special = token in model.tokenizer.all_special_ids or not 0 <= token < len(model.tokenizer)
    return token_class(None if special else model.tokenizer.decode([token]), token == model.card.mask_id, special)
