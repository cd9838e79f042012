"""`train`: trains a small model from one of the lab's recipes."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from sinkscope.commands.bounds import Seed
from sinkscope.commands.command import Command, Device, Switch, default_is
from sinkscope.errors import CallError


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a small model from one of the lab's recipes; the same command resumes after a kill.

    Attributes:
        recipe: lab-diffusion, lab-autoregressive, lab-sink-token, lab-shifted … (an unknown name lists them all).
        out: folder for the checkpoint.
        updates: optimiser steps.
        seed: of the weights, the data and the masks.
        compile: compiles the layers, which is faster, needs a C++ compiler and rounds differently.
        data: your own text: JSON lines with "text", or with "prompt" and "answer"; plain text; or a corpus folder.
        sink_token: none, token, token-end, token-2, token-4, token-zero-value, logit, off-by-one or gate.
    """

    recipe: Positional[str]
    out: Path
    updates: Annotated[int | None, default_is("the recipe's")] = None
    seed: Annotated[Seed | None, default_is("the recipe's")] = None
    device: Device = "cpu"
    compile: Switch = False
    data: Annotated[Path | None, default_is("the lab's")] = None
    sink_token: Annotated[str | None, default_is("the recipe's")] = None

    def run(self) -> None:
        from sinkscope.lab.checkpoint import train_checkpoint
        from sinkscope.lab.corpus import open_corpus
        from sinkscope.lab.recipes import RECIPES
        from sinkscope.lab.texts import read_texts
        from sinkscope.models.sink_token import variant_of

        if self.recipe not in RECIPES:
            raise CallError(f"no recipe {self.recipe!r}; expected one of {', '.join(RECIPES)}")
        if self.sink_token is not None:
            variant_of(self.sink_token)  # an unknown name is refused before anything is read
        changes = {"updates": self.updates, "seed": self.seed, "compile": self.compile or None, "sink_token": self.sink_token}
        recipe = dataclasses.replace(RECIPES[self.recipe], **{name: value for name, value in changes.items() if value is not None})
        texts = None if self.data is None else open_corpus(self.data) if self.data.is_dir() else read_texts(self.data)
        command = " ".join(["sinkscope", *sys.argv[1:]])
        print(train_checkpoint(recipe, self.out, texts=texts, device=self.device, command=command))
