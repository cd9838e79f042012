"""What does not change within a step: the canvas and its groups, on every device that asks, worked out once."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import StepContext, upload

GROUPS = ("masked", "unmasked", "prompt", "answer")


class Canvas:
    """The canvas of one step. What goes to a device goes without waiting, and once.

    Args:
        context: the step.
        prompt_lengths: tokens of each prompt; rows of the batch beyond them (guidance) repeat them.
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
        """What ``make`` gives, asked for once a step."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def tokens(self, device: torch.device) -> Tensor:
        """Int64 [batch, position]."""
        return self.once(("tokens", device), lambda: upload(self.context.tokens, device))

    def real(self, device: torch.device) -> Tensor:
        """Bool [batch, position], False on padding, which stands on the left."""
        return self.once(
            ("real", device), lambda: torch.arange(self.width, device=device) >= self.width - self._column(self.lengths, device)
        )

    def among(self, where: str | Collection[int], device: torch.device) -> Tensor:
        """Bool [batch, position]: a group, or positions without padding."""
        return self.once((where, device), lambda: self._among(where, device))

    def recorded(self, values: Tensor) -> Tensor:
        """[batch, …] → [row, …], the rows that are to be recorded."""
        rows, device = self.context.rows, values.device
        if rows == tuple(range(self.rows)):
            return values
        return values[self.once(("rows", device), lambda: upload(torch.tensor(rows, dtype=torch.long, device="cpu"), device))]

    def prompts(self, device: torch.device) -> Tensor:
        """For each recorded row the number of its prompt, int64 [row]."""
        return self.once(("prompts", device), lambda: upload(torch.tensor(self.context.prompts, dtype=torch.long, device="cpu"), device))

    def _among(self, where: str | Collection[int], device: torch.device) -> Tensor:
        real = self.real(device)
        position = real.long().cumsum(-1) - 1
        if not isinstance(where, str):
            wanted = torch.zeros(self.width, dtype=torch.bool, device="cpu")
            wanted[[place for place in where if place < self.width]] = True
            return real & upload(wanted, device)[position.clamp(min=0)]
        if where in ("masked", "unmasked"):
            masked = upload(self.context.masked, device)
            return real & (masked if where == "masked" else ~masked)
        lengths = self._prompt_lengths
        in_prompt = position < self._column([lengths[row % len(lengths)] for row in range(self.rows)], device)
        return real & (in_prompt if where == "prompt" else ~in_prompt)

    @staticmethod
    def _column(numbers: list[int], device: torch.device) -> Tensor:
        return upload(torch.tensor(numbers, dtype=torch.long, device="cpu"), device)[:, None]
