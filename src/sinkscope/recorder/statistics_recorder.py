"""Recording that keeps statistics only: every step goes into the summary of its prompt, no column is stored."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from sinkscope.attention import GenerationStart, subscribed
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.recorder.step_tensors import LayerSeen
from sinkscope.recorder.trace_recorder import Recorder, _Looked, _Row, _shape, _View
from sinkscope.statistics import PromptSettings, Summary
from sinkscope.traces.statistics_folder import Arrays, StatisticsFolder

ABOUT = ("model", "causal", "sampler", "mask_id", "eos_id", "layers", "heads", "kv_heads", "device", "dtype", "versions")


class _Counted:
    """Takes the steps of one prompt where a `TraceWriter` would write them."""

    held = 0  # a step is counted at once

    def __init__(self, folder: StatisticsFolder, index: int, manifest: dict[str, Any], excess: float) -> None:
        self.folder, self.index, self.manifest, self.brought_in_the_last = folder, index, manifest, False
        self.excess, self.feed = excess, Summary.feed(PromptSettings.of(manifest["causal"], manifest), excess)

    def add(self, step: dict[str, np.ndarray]) -> None:
        self.feed.feed(step)

    def close(self, complete: bool, **more: Any) -> None:
        """A prompt that was given up counts for nothing."""
        if complete:
            texts = more.get("vocabulary", {})
            prompt = self.feed.finish({int(token): text for token, text in texts.items()})
            about = {name: self.manifest[name] for name in ABOUT}
            about["hidden"] = [{name: one[name] for name in ("rule", "rules") if name in one} for one in more.get("hidden", ())]
            self.brought_in_the_last = self.folder.commit(self.index, Summary.of(prompt, self.excess).to_arrays(), about, texts)


class StatisticsRecorder(Recorder):
    """Watches like a `Recorder`; made by `recording` with ``keep="statistics"``."""

    def __init__(self, folder: StatisticsFolder, model: Model | None, network: nn.Module, indices: Iterator[int], excess: float) -> None:
        super().__init__(folder.folder, model, network, numbered=False)
        self._folder, self._indices, self._excess = folder, indices, excess
        self._counted: list[_Counted] = []

    @property
    def brought_in_the_last(self) -> bool:
        """Whether a prompt of this recorder completed the folder."""
        return any(one.brought_in_the_last for one in self._counted)

    def _open(self, view: _View, seen: dict[str, LayerSeen], looked: _Looked, start: GenerationStart) -> dict[int, _Row]:
        if self._rows:
            raise CallError(
                "keep='statistics' counts one stack of layers, found a second one "
                f"({view.stack or type(self.network).__name__}); use keep='columns', which makes a trace of each"
            )
        rows = {}
        for prompt in range(len(start.prompt_lengths)):
            manifest = self._manifest(start, prompt, looked) | _shape(view, seen, looked)
            counted = _Counted(self._folder, next(self._indices), manifest, self._excess)
            self._counted.append(counted)
            rows[prompt] = _Row(counted)  # type: ignore[arg-type]  # it has what a row needs of a writer
        return rows


def merge_statistics(earlier: Arrays, later: Arrays) -> Arrays:
    """The arrays of both, for a `StatisticsFolder`."""
    merged = Summary.from_arrays(earlier)
    merged.merge(Summary.from_arrays(later))
    return merged.to_arrays()


@contextmanager
def recording_statistics(
    model: Model | nn.Module, folder: StatisticsFolder, indices: Iterable[int], excess: float = 3.0
) -> Iterator[StatisticsRecorder]:
    """Counts every prompt written inside, under the next of the numbers given.

    Args:
        folder: where they go; whoever opened it says when it is complete.
        indices: numbers of the prompts, in the order in which they are written.
        excess: ε of Eq. 3, in queries' worth of attention.
    """
    network = model.network if isinstance(model, Model) else model
    recorder = StatisticsRecorder(folder, model if isinstance(model, Model) else None, network, iter(indices), excess)
    with subscribed(network, recorder):
        yield recorder


@contextmanager
def recording_into(model: Model | nn.Module, out: Path) -> Iterator[StatisticsRecorder]:
    """A folder of its own, complete when the body ends; an exception leaves what is whole, incomplete."""
    from itertools import count

    folder = StatisticsFolder(out, {}, merge_statistics)
    with recording_statistics(model, folder, count()) as recorder:
        yield recorder
    folder.close()
