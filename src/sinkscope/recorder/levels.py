"""`recording` records every generation inside its ``with`` block, at one of three levels of detail."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from sinkscope.attention import subscribed
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.recorder.destination import Destination, TraceFolders
from sinkscope.recorder.step_recorder import Recorder
from sinkscope.traces import claim_folder

Level = Literal["columns", "top", "statistics"]


@contextmanager
def recording(
    model: Model | nn.Module, out: str | Path, *, numbered: bool = False, keep: Level = "columns", top: int = 8
) -> Iterator[Recorder]:
    """Record every generation of a model while the body runs.

    Args:
        model: a `Model`, any transformers module that uses the attention interface, or any torch module inside
            `sinkscope.attention.foreign`.
        out: a new or empty folder. After one generation of one prompt it is a trace. A batch, a second generation, or a network of several
            stacks (encoder and decoder) makes numbered traces in it.
        numbered: numbers the traces even when there is only one.
        keep: ``columns`` (everything), ``top`` (the largest columns of each head and where they are), or ``statistics``
            (counts and means over all prompts, in one small folder; see `sinkscope.statistics.Summary`).
        top: how many columns of each head ``top`` keeps.

    Raises:
        CallError: the folder holds something already, or an unknown level.
        TraceError: the folder cannot be written.
        AttentionError: the model's attention cannot be watched.
    """
    if not isinstance(model, Model | nn.Module):
        raise CallError(f"expected a sinkscope Model or a transformers module, found {type(model).__name__}")
    if keep not in get_args(Level):
        raise CallError(f"keep: expected one of {', '.join(get_args(Level))}, found {keep!r}")
    if keep == "top" and top < 1:
        raise CallError(f"top: expected at least 1 column of each head, found {top}")
    folder = Path(out)
    claim_folder(folder)
    if keep != "statistics":
        with recording_to(model, TraceFolders(folder, numbered, top if keep == "top" else None)) as recorder:
            yield recorder
        return
    from sinkscope.recorder.statistics_destination import StatisticsDestination, own_folder

    statistics = own_folder(folder)
    with recording_to(model, StatisticsDestination(statistics, count())) as recorder:
        yield recorder
    statistics.close()  # after an error the folder stays incomplete, with the prompts that are whole


@contextmanager
def recording_to(model: Model | nn.Module, destination: Destination) -> Iterator[Recorder]:
    """Record every generation of a model to a destination while the body runs.

    Raises:
        AttentionError: the model's attention cannot be watched.
    """
    given = model if isinstance(model, Model) else None
    network = model.network if isinstance(model, Model) else model
    recorder = Recorder(network, given, destination)
    with subscribed(network, recorder):
        yield recorder
