"""`fold`: replaces a trained sink token by constants."""

from dataclasses import dataclass
from pathlib import Path

from sinkscope.commands.command import Command, ModelName


@dataclass(frozen=True, kw_only=True)
class Fold(Command):
    """Replace the sink token of a trained model by constant keys and values, which occupy no position of the canvas.

    Attributes:
        out: a new or empty folder.
    """

    model: ModelName
    out: Path

    def run(self) -> None:
        from sinkscope.models.converting import fold

        print(fold(self.model, self.out))
