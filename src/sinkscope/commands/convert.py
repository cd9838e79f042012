"""`convert`: paper 2's checkpoints become model folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from sinkscope.commands.command import Command, default_is


@dataclass(frozen=True, kw_only=True)
class Convert(Command):
    """Makes a model folder from one of paper 2's checkpoints; nothing in the file is executed.

    Attributes:
        file: a .pth that holds tensors only, or safetensors with the same names.
        out: a new or empty folder.
        tokenizer: folder with the tokenizer the model was trained with.
        heads: attention heads, needed where the width is none of the published ones.
    """

    file: Positional[Path]
    out: Path
    tokenizer: Path
    heads: Annotated[int | None, default_is("the published")] = None

    def run(self) -> None:
        from sinkscope.models.smdm import convert

        print(convert(self.file, self.out, tokenizer=self.tokenizer, heads=self.heads))
