"""`fold`: a sink token becomes constants."""

from dataclasses import dataclass
from pathlib import Path

from sinkscope.commands.command import Command, ModelName


@dataclass(frozen=True, kw_only=True)
class Fold(Command):
    """Folds the sink token of a trained model into constants, which take no position of the canvas.

    Attributes:
        out: a new or empty folder.
    """

    model: ModelName
    out: Path

    def run(self) -> None:
        from sinkscope.models.folding import fold

        print(fold(self.model, self.out))
