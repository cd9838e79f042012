"""`with recording(model, out=…)`: every generation inside is written to disk as a trace."""

import contextlib
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention import Columns, GenerationStart, LayerCall, StepContext, StepResult, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.traces import TraceWriter, claim_folder, move_trace


@dataclass
class _Row:
    """One prompt being written."""

    writer: TraceWriter
    running: dict[str, Tensor] = field(default_factory=dict)
    last_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))


@dataclass(frozen=True)
class _Seen:
    """What one layer showed in the running step, all recorded rows."""

    sums: Tensor  # [batch, head, group, key]
    diagonal: Tensor
    last_row: Tensor
    value_norms: Tensor
    key_norms: Tensor
    hidden_norms: Tensor | None
    sink_token: Tensor | None  # [batch, head, sink]


class Recorder(Watcher):
    """Watches the columns of one model and writes them; made by `recording`."""

    groups = ("all", "masked")

    def __init__(self, out: Path, model: Model | None, network: nn.Module, numbered: bool) -> None:
        self.out, self.model, self.network, self.numbered = out, model, network, numbered
        self.folders: list[Path] = []
        self._rows: dict[int, _Row] = {}
        self._start: GenerationStart | None = None
        self._context: StepContext | None = None
        self._seen: dict[str, _Seen] = {}
        self._layers: list[str] = []

    def begin_generation(self, start: GenerationStart) -> None:
        """Prepares a trace per prompt; they appear on disk with their first step."""
        self._start, self._rows = start, {}

    def begin_step(self, context: StepContext) -> None:
        """Keeps the canvas that goes in."""
        self._context, self._seen = context, {}

    def watch(self, call: LayerCall, columns: Columns) -> None:
        """Keeps a layer's columns and norms until the step ends."""
        if self._context is None:  # a call between two steps of a sampler: nobody's step
            return
        hidden = call.hidden_states
        self._seen[call.name] = _Seen(
            columns.sums[:, :, [call.groups.index(group) for group in self.groups]],
            columns.diagonal,
            columns.last_row,
            torch.linalg.vector_norm(call.value, dim=-1, dtype=torch.float32),
            torch.linalg.vector_norm(call.key, dim=-1, dtype=torch.float32),
            None if hidden is None else torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.float32),
            None if columns.prefix is None else columns.prefix[:, :, call.groups.index("all")],
        )

    def end_step(self, result: StepResult | None) -> None:
        """Hands the step to the writers, one row at a time, left padding stripped."""
        context, start = self._context, self._start
        if context is None or start is None or not self._seen:
            return
        if not self._rows:
            self._open(start, context)
        stacked = _stack(list(self._seen.values()))
        for row, prompt in zip(context.rows, context.prompts, strict=True):
            self._write(self._rows[prompt], row, context, start, stacked, result)
        self._context, self._seen = None, {}

    def end_generation(self, failed: bool) -> None:
        """Closes the traces; one that was given up says ``complete: false``."""
        rows, self._rows = self._rows, {}
        for row in rows.values():
            more = self._texts(row)
            if failed:
                with contextlib.suppress(Exception):  # the reason of the failure is on its way already
                    row.writer.close(complete=False, **more)
            else:
                row.writer.close(complete=True, **more)
        self._start = self._context = None

    def _open(self, start: GenerationStart, context: StepContext) -> None:
        self._layers = list(self._seen)
        count = len(start.prompt_lengths)
        if len(self.folders) == 1 and self.folders[0] == self.out:
            move_trace(self.out, self.out / "000000")  # a second generation makes the first a numbered one
            self.folders[0] = self.out / "000000"
        for prompt in range(count):
            alone = count == 1 and not self.folders and not self.numbered
            folder = self.out if alone else self.out / f"{len(self.folders):06d}"
            if not alone:
                claim_folder(folder)
            self.folders.append(folder)
            tokens = context.tokens[context.rows[context.prompts.index(prompt)]] if prompt in context.prompts else context.tokens[0]
            manifest = self._manifest(start, prompt) | self._words(tokens.cpu().numpy())
            self._rows[prompt] = _Row(TraceWriter(folder, manifest))

    def _manifest(self, start: GenerationStart, prompt: int) -> dict[str, Any]:
        model = self.model
        sampler = dict(start.sampler)
        if "seed" in sampler:
            sampler["seed"] += prompt
        seen = next(iter(self._seen.values()))
        parameter = next(self.network.parameters())
        return {
            "model": model.card.as_dict() if model is not None else {"name": type(self.network).__name__},
            "causal": start.causal,
            "sampler": sampler,
            "seed": sampler.get("seed"),
            "prompt": start.prompts[prompt],
            "prompt_length": start.prompt_lengths[prompt],
            "mask_id": start.mask_id,
            "eos_id": model.card.eos_id if model is not None else None,
            "layers": self._layers,
            "heads": seen.sums.shape[1],
            "kv_heads": seen.value_norms.shape[1],
            "level": "columns",
            "device": str(parameter.device),
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "versions": {
                "sinkscope": version("sinkscope"),
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
        }

    def _write(
        self, target: _Row, row: int, context: StepContext, start: GenerationStart, stacked: dict[str, Tensor], result: StepResult | None
    ) -> None:
        width, length = context.tokens.shape[1], int(context.lengths[row])
        padding = width - length
        step: dict[str, Any] = {name: tensor[:, row] for name, tensor in stacked.items()}
        keys = step["sums"].shape[-1]
        own = slice(max(0, padding - (width - keys)), None)
        sums = step["sums"][..., own]
        arrays: dict[str, Any] = {
            "tokens": context.tokens[row, padding:].to(torch.int32),
            "masked": context.masked[row, padding:].to(torch.uint8),
            "lengths": torch.tensor(length, dtype=torch.int32),
            "column_sums": sums[:, :, 0],
            "value_norms": step["value_norms"][..., own],
            "key_norms": step["key_norms"][..., own],
        }
        if "sink_token" in step:
            arrays["sink_token_columns"] = step["sink_token"]
        queries = step["diagonal"].shape[-1]
        fresh = slice(max(0, padding - (width - queries)), None)
        arrays["self_attention"] = step["diagonal"][..., fresh]
        if "hidden_norms" in step:
            arrays["hidden_norms"] = step["hidden_norms"][..., fresh]
        if start.causal:
            arrays["last_query"] = step["last_row"][..., own]
            arrays.update(_accumulate(target.running, arrays))
        else:
            arrays["column_sums_masked"] = sums[:, :, 1]
        if result is not None:
            arrays["written"] = result.written[row, padding:].to(torch.int32)
            if result.predicted is not None:
                arrays["predicted"] = result.predicted[row, padding:].to(torch.int32)
            if result.confidence is not None:
                arrays["confidence"] = result.confidence[row, padding:].float()
        plain = {name: value.detach().cpu().contiguous().numpy() for name, value in arrays.items()}
        target.last_tokens = _canvas_after(plain)
        target.writer.add(plain)

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
        names = self.model.tokenizer.convert_ids_to_tokens(shown)
        return {"vocabulary": {str(token): self._token_text(token, name) for token, name in zip(shown, names, strict=True)}}

    def _token_text(self, token: int, name: str) -> str:
        """A token as it reads in the text; special tokens by their name."""
        assert self.model is not None
        text = self.model.tokenizer.decode([token])
        return text if text else str(name)


def _stack(layers: list[_Seen]) -> dict[str, Tensor]:
    """Layers of one step side by side: [layer, batch, …]."""
    hidden = [layer.hidden_norms for layer in layers]
    stacked = {
        "sums": torch.stack([layer.sums for layer in layers]),
        "diagonal": torch.stack([layer.diagonal for layer in layers]),
        "last_row": torch.stack([layer.last_row for layer in layers]),
        "value_norms": torch.stack([layer.value_norms for layer in layers]),
        "key_norms": torch.stack([layer.key_norms for layer in layers]),
    }
    if all(one is not None for one in hidden):
        stacked["hidden_norms"] = torch.stack([one for one in hidden if one is not None])
    sinks = [layer.sink_token for layer in layers]
    if all(one is not None for one in sinks):
        stacked["sink_token"] = torch.stack([one for one in sinks if one is not None])
    return stacked


def _accumulate(running: dict[str, Tensor], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Behind a cache a step has one new query: columns add up, per-query values are appended. A step of all queries begins anew."""
    if arrays["self_attention"].shape[-1] == arrays["column_sums"].shape[-1]:
        running.clear()
    columns = arrays["column_sums"].clone()
    if "column_sums" in running:
        before = running["column_sums"]
        columns[..., : before.shape[-1]] += before
    running["column_sums"] = columns
    if "sink_token_columns" in arrays:
        running["sink_token_columns"] = arrays["sink_token_columns"] + running.get("sink_token_columns", 0)
    for name in ("self_attention", "hidden_norms"):
        if name in arrays:
            running[name] = torch.cat([running[name], arrays[name]], dim=-1) if name in running else arrays[name]
    return dict(running)


def _canvas_after(step: dict[str, np.ndarray]) -> np.ndarray:
    tokens, written = step["tokens"], step.get("written")
    if written is None:
        return tokens
    after = np.full(len(written), -1, np.int32)
    after[: len(tokens)] = tokens
    return np.where(written >= 0, written, after)


@contextmanager
def recording(model: Model | nn.Module, out: str | Path, *, numbered: bool = False) -> Iterator[Recorder]:
    """Records every generation of a model while the body runs.

    Args:
        model: a `Model`, or any transformers module that uses the attention interface.
        out: a new or empty folder. One generation of one prompt makes it a trace; a batch, or a second generation,
            makes numbered traces in it.
        numbered: numbers the traces from the first on, also when there is only one.

    Raises:
        CallError: the folder holds something already.
        TraceError: the folder cannot be written.
        AttentionError: the model's attention cannot be watched.
    """
    network = model.network if isinstance(model, Model) else model
    if not isinstance(network, nn.Module):
        raise CallError(f"expected a sinkscope Model or a transformers module, found {type(model).__name__}")
    folder = Path(out)
    claim_folder(folder)
    recorder = Recorder(folder, model if isinstance(model, Model) else None, network, numbered)
    with subscribed(network, recorder):
        yield recorder
