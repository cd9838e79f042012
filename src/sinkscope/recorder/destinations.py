"""Where the steps of a recording go: into a trace for each prompt, or into the statistics of all prompts.

A destination makes a writer for each prompt, which takes its steps in order.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import CallError
from sinkscope.recorder.largest_columns import keep_top
from sinkscope.runs.folder import difference_in_words, differences
from sinkscope.sinks.finding import EXCESS
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.statistics.reduced_step import can_be_reduced, counted_step
from sinkscope.traces import TraceWriter, claim_folder
from sinkscope.traces.statistics_folder import Arrays, StatisticsFolder

ABOUT = ("model", "causal", "sampler", "mask_id", "eos_id", "layers", "heads", "kv_heads")
ABOUT += ("device", "dtype", "versions")
"""Keys of a prompt's manifest that are the same for all prompts of a run."""


class TraceFolders:
    """Writes a trace for each prompt: in the folder itself if it stays the only one (and is not to be ``numbered``),
    else in numbered folders within. ``top`` is how many of the largest columns of each head are kept; None keeps all.
    """

    def __init__(self, out: Path, numbered: bool = False, top: int | None = None) -> None:
        self.out, self.numbered, self.top = out, numbered, top
        self.level = "columns" if top is None else "top"
        self.folders: tuple[Path, ...] = ()
        self._reduce = None if top is None else partial(keep_top, count=top)
        self._first: TraceWriter | None = None

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[TraceWriter]:
        """Return a writer for each prompt; ``several`` is whether the generation makes more than one trace."""
        if self._first is not None and self.folders == (self.out,):  # a second trace makes the first a numbered one
            self.folders = (self.out / "000000",)
            self._first.move(*self.folders)
        writers = []
        for manifest in manifests:
            alone = not several and not self.folders and not self.numbered
            folder = self.out if alone else self.out / f"{len(self.folders):06d}"
            if not alone:
                claim_folder(folder)
            writers.append(TraceWriter(folder, manifest, self._reduce))
            self.folders += (folder,)
            self._first = self._first or writers[0]
        return writers


class PromptCounter:
    """Counts the steps of one prompt, and adds them to the statistics when the prompt is complete."""

    held = 0  # a step is counted at once

    def __init__(self, destination: "StatisticsDestination", manifest: dict[str, Any]) -> None:
        self.destination, self.manifest, self.counted = destination, manifest, False
        self._followed = "last_query" if manifest["causal"] else "column_sums"
        self._settings = PromptSettings.of(manifest["causal"], manifest)
        self._feed = Summary.feed(self._settings, EXCESS)

    def add(self, step: dict[str, np.ndarray]) -> None:
        reduced = "column_sums" not in step
        self._feed.feed(step, counted_step(step, self._settings, self.destination.thresholds) if reduced else None)
        if "newest_columns" in step:
            self._followed = "newest_columns"

    def flush(self) -> None:
        """Do nothing, as no step is kept."""

    def describe(self, **more: Any) -> None:
        """Do nothing: a description comes with the end of the prompt."""

    def close(self, complete: bool, **more: Any) -> None:
        if not complete:
            return
        texts = more.get("vocabulary", {})
        prompt = self._feed.finish({int(token): text for token, text in texts.items()})
        about = {name: self.manifest[name] for name in ABOUT} | {"followed": self._followed}
        about["hidden"] = [{name: one[name] for name in ("rule", "rules") if name in one} for one in more["hidden"]]
        to = self.destination
        arrays = Summary.of(prompt, EXCESS).to_arrays()
        to.completed_the_folder |= to.folder.commit(next(to.indices), arrays, about, texts)
        self.counted = True


class StatisticsDestination:
    """Counts every prompt into one folder, which its caller closes, under the next of the numbers given, in the order
    in which prompts end; one that was given up has none.
    ``reduces``: whether steps may come reduced, to what is kept at the ``thresholds``;
    ``completed_the_folder``: whether a prompt of this recording was the last one that the folder waited for.
    """

    level, top = "statistics", None
    folders: tuple[Path, ...] = ()

    def __init__(self, folder: StatisticsFolder, indices: Iterable[int]) -> None:
        self.folder, self.indices, self.completed_the_folder = folder, iter(indices), False
        self.thresholds, self.reduces = Summary.thresholds(EXCESS), can_be_reduced()
        self._counters: list[PromptCounter] = []
        self._stack: tuple[str, str] | None = None

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[PromptCounter]:
        for manifest in manifests:
            stack = (manifest["stack"], manifest["attends_to"])
            if self._stack not in (None, stack):
                name = manifest["stack"] or manifest["model"]["name"]
                what = f"keep='statistics' counts one stack of layers, found a second one ({name})"
                raise CallError(f"{what}; use keep='columns'")
            self._stack = stack
            counted = [one.manifest for one in self._counters if one.counted]
            prompt = manifest["prompt"], manifest["seed"]
            if counted:
                expect_one_setting("statistics", *((one["sampler"], one["hidden"]) for one in (counted[0], manifest)))
            if None not in prompt and prompt in [(one["prompt"], one["seed"]) for one in counted]:
                what = f"keep='statistics' counts each prompt once, found {prompt[0]!r} again"
                raise CallError(f"{what}; leave it out, or use another seed")
        counters = [PromptCounter(self, manifest) for manifest in manifests]
        self._counters += counters
        return counters


StepWriter = TraceWriter | PromptCounter
Destination = TraceFolders | StatisticsDestination


def expect_one_setting(keep: str, *settings: tuple[Mapping[str, Any], Iterable[Mapping[str, Any]]]) -> None:
    """Raise CallError where a prompt differs from the first one of a recording that pools prompts, in the sampler's
    settings, but for the seed, or in the rules of hiding.
    """
    first, mine = (
        {"sampler": {**sampler, "seed": None}, "hide": [one.get("rules") for one in hidden]}
        for sampler, hidden in settings
    )
    if (other := next(differences(first, mine), None)) is not None:
        change = difference_in_words(*other, "expected {name} {old!r} as for the first prompt, found {new!r}")
        raise CallError(f"keep={keep!r} pools prompts of one setting: {change}; use a folder for each setting")


def merge_statistics(earlier: Arrays, later: Arrays) -> Arrays:
    """Return the arrays of both sets of prompts together, as a `StatisticsFolder` needs it."""
    merged = Summary.from_arrays(earlier)
    merged.merge(Summary.from_arrays(later))
    return merged.to_arrays()
