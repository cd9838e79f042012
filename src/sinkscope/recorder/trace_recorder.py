"""`with recording(model, out=…)`: every generation inside is written to disk as a trace."""

import contextlib
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention import (
    Columns,
    GenerationStart,
    Hider,
    LayerCall,
    StepContext,
    StepResult,
    Watcher,
    current_session,
    subscribed,
)
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.recorder.async_writer import AsyncWriter
from sinkscope.recorder.command_line import command_line
from sinkscope.recorder.step_tensors import (
    GROUPS,
    PER_KV_HEAD,
    PER_QUERY,
    LayerSeen,
    accumulate,
    at_the_end,
    check_numbers,
    heads_of,
    join_devices,
    stack_layers,
)
from sinkscope.traces import TraceWriter, claim_folder, move_trace
from sinkscope.traces.top_columns import keep_top

Level = Literal["columns", "top", "statistics"]
STEP = ("tokens", "masked", "lengths")
RESULT = ("written", "predicted", "confidence")
"""What travels of a `StepContext` and of a `StepResult`."""
HELD = 256 << 20
"""Bytes that may wait for their parts to be closed, over all prompts of a batch."""


@dataclass
class _Row:
    """One prompt being written."""

    writer: TraceWriter
    running: dict[str, Tensor] = field(default_factory=dict)
    last_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    steps: int = 0


@dataclass(frozen=True)
class _View:
    """The layers of one stack that look at the same tokens; each has traces of its own.

    Attributes:
        stack: module path of the stack.
        crossing: whether they look at another stack's tokens.
    """

    stack: str
    crossing: bool


@dataclass(frozen=True)
class _Looked:
    """A step as one view has it.

    Attributes:
        context: the step; of a crossing view with the tokens that are looked at, and the lengths of their rows.
        queries: tokens that look, left padding included.
        anew: whether these are all queries, so that nothing is behind a cache.
        causal: whether columns are running sums.
        crossing: whether the tokens are another stack's.
        source: module path of that stack, None where nobody knows.
    """

    context: StepContext
    queries: int
    anew: bool
    causal: bool
    crossing: bool = False
    source: str | None = None


