"""`train`: trains a small model from one of the lab's recipes."""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from sinkscope.commands.command import Command, Device, Switch, default_is
from sinkscope.errors import CallError
from sinkscope.runs.share import expect_one_process

CANVASES = 24
"""Held-out canvases on which sinks are measured."""


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
        watch: measures the network's sinks after each so many updates, into OUT/watch, for `sinkscope watch-training`.
    """

    recipe: Positional[str]
    out: Path
    updates: Annotated[int | None, default_is("the recipe's")] = None
    seed: Annotated[int | None, default_is("the recipe's")] = None
    device: Device = "cpu"
    compile: Switch = False
    data: Annotated[Path | None, default_is("the lab's")] = None
    sink_token: Annotated[str | None, default_is("the recipe's")] = None
    watch: Annotated[int | None, default_is("never")] = None

    def run(self) -> None:
        from sinkscope.emergence import TrainingWatch
        from sinkscope.emergence.history import measured_updates
        from sinkscope.lab.recipes import RECIPES
        from sinkscope.lab.run_folder import WEIGHTS, check_recipe, saved_update
        from sinkscope.lab.training import train_checkpoint
        from sinkscope.models.sink_token import variant_of

        expect_one_process("train")
        if self.recipe not in RECIPES:
            raise CallError(f"no recipe {self.recipe!r}; expected one of {', '.join(RECIPES)}")
        if self.sink_token is not None:
            variant_of(self.sink_token)  # an unknown name is refused before anything is read
        changes = {name: getattr(self, name) for name in ("updates", "seed", "sink_token")}
        given = {
            name: value for name, value in {**changes, "compile": self.compile or None}.items() if value is not None
        }
        recipe, texts = dataclasses.replace(RECIPES[self.recipe], **given), read_data(self.data)
        every, folder = self.watch, self.out / "watch"
        if every is not None:
            if not 1 <= every <= recipe.updates:
                raise CallError(f"--watch: expected 1 to {recipe.updates:,}, the number of updates, found {every}")
            canvases = held_out(recipe, texts, CANVASES)
            check_recipe(dataclasses.replace(recipe, data=None if texts is None else texts.fingerprint), self.out)
            done = recipe.updates if (self.out / WEIGHTS).exists() else saved_update(self.out)
            missing = sorted({*range(0, done + 1, every)} - measured_updates(folder).keys()) if done else ()
            if missing:
                what = f"{self.out} is at update {done}, and {folder} lacks update {missing[0]}"
                raise CallError(f"--watch {every}: {what}; train elsewhere, or run sinkscope watch-training")

        def watch(network: Any, update: int) -> None:
            if every and update % every == 0:
                TrainingWatch(network, canvases, folder, every=every, name=recipe.name)(update)

        how = {"device": self.device, "command": " ".join(["sinkscope", *sys.argv[1:]])}
        print(train_checkpoint(recipe, self.out, texts=texts, watch=None if every is None else watch, **how))


def read_data(path: Path | None) -> Any:
    """Return the user's text, a corpus from a folder or documents from a file; None without a path."""
    from sinkscope.lab.texts import open_corpus, read_texts

    return None if path is None else open_corpus(path) if path.is_dir() else read_texts(path)


def held_out(recipe: Any, texts: Any, count: int) -> list[Any]:
    """Return canvases on which the sinks of a recipe's network are measured."""
    from sinkscope.emergence import hold_out
    from sinkscope.lab.run_folder import held_out_rows
    from sinkscope.lab.starting_network import choose_tokenizer

    tokenizer = choose_tokenizer(recipe, texts)
    mask_id = None if recipe.objective == "next_token" else tokenizer.mask_token_id
    rows, shift = held_out_rows(recipe, tokenizer, texts, count), recipe.objective == "shifted_diffusion"
    return hold_out(*rows, mask_id=mask_id, shift=shift)
