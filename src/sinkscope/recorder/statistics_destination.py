"""Records statistics only: every step is counted into the summary of its prompt, and no column is stored."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sinkscope.errors import CallError
from sinkscope.recorder.step_recorder import StepWriter
from sinkscope.runs.folder import difference_in_words, differences
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.traces.statistics_folder import Arrays, StatisticsFolder

ABOUT = ("model", "causal", "sampler", "mask_id", "eos_id", "layers", "heads", "kv_heads")
ABOUT += ("device", "dtype", "versions")
"""Keys of a prompt's manifest that are the same for all prompts of a run."""


class PromptCounter:
    """Counts the steps of one prompt, and adds them to the folder when the prompt is complete."""

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
    """Counts every prompt into one folder, under the next of the numbers given.

    Args:
        folder: of the statistics; its caller closes it.
        indices: numbers of the prompts, in the order in which they end; one that was given up has none.
        excess: ε of Eq. 3, in queries' worth of attention.
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

    def open(self, manifests: Sequence[dict[str, Any]], several: bool) -> list[StepWriter]:
        for manifest in manifests:
            stack = (manifest["stack"], manifest["attends_to"])
            if self._stack not in (None, stack):
                raise CallError(
                    "keep='statistics' counts one stack of layers, found a second one "
                    f"({manifest['stack'] or manifest['model']['name']}); use keep='columns'"
                )
            self._stack = stack
            counted = [one.manifest for one in self._counters if one.counted]
            if counted:
                _refuse_other(counted, manifest)
        counters = [PromptCounter(self.folder, self._indices, manifest, self.excess) for manifest in manifests]
        self._counters += counters
        return list(counters)


def _refuse_other(counted: list[dict[str, Any]], manifest: Mapping[str, Any]) -> None:
    """Refuse a prompt of other settings than the first one's, and one that was counted before with its seed."""
    other = next(differences(_settings_of(counted[0]), _settings_of(manifest)), None)
    if other is not None:
        change = difference_in_words(*other, "expected {name} {old!r} as for the first prompt, found {new!r}")
        raise CallError(f"keep='statistics' counts prompts of one setting: {change}; use a folder for each setting")
    prompt = manifest["prompt"], manifest["seed"]
    if None not in prompt and any((one["prompt"], one["seed"]) == prompt for one in counted):
        raise CallError(
            f"keep='statistics' counts each prompt once, found {prompt[0]!r} again; leave it out, or use another seed"
        )


def _settings_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    sampler = {name: value for name, value in manifest["sampler"].items() if name != "seed"}
    return {"sampler": sampler, "hide": [one.get("rules") for one in manifest["hidden"]]}


def merge_statistics(earlier: Arrays, later: Arrays) -> Arrays:
    """Return the arrays of both sets of prompts together, as a `StatisticsFolder` needs it."""
    merged = Summary.from_arrays(earlier)
    merged.merge(Summary.from_arrays(later))
    return merged.to_arrays()
