"""The canvas of one step as rules see it: tokens, padding, groups of keys, classes of tokens."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import StepContext, upload
from sinkscope.models import Model
from sinkscope.sinks.token_classes import text_of, token_class

GROUPS = ("masked", "unmasked", "prompt", "answer")
"""Names of groups of keys or queries, for ``keys=`` and ``queries=`` of a rule."""


class StepCanvas:
    """The canvas of one step, uploaded once; of ``prompt_lengths``, the rows of guidance, behind, repeat prompts."""

    def __init__(self, context: StepContext, prompt_lengths: tuple[int, ...]) -> None:
        self.context, self._prompt_lengths = context, prompt_lengths
        self.rows, self.width = context.tokens.shape
        self.lengths: list[int] = context.lengths.tolist()
        self._made: dict[Any, Any] = {}

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """Return the result of ``make``, which is called at most once a step for each name."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def answers(self) -> bool:
        """Whether any row goes on behind its prompt."""
        prompts = self._prompt_lengths * (self.rows // max(1, len(self._prompt_lengths)))
        return any(length > prompt for length, prompt in zip(self.lengths, prompts, strict=False))

    def tokens(self, device: torch.device) -> Tensor:
        """Return the token ids, int64 [batch, position]."""
        return self.once(("tokens", device), lambda: upload(self.context.tokens, device))

    def real(self, device: torch.device) -> Tensor:
        """Return which positions are tokens, bool [batch, position]: False on padding, which stands on the left."""

        def make() -> Tensor:
            return torch.arange(self.width, device=device) >= self.width - _uploaded(self.lengths, device)[:, None]

        return self.once(("real", device), make)

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

    def by_position(self, values: Tensor) -> Tensor:
        """Return values [batch, …, key] of the recorded rows by the position of their keys, 0 behind the last one."""
        values = self.recorded(values)
        lengths = [self.lengths[row] for row in self.context.rows]
        if min(lengths, default=self.width) == self.width:
            return values
        wide = _uploaded(lengths, values.device).view(-1, *[1] * (values.ndim - 1))
        place = torch.arange(self.width, device=values.device)
        return values.gather(-1, (place + self.width - wide).clamp(max=self.width - 1).expand_as(values)) * (
            place < wide
        )

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
    """The classes of tokens: newline, digit, mask …; a bare network, without a model, has no tokenizer."""

    def __init__(self, model: Model | None) -> None:
        self._by_tokenizer = None if model is None else partial(class_in, model)
        self._known: dict[Callable[[int], str], dict[int, str]] = {}

    def places(
        self, canvas: StepCanvas, device: torch.device, classify: Callable[[int], str] | None
    ) -> dict[str, Tensor]:
        """Return where the tokens of each class stand, bool [batch, position]."""
        by: Any = classify or self._by_tokenizer  # a bare network has no tokenizer

        def make() -> dict[str, Tensor]:
            known = self._known.setdefault(by, {})
            unique, places = canvas.context.tokens.cpu().unique(return_inverse=True)
            for token in {*unique.tolist()} - known.keys():
                known[token] = by(token)
            names = [known[token] for token in unique.tolist()]
            kinds = list(dict.fromkeys(names))
            numbers = upload(torch.tensor([kinds.index(name) for name in names], device="cpu")[places], device)
            return {name: numbers == number for number, name in enumerate(kinds)}

        return canvas.once(("classes", by, device), make)


def class_in(model: Model, token: int) -> str:
    """Return the class of a token, one of `sinks.token_classes.CLASSES`."""
    special = token in model.tokenizer.all_special_ids or not 0 <= token < len(model.tokenizer)
    return token_class(None if special else text_of(model.tokenizer, token), token == model.card.mask_id, special)
