"""`trace --keep statistics` and `sinks` on what it wrote: many prompts, shared by as many processes as there are."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from sinkscope.commands.shown import interval_words, note, print_json
from sinkscope.errors import CallError


def count_prompts(model: Any, texts: list[str], out: Path, settings: Any, as_json: bool, hide: str = "none") -> None:
    """Writes the prompts of this process, under a rule of hiding, and counts them; the process that brings the last one in says so.

    Under torchrun each process takes every n-th prompt; a prompt is always written alone, so that the result does not
    depend on the number of processes.

    Raises:
        CallError: a folder of another run.
    """
    from tqdm import tqdm

    import sinkscope
    from sinkscope.decoding import step_count
    from sinkscope.recorder.statistics_recorder import merge_statistics, recording_statistics
    from sinkscope.traces.statistics_folder import StatisticsFolder

    rank, world = _processes()
    folder = StatisticsFolder(out, _identity(model, texts, settings, hide), merge_statistics, len(texts))
    mine = [index for index in range(rank, len(texts), world) if not folder.done(index)]
    if len(mine) < len(range(rank, len(texts), world)):
        note(f"{out}: {len(range(rank, len(texts), world)) - len(mine)} prompts are in already")
    brought_in = folder.fold()  # what a killed process left
    rule = sinkscope.parse_rule(hide)
    with rule(model) as hiding, tqdm(total=step_count(settings) * len(mine), desc="steps", unit="step", disable=None) as bar:
        for index in mine:
            with recording_statistics(model, folder, [index]) as recorder:
                sinkscope.generate(model, texts[index], on_step=lambda _: _advance(bar), **dataclasses.asdict(settings))
            brought_in = brought_in or recorder.brought_in_the_last
    if mine and not rule.idle:
        note(hiding.effect.sentence(hide))
    if brought_in or (not mine and rank == 0):
        _say(out, as_json)


def _advance(bar: Any) -> None:
    bar.update()


def _processes() -> tuple[int, int]:
    """This process' number and how many there are, as torchrun says."""
    try:
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError as error:
        raise CallError(f"RANK and WORLD_SIZE: expected whole numbers, as torchrun sets them ({error})") from error
    if not 0 <= rank < world:
        raise CallError(f"RANK: expected 0 to {world - 1}, found {rank}")
    return rank, world


def _identity(model: Any, texts: list[str], settings: Any, hide: str) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "weight_hash": model.card.weight_hash,
        "dtype": model.card.dtype,
        "sampler": {"name": model.family.sampler, **dataclasses.asdict(settings)},
        "hide": hide,
        "prompts_sha256": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    }


def _say(out: Path, as_json: bool) -> None:
    from sinkscope.traces import read_statistics

    manifest, _, _ = read_statistics(out)
    if as_json:
        print_json({"statistics": str(out), "prompts": manifest["prompts"], "complete": manifest["complete"]})
    else:
        print(f"{out}: statistics of {manifest['prompts']} prompts")


def statistics_document(folder: Path) -> dict[str, Any]:
    """What ``sinks --json`` prints for a folder of statistics."""
    from sinkscope.sinks.accumulators import Statistics
    from sinkscope.traces import read_statistics

    manifest, arrays, texts = read_statistics(folder)
    statistics = Statistics.from_arrays(arrays)
    special = tuple(token for token in (manifest.get("eos_id"),) if token is not None)
    return {
        "level": "statistics",
        "trace": str(folder),
        "complete": manifest["complete"],
        "prompts": manifest["prompts"],
        "excess": statistics.excess,
        "unit": "queries",
        **statistics.result(texts, manifest.get("mask_id"), special),
    }


def show_statistics(folder: Path, as_json: bool) -> None:
    """Prints what a folder of statistics says."""
    document = statistics_document(folder)
    if not document["complete"]:
        note(f"{folder}: incomplete, {document['prompts']} prompts")
    if as_json:
        print_json(document)
        return
    counts, means = document["counts"], document["means"]["by_prompt"]
    share = counts["sinks"] / max(1, counts["columns"])
    print(f"{folder}: {document['prompts']} prompts, {counts['steps']} steps, {counts['sinks']} sinks ({share:.2%} of the columns)")
    print(f"excess > {document['excess']:g} queries; mean over prompts, with {interval_words(document['prompts'])}")
    for name, found in means.items():
        if found["mean"] is not None:
            interval = "" if found["interval"] is None else "  ({:.4g} to {:.4g})".format(*found["interval"])
            print(f"  {name.replace('_', ' '):<34}{found['mean']:>10.4g}{interval}")
    _print_paths(document["statistics"])
    print(f"\n{'token':<16}{'class':<14}{'share of sinks':>15}{'of canvas':>11}")
    canvas = max(1, sum(one["canvas"] for one in counts["classes"].values()))
    for row in counts["tokens"][:12]:
        text = row["text"] if row["text"] is not None else f"<{row['token']}>"
        print(f"{text!r:<16}{row['class']:<14}{row['sinks'] / max(1, counts['sinks']):>15.2%}{row['canvas'] / canvas:>11.2%}")


def _print_paths(rows: list[dict[str, Any]]) -> None:
    """What sinks do and who attends to them at ε = 3 queries' worth; the rest, other points and layers are in the JSON."""
    from sinkscope.sinks.catalogue import definition_of

    for row in rows:
        place = {key: value for key, value in row["at"].items() if key not in ("excess", "unit")}
        here = (row["at"].get("excess"), row["at"].get("unit")) == (3.0, "queries") and not {"layer", "third"} & place.keys()
        if not here or row["value"] is None or row["name"].partition(".")[0] not in ("movement", "triggers", "agreement", "groups"):
            continue
        label = ", ".join([row["name"].replace("_", " ").replace(".", ": "), *map(str, place.values())])
        interval = "" if row["low"] is None else f"  ({row['low']:.4g} to {row['high']:.4g})"
        p = f"  p {row['p']:.3f}" if "p" in row else ""
        print(f"  {label:<44}{row['value']:>10.4g} {definition_of(row['name']).unit}{interval}{p}")
