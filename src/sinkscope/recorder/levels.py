"""`recording` records every generation inside its ``with`` block, at one of four levels of detail."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args

from torch import nn

from sinkscope.attention import is_generating, subscribed
from sinkscope.errors import AttentionError, CallError, TraceError
from sinkscope.models import Model
from sinkscope.recorder.destinations import Destination, StatisticsDestination, TraceFolders, merge_statistics
from sinkscope.recorder.step_recorder import Recorder
from sinkscope.runs.folder import claimed_folder
from sinkscope.traces.statistics_folder import StatisticsFolder
from sinkscope.traces.writing import room_in

Level = Literal["columns", "top", "statistics", "drift"]


@contextmanager
def recording(
    model: Model | nn.Module,
    out: str | Path,
    *,
    numbered: bool = False,
    keep: Level = "columns",
    top: int = 8,
    tokenizer: Any = None,
    overwrite: bool = False,
) -> Iterator[Recorder]:
    """Record every generation of a model while the body runs; one thread at a time records, changes or runs a model.

    Args:
        model: a `Model`, any transformers module that uses the attention interface, or any torch module inside
            `sinkscope.attention.foreign`.
        out: a new or empty folder; a trace after one generation of one prompt. A batch, a second generation, or a
            network of several stacks (encoder and decoder) makes numbered traces in it.
        numbered: numbers the traces even when there is only one.
        keep: ``columns`` (everything), ``top`` (the largest columns of each head and where they are), ``statistics``
            (counts and means over all prompts, see `sinkscope.statistics.Summary`), or ``drift`` (how far keys and
            values move between steps, see `recorder.drift_recorder`; for a diffusion `Model` without a cache).
        top: how many columns of each head ``top`` keeps.
        tokenizer: a transformers tokenizer, which gives the tokens of another module than a `Model` their texts.
        overwrite: deletes the trace, statistics or drift that ``out`` holds, where it holds nothing else.

    Raises:
        CallError: the folder holds something already, nothing was generated in the body, or an unknown level.
        TraceError: the folder cannot be written.
        AttentionError: the model's attention cannot be watched, or a generation of it has begun.
    """
    if keep not in get_args(Level):
        raise CallError(f"keep: expected one of {', '.join(get_args(Level))}, found {keep!r}")
    network: Any = model.network if isinstance(model, Model) else model
    if hasattr(network, "_orig_mod"):
        raise CallError("model: pass the network that torch.compile got, or compile its layers (docs/speed.md)")
    if is_generating(network):
        raise AttentionError(
            f"a generation of {type(network).__name__} has begun, here or in another thread; open the recording first, "
            "or load it once per thread"
        )
    folder = Path(out)
    recorder: Any = None
    statistics: StatisticsFolder | None = None
    with (
        claimed_folder(folder, TraceError),
        room_in(folder, overwrite, lambda: recorder is not None and recorder.has_recorded),
    ):
        folder = folder.absolute()  # the body may change the current folder
        with ExitStack() as steps:
            if keep == "drift":
                from sinkscope.recorder.drift_recorder import recording_drift

                recorder = steps.enter_context(recording_drift(model, folder))  # type: ignore[arg-type]
            else:
                destination: Destination = TraceFolders(folder, numbered, top if keep == "top" else None)
                if keep == "statistics":
                    statistics = StatisticsFolder(folder, {}, merge_statistics)
                    destination = StatisticsDestination(statistics, count())
                recorder = steps.enter_context(recording_to(model, destination, tokenizer))
            yield recorder
        if not recorder.has_recorded:
            raise CallError(f"{folder}: nothing was recorded; generate inside the with block of recording")
        if statistics is not None:
            statistics.close()  # after an error the folder stays incomplete, with the prompts that are whole


@contextmanager
def recording_to(model: Model | nn.Module, destination: Destination, tokenizer: Any = None) -> Iterator[Recorder]:
    """Record every generation of a model to a destination while the body runs; arguments as for `recording`."""
    recorder = Recorder(model, destination, tokenizer)
    with subscribed(recorder.network, recorder):
        yield recorder
