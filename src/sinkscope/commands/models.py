"""`train`, `check`: making a model, and proving one."""

import dataclasses
import sys
from pathlib import Path

from tyro.conf import Positional

from sinkscope.commands.shown import Json, print_json
from sinkscope.errors import CallError, SinkscopeError


def train(
    recipe: Positional[str],
    out: Path,
    updates: int | None = None,
    seed: int | None = None,
    device: str = "cpu",
    compile: bool = False,
    data: Path | None = None,
    sink_token: str | None = None,
) -> None:
    """Trains one of the lab's recipes; the same command goes on after a kill.

    Args:
        recipe: lab-diffusion, lab-autoregressive, lab-sink-token, lab-shifted … (an unknown name lists them all).
        out: folder for the checkpoint.
        updates: optimiser steps. (default: the recipe's)
        seed: of everything random. (default: the recipe's)
        device: cpu, cuda …
        compile: compiles the layers: faster, needs a C++ compiler, rounds differently.
        data: your own text: JSON lines with "text" or "prompt" and "answer", or plain text; a corpus folder. (default: the lab's)
        sink_token: none, token, token-end, token-2, token-4, token-zero-value, logit, off-by-one or gate. (default: the recipe's)
    """
    from sinkscope.lab.checkpoint import train_checkpoint
    from sinkscope.lab.corpus import open_corpus
    from sinkscope.lab.recipes import RECIPES
    from sinkscope.lab.texts import read_texts
    from sinkscope.models.sink_token import variant_of

    if recipe not in RECIPES:
        raise CallError(f"no recipe {recipe!r}; expected one of {', '.join(RECIPES)}")
    if sink_token is not None:
        variant_of(sink_token)
    changes = {"updates": updates, "seed": seed, "compile": compile or None, "sink_token": sink_token}
    resolved = dataclasses.replace(RECIPES[recipe], **{name: value for name, value in changes.items() if value is not None})
    texts = None if data is None else open_corpus(data) if data.is_dir() else read_texts(data)
    command = " ".join(["sinkscope", *sys.argv[1:]])
    print(train_checkpoint(resolved, out, texts=texts, device=device, command=command))


def check(model: Positional[str], device: str = "cpu", dtype: str | None = None, as_json: Json = False) -> None:
    """Loads a checkpoint and proves it: keys, rotations, attention that adds up, hiding that bites.

    Args:
        model: a bundled name, a folder, or a hub id.
        device: cpu, cuda …
        dtype: float32, bfloat16 or float16. (default: the stored one)
    """
    import sinkscope
    from sinkscope.decoding.checking import check_model

    loaded = sinkscope.load(model, dtype=dtype, device=device)
    checks = check_model(loaded)
    if as_json:
        print_json({"model": loaded.card.as_dict(), "checks": [dataclasses.asdict(one) for one in checks]})
    else:
        for one in checks:
            print(f"{'ok    ' if one.passed else 'FAILED'}  {one.name}: {one.found}")
    if not all(one.passed for one in checks):
        raise SinkscopeError(f"{model}: {sum(not one.passed for one in checks)} checks failed")