class Recorder(Watcher):
    """Watches the columns of one model and writes them; made by `recording`."""

    groups = ("all", "masked", "prompt")

    def __init__(self, out: Path, model: Model | None, network: nn.Module, numbered: bool, top: int | None = None) -> None:
        self.out, self.model, self.network, self.numbered, self.top = out, model, network, numbered, top
        self.folders: list[Path] = []
        self._rows: dict[_View, dict[int, _Row]] = {}
        self._start: GenerationStart | None = None
        self._context: StepContext | None = None
        self._contexts: dict[str, StepContext] = {}
        self._seen: dict[_View, dict[str, LayerSeen]] = {}
        self._token_texts: dict[int, str] = {}
        self._async_writer = AsyncWriter()
        self._paths: dict[_View, set[str]] = {}  # that made columns in this generation
        self._hiders: dict[int, Hider] = {}  # by identity: those that were there in a step of this generation

    def begin_generation(self, start: GenerationStart) -> None:
        """Prepares a trace per prompt and stack; they appear on disk with their first step."""
        self._start, self._rows, self._contexts, self._hiders, self._paths = start, {}, {}, {}, {}

    def begin_step(self, context: StepContext) -> None:
        """Keeps the canvas that goes in, and who hides."""
        self._context, self._seen = context, {}
        session = current_session(self.network)
        if session is not None:
            self._hiders.update((id(one), one) for one in session.subscribers if isinstance(one, Hider))

    def watch(self, call: LayerCall, columns: Columns) -> None:
        """Keeps a layer's columns and norms until the step ends."""
        if self._context is None:  # a call between two steps of a sampler: nobody's step
            return
        view = _View(call.stack, call.crossing)
        self._paths.setdefault(view, set()).add(columns.path)
        try:
            seen = LayerSeen.of(call, columns, self.groups)
        except torch.OutOfMemoryError:  # what is under way holds memory of the device
            self._async_writer.drain()
            seen = LayerSeen.of(call, columns, self.groups)
        self._seen.setdefault(view, {})[call.name] = seen

    def end_step(self, result: StepResult | None) -> None:
        """Sends the step to the writers; on a GPU it is on its way when this returns."""
        context, start = self._context, self._start
        if context is None or start is None:
            return
        for view, seen in self._seen.items():
            looked, layers = self._look(view, seen, context, start), list(seen.values())
            heads_of(layers)
            if view not in self._rows:
                self._rows[view] = self._open(view, seen, looked, start)
            try:
                stacked = stack_layers(layers, looked.causal)
            except torch.OutOfMemoryError:
                self._async_writer.drain()
                stacked = stack_layers([layer.on_the_host() for layer in layers], looked.causal)
            sent = {f"{number} {name}": one for number, part in enumerate(stacked) for name, one in part.items()}
            sent |= {name: getattr(looked.context, name) for name in STEP}
            if result is not None and not view.crossing:
                sent |= {name: one for name in RESULT if (one := getattr(result, name)) is not None}
            self._async_writer.send(sent, partial(self._land, self._rows[view], looked, list(seen), len(stacked)))
            self._contexts[view.stack] = context
        self._context, self._seen = None, {}

    def _land(self, rows: dict[int, _Row], looked: _Looked, layers: list[str], devices: int, sent: dict[str, Tensor]) -> None:
        """Hands the step to the writers once it is on the host, one row at a time, left padding stripped."""
        names = [[name for name in sent if name.startswith(f"{number} ")] for number in range(devices)]
        stacked = join_devices([{name.partition(" ")[2]: sent[name] for name in part} for part in names])
        context = replace(looked.context, **{name: sent[name] for name in STEP})
        result = StepResult(**{name: sent[name] for name in RESULT if name in sent}) if "written" in sent else None
        for row, prompt in zip(context.rows, context.prompts, strict=True):
            check_numbers(stacked["column_sums"][:, row], layers, rows[prompt].steps)
            self._write(rows[prompt], row, replace(looked, context=context), stacked, result)
            writers = [one.writer for one in rows.values()]
            while sum(writer.held for writer in writers) > HELD:
                max(writers, key=lambda writer: writer.held).flush()

    def end_generation(self, failed: bool) -> None:
        """Closes the traces once every step has arrived; one that was given up says ``complete: false``.

        Raises:
            AttentionError: a step whose attention is not a number.
        """
        rows, self._rows = [(view, *row) for view, rows in self._rows.items() for row in rows.items()], {}
        error: BaseException | None = None
        try:
            self._async_writer.drain()
        except BaseException as late:
            error = late
        self._async_writer.close()
        for view, prompt, row in rows:
            more = self._texts(row) | {"hidden": self._hidden(prompt), "attention": self._attention(view)}
            if failed or error is not None:
                with contextlib.suppress(Exception):  # the reason of the failure is on its way already
                    row.writer.close(complete=False, **more)
            else:
                row.writer.close(complete=True, **more)
        self._start = self._context = None
        if error is not None and not failed:
            raise error

    def _look(self, view: _View, seen: dict[str, LayerSeen], context: StepContext, start: GenerationStart) -> _Looked:
        layer = next(iter(seen.values()))
        queries, causal = layer.diagonal.shape[-1], start.causal if context.causal is None else context.causal
        anew = queries == context.tokens.shape[1]
        if not view.crossing:
            return _Looked(context, queries, anew, causal)
        batch, keys = layer.sums.shape[0], layer.sums.shape[-1]
        fitting = {name: one for name, one in self._contexts.items() if name != view.stack and one.tokens.shape == (batch, keys)}
        source = next(reversed(fitting), None)
        if source is None:  # states that came ready-made: nobody knows their tokens
            tokens, lengths = context.tokens.new_full((batch, keys), -1), torch.full((batch,), keys, device="cpu")
        else:
            tokens, lengths = fitting[source].tokens, fitting[source].lengths
        looked_at = replace(context, tokens=tokens, masked=torch.zeros_like(tokens, dtype=torch.bool), lengths=lengths)
        return _Looked(replace(looked_at, prompt_lengths=tuple(lengths.tolist())), queries, anew, causal, True, source)

    def _open(self, view: _View, seen: dict[str, LayerSeen], looked: _Looked, start: GenerationStart) -> dict[int, _Row]:
        context, count, rows = looked.context, len(start.prompt_lengths), {}
        session = current_session(self.network)
        several = session is not None and len(session.stacks) > 1
        if len(self.folders) == 1 and self.folders[0] == self.out:
            move_trace(self.out, self.out / "000000")  # a second generation makes the first a numbered one
            self.folders[0] = self.out / "000000"
            for row in (row for others in self._rows.values() for row in others.values()):
                row.writer.folder = self.folders[0]
        for prompt in range(count):
            alone = count == 1 and not self.folders and not self.numbered and not several
            folder = self.out if alone else self.out / f"{len(self.folders):06d}"
            if not alone:
                claim_folder(folder)
            self.folders.append(folder)
            tokens = context.tokens[context.rows[context.prompts.index(prompt)]] if prompt in context.prompts else context.tokens[0]
            manifest = self._manifest(start, prompt, looked) | self._words(tokens.cpu().numpy()) | _shape(view, seen, looked)
            manifest["attention"] = self._attention(view)
            rows[prompt] = _Row(TraceWriter(folder, manifest))
        return rows

    def _manifest(self, start: GenerationStart, prompt: int, looked: _Looked) -> dict[str, Any]:
        model = self.model
        sampler = dict(start.sampler)
        if "seed" in sampler:
            sampler["seed"] += prompt
        parameter = next(self.network.parameters(), torch.empty(0))
        return {
            "model": model.card.as_dict() if model is not None else {"name": type(self.network).__name__},
            "command": command_line(),
            "causal": looked.causal,
            "sampler": sampler,
            "seed": sampler.get("seed"),
            "prompt": start.prompts[prompt],
            "prompt_length": (looked.context.prompt_lengths or start.prompt_lengths)[prompt],
            "mask_id": start.mask_id,
            "eos_id": model.card.eos_id if model is not None else None,
            "level": "columns" if self.top is None else "top",
            "hidden": self._hidden(prompt),
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "versions": {
                "sinkscope": version("sinkscope"),
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
        }

    def _hidden(self, prompt: int) -> list[dict[str, Any]]:
        """What is hidden from the model in this generation, and what came of it so far."""
        return [one.describe(prompt) for one in self._hiders.values()]

    def _attention(self, view: _View) -> str:
        """Which implementations made the columns of this view so far."""
        return "+".join(sorted(self._paths[view]))

    def _write(self, target: _Row, row: int, looked: _Looked, stacked: dict[str, Tensor], result: StepResult | None) -> None:
        context = looked.context
        width, length = context.tokens.shape[1], int(context.lengths[row])
        padding = width - length
        step: dict[str, Any] = {name: tensor[:, row] for name, tensor in stacked.items()}
        keys = step["column_sums"].shape[-1]
        own = slice(max(0, padding - (width - keys)), None)
        fresh = slice(max(0, padding - (width - looked.queries)), None)
        arrays: dict[str, Any] = {
            "tokens": context.tokens[row, padding:].to(torch.int32),
            "masked": context.masked[row, padding:].to(torch.uint8),
            "lengths": torch.tensor(length, dtype=torch.int32, device="cpu"),
            **{name: step[name][..., own] for name in (*GROUPS, *PER_KV_HEAD, "last_query") if name in step},
        }
        if "sink_token_columns" in step:
            arrays["sink_token_columns"] = step["sink_token_columns"]
        if not looked.crossing:  # the queries stand on the same canvas
            arrays |= {name: step[name][..., fresh] for name in PER_QUERY if name in step}
        if looked.causal:
            arrays.update(accumulate(target.running, arrays, looked.anew))
        at_the_end(arrays, length)
        if result is not None:
            arrays["written"] = result.written[row, padding:].to(torch.int32)
            if result.predicted is not None:
                arrays["predicted"] = result.predicted[row, padding:].to(torch.int32)
            if result.confidence is not None:
                arrays["confidence"] = result.confidence[row, padding:].float()
        plain = {name: value.detach().cpu().contiguous().numpy() for name, value in arrays.items()}
        target.last_tokens = _canvas_after(plain)
        target.steps += 1
        target.writer.add(plain if self.top is None else keep_top(plain, self.top))

    def _texts(self, row: _Row) -> dict[str, Any]:
        if self.model is None:
            return {}
        tokens = row.last_tokens
        answer = torch.from_numpy(tokens[row.writer.manifest["prompt_length"] :].astype(np.int64))
        return {"text": self.model.answer_text(answer), **self._words(tokens)}

    def _words(self, tokens: np.ndarray) -> dict[str, Any]:
        """How the tokens of a canvas read, so that a trace is legible without its model."""
        if self.model is None:
            return {}
        special = [token for token in (self.model.card.mask_id, self.model.card.eos_id) if token is not None]
        shown = sorted({int(token) for token in tokens if token >= 0} | set(special))
        for token in shown:
            if token not in self._token_texts:  # special tokens have no text, they go by their name
                text = self.model.tokenizer.decode([token])
                self._token_texts[token] = text if text else str(self.model.tokenizer.convert_ids_to_tokens(token))
        return {"vocabulary": {str(token): self._token_texts[token] for token in shown}}


def _shape(view: _View, seen: dict[str, LayerSeen], looked: _Looked) -> dict[str, Any]:
    heads, kv_heads = heads_of(list(seen.values()))
    return {
        "layers": list(seen),
        "heads": heads,
        "kv_heads": kv_heads,
        "stack": view.stack,
        "attends_to": looked.source if view.crossing else view.stack,
    }


def _canvas_after(step: dict[str, np.ndarray]) -> np.ndarray:
    tokens, written = step["tokens"], step.get("written")
    if written is None:
        return tokens
    after = np.full(len(written), -1, np.int32)
    after[: len(tokens)] = tokens
    return np.where(written >= 0, written, after)


@contextmanager
def recording(
    model: Model | nn.Module, out: str | Path, *, numbered: bool = False, keep: Level = "columns", top: int = 8
) -> Iterator[Recorder]:
    """Records every generation of a model while the body runs.

    Args:
        model: a `Model`, any transformers module that uses the attention interface, or any torch module inside
            `sinkscope.attention.foreign`.
        out: a new or empty folder. One generation of one prompt makes it a trace; a batch, a second generation, or a
            network of several stacks (encoder and decoder) makes numbered traces in it.
        numbered: numbers the traces from the first on, also when there is only one.
        keep: ``columns`` (everything), ``top`` (the largest columns of each head and where they are), or ``statistics``
            (counts and means over all prompts, in one small folder; see `statistics.Summary`).
        top: how many columns of each head ``top`` keeps.

    Raises:
        CallError: the folder holds something already, or an unknown level.
        TraceError: the folder cannot be written.
        AttentionError: the model's attention cannot be watched.
    """
    network = model.network if isinstance(model, Model) else model
    if not isinstance(network, nn.Module):
        raise CallError(f"expected a sinkscope Model or a transformers module, found {type(model).__name__}")
    if keep not in get_args(Level):
        raise CallError(f"keep: expected one of {', '.join(get_args(Level))}, found {keep!r}")
    if keep == "top" and top < 1:
        raise CallError(f"top: expected at least 1 column of each head, found {top}")
    folder = Path(out)
    claim_folder(folder)
    if keep == "statistics":
        from sinkscope.recorder.statistics_recorder import recording_into

        with recording_into(model, folder) as counting:
            yield counting
        return
    recorder = Recorder(folder, model if isinstance(model, Model) else None, network, numbered, top if keep == "top" else None)
    with subscribed(network, recorder):
        yield recorder
