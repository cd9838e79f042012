"""The table of prompts: one row of numbers a prompt, one column a statistic and place; small also for thousands."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sinkscope.sinks.points import Place, Values

Key = tuple[str, Place]


@dataclass
class PromptTable:
    """Collects prompts one by one; each key is kept once, and a row is 8 bytes a number.

    Attributes:
        columns: {key: its number}, in the order in which they came.
    """

    columns: dict[Key, int] = field(default_factory=dict)
    rows: list[np.ndarray] = field(default_factory=list)

    def add(self, values: Values) -> None:
        """One prompt's numbers."""
        numbers = [self.columns.setdefault(key, len(self.columns)) for key in values]
        row = np.full(len(self.columns), np.nan)
        row[numbers] = list(values.values())
        self.rows.append(row)

    def whole(self, late: Mapping[Key, np.ndarray] | None = None) -> tuple[tuple[Key, ...], np.ndarray]:
        """Keys and [prompt, key], NaN where a prompt has no such number.

        Args:
            late: columns that only all prompts together give, by key; a shorter one lacks the last prompts.
        """
        late = late or {}
        found = np.full((len(self.rows), len(self.columns) + len(late)), np.nan)
        for number, row in enumerate(self.rows):
            found[number, : len(row)] = row
        for number, column in enumerate(late.values()):
            found[: len(column), len(self.columns) + number] = column
        return (*self.columns, *late), found
