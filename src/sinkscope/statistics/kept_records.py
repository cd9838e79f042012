"""What statistics keep of every step of a prompt, and records of single steps as one record of all steps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from sinkscope.errors import CallError
from sinkscope.statistics.step import RecordedStep

Record = TypeVar("Record")
Keep = Callable[[RecordedStep], Any]
"""What a statistic keeps of a step: a dataclass of arrays, or None."""


class KeptRecords:
    """Collects what statistics keep of the steps of one prompt.

    Args:
        keeps: what is asked of each step.
    """

    def __init__(self, keeps: Iterable[Keep]) -> None:
        self.keeps = tuple(keeps)
        self.steps = 0
        self._records: dict[type, list[Any]] = {}
        self._begins: dict[type, int] = {}
        self._keepers: dict[type, tuple[str, Keep]] = {}

    def add(self, step: RecordedStep) -> None:
        """Take in what is kept of the next step.

        Raises:
            CallError: something else than a dataclass of arrays or None, or arrays of another shape than in the first step.
        """
        self.steps += 1
        for keep in self.keeps:
            if (record := keep(step)) is not None:
                keeper = getattr(keep, "__qualname__", repr(keep))
                if not is_dataclass(record) or isinstance(record, type):
                    raise CallError(f"{keeper}: expected a dataclass of arrays, or None, found {type(record).__name__}")
                self._add(keeper, keep, record)

    def _add(self, keeper: str, keep: Keep, record: Any) -> None:
        kind = type(record)
        other, asked = self._keepers.setdefault(kind, (keeper, keep))
        if asked is not keep:
            raise CallError(
                f"{keeper}: expected a dataclass of its own, found {kind.__name__}, which {other} of another statistic keeps"
            )
        before = self._records.setdefault(kind, [])
        self._begins.setdefault(kind, self.steps - 1)
        for one in fields(record):
            shapes = []
            for value in (getattr(each, one.name) for each in (record, *before[:1])):
                try:
                    shapes.append(np.shape(value))
                except ValueError:  # lists of several lengths
                    raise CallError(
                        f"{keeper}: expected {one.name} as an array, found {type(value).__name__}"
                    ) from None
            if shapes[0] != shapes[-1]:
                raise CallError(
                    f"{keeper}: expected {one.name} in one shape in every step, {list(shapes[-1])} as in the first, "
                    f"found {list(shapes[0])} in step {self.steps - 1}"
                )
        before.append(record)

    def whole(self) -> dict[type, Any]:
        """Return the records of all steps by their class, once; their arrays have an axis ``step`` in front.

        A statistic may begin late, as one of the answer does while the prompt is still read.

        Raises:
            CallError: a step without a record behind one that has it.
        """
        for kind, records in self._records.items():
            steps = self.steps - self._begins[kind]
            if len(records) != steps:
                raise CallError(
                    f"{self._keepers[kind][0]}: expected a record of every step from the first one on that has any, found {len(records)} "
                    f"records of {steps} steps; keep NaN where a step has nothing"
                )
        return {kind: stack_steps(self._records.pop(kind)) for kind in tuple(self._records)}


def stack_steps(records: Sequence[Record]) -> Record:
    """Return records of single steps as one record: every array gets an axis ``step`` in front."""
    names = [one.name for one in fields(records[0])]  # type: ignore[arg-type]
    return type(records[0])(**{name: np.stack([getattr(one, name) for one in records]) for name in names})
