"""`train`: trains a small model from one of the lab's recipes."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from sinkscope import emergence
from sinkscope.commands.command import Command, Device, Switch, default_is
from sinkscope.commands.output import say
from sinkscope.errors import CallError
from sinkscope.runs.folder import expect_one_process

CANVASES = 24  # held-out canvases on which sinks are measured


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a small model from one of the lab's recipes; the same command resumes after a kill.

    `adapted` turns a causal model into a masked diffusion model, `adapted-causal` tunes it on the same canvases.

    Attributes:
        recipe: lab-diffusion, lab-autoregressive, lab-sink-token, adapted … (an unknown name lists them all).
        out: folder for the checkpoint.
        updates: optimiser steps.
        seed: of the weights, the data and the masks.
        learning_rate: its peak, between a warm-up and a cosine.
        compile: compiles the layers, which is faster, needs a C++ compiler and rounds differently.
        data: your own text: JSON lines with "text", or with "prompt" and "answer"; plain text; or a corpus folder
            (lab-text recipes).
        sink_token: none, token, token-end, token-2, token-4, token-zero-value, logit, off-by-one or gate.
        base: model that `adapted` and `adapted-causal` change, a Llama, Qwen2 or Qwen3; or an adapter to go on with.
        rank: of its LoRA; 0 trains all weights.
        mask_token: an unused token of its tokenizer, which becomes the mask.
        align: weight of the distance between its hidden states and the causal model's.
        anneal: updates over which later tokens are let in.
        tokens: of an update; several thousand suit a GPU.
        whole_share: share of the canvases in which questions are masked too, not only answers.
        no_shift: reads each masked token at its own place, not one to the left.
        first_alone: lets the first token see only itself, as in a causal model, which keeps its sink.
        watch: measures the network's sinks after each so many updates, into OUT/watch, for `sinkscope watch-training`.
    """

    recipe: Positional[str]
    out: Path
    updates: Annotated[int | None, default_is("the recipe's")] = None
    seed: Annotated[int | None, default_is("the recipe's")] = None
    learning_rate: Annotated[float | None, default_is("the recipe's")] = None
    device: Device = "cpu"
    compile: Switch = False
    data: Annotated[Path | None, default_is("the lab's")] = None
    sink_token: Annotated[str | None, default_is("the recipe's")] = None
    base: Annotated[str | None, default_is("smollm2")] = None
    rank: Annotated[int | None, default_is("16")] = None
    mask_token: Annotated[str | None, default_is("SmolLM2's <reponame>")] = None
    align: Annotated[float | None, default_is("0")] = None
    anneal: Annotated[int | None, default_is("0")] = None
    tokens: Annotated[int | None, default_is("1,024")] = None
    whole_share: Annotated[float | None, default_is("0.02")] = None
    no_shift: Switch = False
    first_alone: Switch = False
    watch: Annotated[int | None, default_is("never")] = None

    def run(self) -> None:
        from sinkscope.emergence.history import measured_updates
        from sinkscope.lab.recipes import RECIPES
        from sinkscope.lab.run_folder import LOG, check_recipe, saved_update, weights_of
        from sinkscope.lab.training import train_checkpoint
        from sinkscope.models.sink_token import variant_of

        expect_one_process("train")
        if self.recipe not in RECIPES:
            raise CallError(f"no recipe {self.recipe!r}; expected one of {', '.join(RECIPES)}")
        if self.sink_token is not None:
            variant_of(self.sink_token)  # an unknown name is refused before anything is read
        given = self._given("updates", "seed", "learning_rate", "sink_token") | (
            {"compile": True} if self.compile else {}
        )
        recipe, texts = self._adapted(dataclasses.replace(RECIPES[self.recipe], **given)), read_data(self.data)
        every, folder = self.watch, self.out / "watch"
        if every is not None:
            canvases = held_out(recipe, texts, CANVASES)
            check_recipe(dataclasses.replace(recipe, data=None if texts is None else texts.fingerprint), self.out)
            done = recipe.updates if (self.out / weights_of(recipe)).exists() else saved_update(self.out)
            missing = sorted({*range(0, done + 1, every)} - measured_updates(folder).keys()) if done else ()
            if missing:
                what = f"{self.out} is at update {done}, and {folder} lacks update {missing[0]}"
                raise CallError(f"--watch {every}: {what}; train elsewhere, or run sinkscope watch-training")

        def watch(network: Any, update: int) -> None:
            if every and update % every == 0:
                emergence.TrainingWatch(network, canvases, folder, every=every, name=recipe.name)(update)

        how = {"device": self.device, "command": " ".join(["sinkscope", *sys.argv[1:]])}
        print(train_checkpoint(recipe, self.out, texts=texts, watch=None if every is None else watch, **how))
        log = self.out / LOG
        if recipe.adaptation is not None and recipe.objective != "next_token" and log.exists():
            found = json.loads(log.read_text().splitlines()[-1])["held_out"]
            kind = "held-out text" if texts is None or texts.holds_out else "the training text (too few to hold out)"
            say(f"nats a token of {kind}: " + ", ".join(f"{name} {nats:.2f}" for name, nats in found.items()))

    def _adapted(self, recipe: Any) -> Any:
        if recipe.adaptation is None:
            self.refuse(
                "rank mask_token align anneal tokens whole_share base no_shift first_alone",
                f"with {recipe.name}, but with adapted",
            )
            return recipe
        given = self._given("rank", "mask_token", "align", "anneal")
        if given.get("rank") == 0:
            given["rank"] = None
        if self.base is not None and self.mask_token is None:
            given["mask_token"] = None
        objective = "masked_diffusion" if self.no_shift else recipe.objective
        changed = dataclasses.replace(recipe.adaptation, first_alone=self.first_alone, **given)
        start = self.base or recipe.start_from
        if recipe.objective == "next_token":
            unused = "mask_token align anneal whole_share no_shift first_alone"
            self.refuse(unused, f"with {recipe.name}, but with adapted")
        mix = dataclasses.replace(recipe.canvases, **self._given("tokens"))
        if mix.tokens < (length := max(mix.lengths)):
            raise CallError(f"--tokens: expected {length}, one canvas, or more, found {mix.tokens}")
        share = recipe.whole_canvas_share if self.whole_share is None else self.whole_share
        given = {"adaptation": changed, "canvases": mix, "whole_canvas_share": share}
        return dataclasses.replace(recipe, objective=objective, start_from=start, **given)

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def read_data(path: Path | None) -> Any:
    """Return the user's text, a corpus from a folder or documents from a file; None without a path."""
    from sinkscope.lab.texts import open_corpus, read_texts

    return None if path is None else open_corpus(path) if path.is_dir() else read_texts(path)


def held_out(recipe: Any, texts: Any, count: int) -> list[Any]:
    """Return canvases on which the sinks of a recipe's network are measured."""
    from sinkscope.lab.run_folder import held_out_rows
    from sinkscope.lab.starting_network import choose_tokenizer

    tokenizer = choose_tokenizer(recipe, texts)
    mask_id = None if recipe.objective == "next_token" else tokenizer.mask_token_id
    rows, shift = held_out_rows(recipe, tokenizer, texts, count), recipe.objective == "shifted_diffusion"
    return emergence.hold_out(*rows, mask_id=mask_id, shift=shift)
