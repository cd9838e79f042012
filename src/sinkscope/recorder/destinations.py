"""Where the steps of a recording go: into a trace for each prompt, or into the statistics of all prompts.

A destination makes a writer for each prompt, which takes its steps in order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import CallError
from sinkscope.runs.folder import difference_in_words, differences
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.traces import TraceWriter, claim_folder
from sinkscope.traces.statistics_folder import Arrays, StatisticsFolder
from sinkscope.traces.trace_array import keep_top

ABOUT = ("model", "causal", "sampler", "mask_id", "eos_id", "layers", "heads", "kv_heads")
ABOUT += ("device", "dtype", "versions")
"""Keys of a prompt's manifest that are the same for all prompts of a run."""


class TraceFolders:
    """Writes a trace for each prompt: in the folder itself if it stays the only one (and is not to be ``numbered``),
    else in numbered folders within. ``top`` is how many of the largest columns of each head are kept; None keeps all.
    """

    def __init__(self, out: Path, numbered: bool = False, top: int | None = None) -> None:
        self.out, self.numbered = out, numbered
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

    def __init__(
        self, folder: StatisticsFolder, indices: Iterator[int], manifest: dict[str, Any], excess: float
    ) -> None:
        self.folder, self.indices, self.manifest, self.excess = folder, indices, manifest, excess
        self.completed_the_folder = self.counted = False
        self._followed = "last_query" if manifest["causal"] else "column_sums"
        self._feed = Summary.feed(PromptSettings.of(manifest["causal"], manifest), excess)

    def add(self, step: dict[str, np.ndarray]) -> None:
        self._feed.feed(step)
        if "newest_columns" in step:
            self._followed = "newest_columns"

    def flush(self) -> None:
        """No step is kept."""

    def describe(self, **more: Any) -> None:
        """The description of the prompt comes with its end."""

    def close(self, complete: bool, **more: Any) -> None:
        """Add the prompt to the folder; a prompt that was given up is left out."""
        if not complete:
            return
        texts = more.get("vocabulary", {})
        prompt = self._feed.finish({int(token): text for token, text in texts.items()})
        about = {name: self.manifest[name] for name in ABOUT} | {"followed": self._followed}
        about["hidden"] = [{name: one[name] for name in ("rule", "rules") if name in one} for one in more["hidden"]]
        arrays = Summary.of(prompt, self.excess).to_arrays()
        self.completed_the_folder = self.folder.commit(next(self.indices), arrays, about, texts)
        self.counted = True


class StatisticsDestination:
    """Counts every prompt into one folder, which its caller closes, under the next of the numbers given, in the order
    in which prompts end; one that was given up has none. ``excess`` is ε of Eq. 3, in queries' worth of attention.
    """

    level = "statistics"
    folders: tuple[Path, ...] = ()

    def __init__(self, folder: StatisticsFolder, indices: Iterable[int], excess: float = 3.0) -> None:
        self.folder, self.excess = folder, excess
        self._indices = iter(indices)
        self._counters: list[PromptCounter] = []
        self._stack: tuple[str, str] | None = None

    @property
    def completed_the_folder(self) -> bool:
        """Whether a prompt of this recording was the last one that the folder waited for."""
        return any(one.completed_the_folder for one in self._counters)

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[PromptCounter]:
        for manifest in manifests:
            stack = (manifest["stack"], manifest["attends_to"])
            if self._stack not in (None, stack):
                name = manifest["stack"] or manifest["model"]["name"]
                what = f"keep='statistics' counts one stack of layers, found a second one ({name})"
                raise CallError(f"{what}; use keep='columns'")
            self._stack = stack
            counted, prompt = [one for one in self._counters if one.counted], (manifest["prompt"], manifest["seed"])
            for other in [one.manifest for one in counted[:1]]:
                both = (settings_of(one["sampler"], one["hidden"]) for one in (other, manifest))
                expect_one_setting("statistics", *both)
            if None not in prompt and prompt in [(one.manifest["prompt"], one.manifest["seed"]) for one in counted]:
                what = f"keep='statistics' counts each prompt once, found {prompt[0]!r} again"
                raise CallError(f"{what}; leave it out, or use another seed")
        counters = [PromptCounter(self.folder, self._indices, manifest, self.excess) for manifest in manifests]
        self._counters += counters
        return counters


StepWriter = TraceWriter | PromptCounter
Destination = TraceFolders | StatisticsDestination


def settings_of(sampler: Mapping[str, Any], hidden: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what prompts must share to be pooled: the sampler's settings without the seed, and the rules of hiding."""
    sampler = {name: value for name, value in sampler.items() if name != "seed"}
    return {"sampler": sampler, "hide": [one.get("rules") for one in hidden]}


def expect_one_setting(keep: str, first: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    """Raise CallError where a prompt has other settings than the first one of a recording that pools prompts."""
    if (other := next(differences(first, mine), None)) is not None:
        change = difference_in_words(*other, "expected {name} {old!r} as for the first prompt, found {new!r}")
        raise CallError(f"keep={keep!r} pools prompts of one setting: {change}; use a folder for each setting")


def merge_statistics(earlier: Arrays, later: Arrays) -> Arrays:
    """Return the arrays of both sets of prompts together, as a `StatisticsFolder` needs it."""
    merged = Summary.from_arrays(earlier)
    merged.merge(Summary.from_arrays(later))
    return merged.to_arrays()
