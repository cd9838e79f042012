"""`recording` records every generation inside its ``with`` block, at one of four levels of detail."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

from torch import nn

from sinkscope.attention import is_generating, subscribed
from sinkscope.documents import describe
from sinkscope.errors import AttentionError, CallError, TraceError
from sinkscope.locks import claimed_folder
from sinkscope.models import Model
from sinkscope.recorder.destination import Destination, TraceFolders
from sinkscope.recorder.manifest import check_tokenizer
from sinkscope.recorder.own_process import OwnProcess
from sinkscope.recorder.step_recorder import Recorder
from sinkscope.traces.format import DRIFT
from sinkscope.traces.writing import room_in

FEW, MOST = 8, 1 << 20
Level = Literal["columns", "top", "statistics", "drift"]


@contextmanager
def recording(
    model: Model | nn.Module,
    out: str | Path,
    *,
    numbered: bool = False,
    keep: Level = "columns",
    top: int = FEW,
    tokenizer: Any = None,
    overwrite: bool = False,
) -> Iterator[Recorder]:
    """Record every generation of a model while the body runs; one thread at a time records, changes or runs a recorded model.

    Args:
        model: a `Model`, any transformers module that uses the attention interface, or any torch module inside
            `sinkscope.attention.foreign`.
        out: a new or empty folder. After one generation of one prompt it is a trace. A batch, a second generation, or a network of several
            stacks (encoder and decoder) makes numbered traces in it.
        numbered: numbers the traces even when there is only one.
        keep: ``columns`` (everything), ``top`` (the largest columns of each head and where they are), ``statistics``
            (counts and means over all prompts, in one small folder; see `sinkscope.statistics.Summary`), or ``drift`` (how far keys and
            values move between steps, see `sinkscope.statistics.key_drift`; for a diffusion `Model` without a cache).
        top: how many columns of each head ``top`` keeps; not for another level.
        tokenizer: a transformers tokenizer, which gives the tokens of another module than a `Model` their texts.
        overwrite: deletes the trace, statistics or drift that ``out`` holds; a folder with anything else in it is refused.

    Raises:
        CallError: the folder holds something already, nothing was generated in the body, an unknown level, ``top`` for another level, no
            tokenizer in its place, or one for a `Model`, which has its own.
        TraceError: the folder cannot be written.
        AttentionError: the model's attention cannot be watched, or a generation of it has begun.
    """
    if not isinstance(model, Model | nn.Module):
        raise CallError(f"expected a sinkscope Model or a transformers module, found {type(model).__name__}")
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise CallError(
            "model: expected the network itself, found what torch.compile returned; pass the network that was compiled, "
            "or compile its layers (docs/speed.md)"
        )
    if top < 1:
        raise CallError(f"top: expected at least 1 column of each head, found {top}")
    if top > MOST:
        raise CallError(f"top: expected at most {MOST:,} columns of each head, found {describe(top)}")
    if keep != "top" and top != FEW:
        raise CallError(f"top: expected keep='top' with it, found keep={keep!r}; leave top out")
    if tokenizer is not None and isinstance(model, Model):
        raise CallError(f"tokenizer: {model.card.name} has its own; leave it out")
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    network = model.network if isinstance(model, Model) else model
    if is_generating(network):
        raise AttentionError(
            f"expected a recording around a whole generation, found one of {type(network).__name__} that has begun, here or in another "
            "thread; open the recording before it, or load the model once for each thread"
        )
    folder = Path(out)
    with OwnProcess() as files:
        files.enter_context(claimed_folder(folder, TraceError))
        room = files.enter_context(room_in(folder, overwrite))
        folder = folder.absolute()  # the body may change the current folder
        if keep == "drift":
            from sinkscope.recorder.drift_recorder import recording_drift

            if not isinstance(model, Model):
                raise CallError(f"keep: drift needs a sinkscope Model, found {type(model).__name__}")
            with OwnProcess() as steps:
                drift = steps.enter_context(recording_drift(model, folder))
                room.recorded = lambda: (folder / DRIFT).exists()
                yield drift  # type: ignore[misc]
            _expect_recorded(bool(drift.sums), folder)
            return
        if keep != "statistics":
            with OwnProcess() as steps:
                traces = TraceFolders(folder, numbered, top if keep == "top" else None)
                recorder = steps.enter_context(recording_to(model, traces, tokenizer))
                room.recorded = lambda: recorder.has_recorded
                yield recorder
            _expect_recorded(recorder.has_recorded, folder)
            return
        from sinkscope.recorder.statistics_destination import StatisticsDestination, own_folder

        statistics = own_folder(folder)
        with OwnProcess() as steps:
            recorder = steps.enter_context(recording_to(model, StatisticsDestination(statistics, count()), tokenizer))
            room.recorded = lambda: recorder.has_recorded
            yield recorder
        _expect_recorded(recorder.has_recorded, folder)
        statistics.close()  # after an error the folder stays incomplete, with the prompts that are whole


def _expect_recorded(recorded: bool, folder: Path) -> None:
    """Raise CallError where nothing was recorded."""
    if not recorded:
        raise CallError(
            f"{folder}: nothing was recorded; expected a generation of the model inside the with block of recording"
        )


@contextmanager
def recording_to(model: Model | nn.Module, destination: Destination, tokenizer: Any = None) -> Iterator[Recorder]:
    """Record every generation of a model to a destination while the body runs; ``tokenizer`` is as for `recording`.

    Raises:
        AttentionError: the model's attention cannot be watched.
    """
    given = model if isinstance(model, Model) else None
    network = model.network if isinstance(model, Model) else model
    recorder = Recorder(network, given, destination, tokenizer)
    with subscribed(network, recorder):
        yield recorder
