"""The recorder of a model: it measures every layer of a step and brings it to the writer of each prompt.

The way of a step:

1. ``watch``, once for each layer: the layer's measurements are kept on their device (`step_tensors`).
2. ``end_step``: the layers are stacked, reduced, and sent to the host, on a GPU without waiting
   (`async_writer`).
3. ``_write_step``, once they have arrived: each prompt's row is cut out and added to the prompt's writer.
"""

import contextlib
import json
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention import (
    Columns,
    GenerationStart,
    Hider,
    LayerCall,
    OutputProjections,
    StepContext,
    StepResult,
    Watcher,
    upload,
)
from sinkscope.attention.session import sessions
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import Model
from sinkscope.models.fingerprints import SameWeights, were_changed
from sinkscope.recorder.async_writer import AsyncWriter
from sinkscope.recorder.destinations import Destination, StatisticsDestination, StepWriter
from sinkscope.recorder.largest_columns import largest_columns
from sinkscope.recorder.reduced_statistics import reduce_statistics
from sinkscope.recorder.step_tensors import (
    LayerTensors,
    PartStep,
    Reduce,
    StackPart,
    check_numbers,
    in_batch,
    join_devices,
    layer_tensors,
    part_step,
    prompt_arrays,
    stack_layers,
)
from sinkscope.sinks.definition import text_of

CONTEXT = ("tokens", "masked", "lengths")
"""Tensors of a `StepContext` that are brought to the host."""
MOST_HELD = 256 << 20
"""Bytes that the prompts of a batch may keep in memory, all together, before their parts of a trace are closed."""


@dataclass(eq=False)
class _Prompt:
    """A prompt of so many tokens whose steps are being recorded: ``running`` sums of a causal model, the ``canvas``
    after the last step, int32 [position], and all ``tokens`` that have stood on one.
    """

    writer: StepWriter
    length: int
    running: dict[str, Tensor] = field(default_factory=dict)
    canvas: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    tokens: set[int] = field(default_factory=set)
    steps: int = 0


class Recorder(Watcher):
    """Records every generation of one model, or of another module (``model`` None; without a tokenizer its tokens have
    no texts). ``prompts_asked`` is how many prompts are to be recorded, where that is known; manifests hold it.
    """

    groups = ("all", "masked", "prompt")

    def __init__(self, model: Model | nn.Module, destination: Destination, tokenizer: Any = None) -> None:
        self.model = model if isinstance(model, Model) else None
        self.network: nn.Module = model.network if isinstance(model, Model) else model
        self.destination = destination
        self._tokenizer = model.tokenizer if isinstance(model, Model) else tokenizer
        self._eos_id = model.card.eos_id if isinstance(model, Model) else getattr(tokenizer, "eos_token_id", None)
        self._texts: dict[int, str] = {}  # of tokens that were met
        self._projections = OutputProjections(self.network)
        self._weights = SameWeights(self.network)
        self._async_writer = AsyncWriter()
        self.has_recorded = False
        self.prompts_asked: int | None = None
        self._start: GenerationStart | None = None
        self._context: StepContext | None = None  # of the step that is running
        self._measured: dict[StackPart, dict[str, LayerTensors]] = {}  # of the step that is running, by module path
        self._before: dict[StackPart, dict[str, LayerTensors]] = {}  # of the step before, under a cache
        self._prompts: dict[StackPart, dict[int, _Prompt]] = {}
        self._last_contexts: dict[str, StepContext] = {}  # the newest step of each stack
        self._layers: dict[StackPart, list[str]] = {}
        self._paths: dict[StackPart, set[str]] = {}  # implementations of attention that were used in this generation
        self._kv_heads: dict[StackPart, int] = {}
        self._hiders: dict[int, Hider] = {}  # by identity: all that took part in a step of this generation

    @property
    def folders(self) -> tuple[Path, ...]:
        return self.destination.folders

    def begin_generation(self, start: GenerationStart) -> None:
        card = None if self.model is None else self.model.card
        if card is not None and None not in (card.mask_id, start.mask_id) and card.mask_id != start.mask_id:
            raise CallError(f"mask_id: expected {card.mask_id}, the mask of {card.name}, found {start.mask_id}")
        if self.destination.level == "statistics":
            self._weights.check("keep='statistics' counts prompts of one network")
        self._start, self._prompts, self._last_contexts, self._hiders, self._paths = start, {}, {}, {}, {}

    def begin_step(self, context: StepContext) -> None:
        self._context, self._measured = context, {}
        self._hiders |= {id(one): one for one in sessions[self.network].subscribers if isinstance(one, Hider)}

    def layer_state(self) -> Any:
        return self._measured

    def set_layer_state(self, state: Any, context: StepContext) -> None:
        self._measured = state

    @torch.no_grad()  # what a gradient checkpoint saves has to be the same in both runs
    def watch(self, call: LayerCall, columns: Columns) -> None:
        if self._context is None:  # a sampler may call the network outside its steps; such a call is not recorded
            return
        part = StackPart(call.stack, call.crossing)
        self._paths.setdefault(part, set()).add(columns.path)
        self._kv_heads[part] = max(self._kv_heads.get(part, 0), call.key.shape[1])
        try:
            measured = self._measure(call, columns)
        except torch.OutOfMemoryError:  # the steps on their way to the host hold memory of the device
            self._async_writer.drain()
            measured = self._measure(call, columns)
        layers = self._measured.setdefault(part, {})
        if call.part is not None and len(call.part.rows) < len(self._context.tokens):
            before = self._before.get(part, {}).get(call.name, {})
            measured = in_batch(measured, call.part.rows, layers.get(call.name), before)
        layers[call.name] = measured

    def _measure(self, call: LayerCall, columns: Columns) -> LayerTensors:
        """Return the measurements of a layer call; output norms of keys in a causal cache come from earlier steps."""
        context, start = self._context, self._start
        assert context is not None and start is not None
        causal = start.causal if context.causal is None else context.causal
        queries = call.query.shape[2]
        behind = causal and not call.crossing and queries < call.keys
        if behind and call.stack not in self._last_contexts:
            found = f"a cache that holds {call.keys - queries} of {call.keys}"
            advice = "fill the cache inside recording, and begin each text with an empty one"
            raise AttentionError(f"expected a recording from the first token on, found {found}; {advice}")
        kept = self.destination.top is None
        norms = self._projections.key_norms(call, queries if behind else None) if kept else None
        return layer_tensors(call, columns, self.groups, norms)

    def end_step(self, result: StepResult | None) -> None:
        """Send the step to the writers; on a GPU it is still on its way when this returns."""
        context, start = self._context, self._start
        if context is None or start is None:
            return
        for part, measured in self._measured.items():
            layers = list(measured.values())
            step = part_step(part, layers[0], context, start, self._last_contexts)
            if part not in self._prompts:
                self._prompts[part], self._layers[part] = self._open(part, step, start, measured), list(measured)
            if self._layers[part] != list(measured):
                first = ", ".join(self._layers[part])
                raise AttentionError(f"expected the layers of the first step, {first}, found {', '.join(measured)}")
            given = step.causal, step.context.final_queries is not None, self._reduction(step)
            try:
                stacked = self._reduced(part, step, stack_layers(layers, *given))
            except torch.OutOfMemoryError:
                self._async_writer.drain()
                here = [{name: one.cpu() for name, one in layer.items()} for layer in layers]
                stacked = stack_layers(here, *given)
            sent: dict[tuple[int, str], Tensor]  # by the number of the device, −1 for the step itself
            sent = {(number, name): one for number, device in enumerate(stacked) for name, one in device.items()}
            sent |= {(-1, name): getattr(step.context, name) for name in CONTEXT}
            if result is not None and not part.crossing:
                names = ("written", "predicted", "confidence")
                sent |= {(-1, name): one for name in names if (one := getattr(result, name)) is not None}
            landed = partial(self._write_step, self._prompts[part], step, list(measured))
            self._async_writer.send(sent, landed)
            self._last_contexts[part.stack] = context
        self._before = self._measured if (start.sampler or {}).get("cache", "none") != "none" else {}
        self._context, self._measured = None, {}

    def _reduction(self, step: PartStep) -> Reduce | None:
        """Return what makes the rows that are kept of a step's columns, unless they run over the steps."""
        count, context = self.destination.top, step.context
        if count is None or step.causal or context.final_queries is not None:
            return None
        lengths = context.lengths

        def reduce(columns: Tensor) -> dict[str, Tensor]:
            padding = (columns.shape[-1] - lengths).clamp(min=0)
            first = upload(padding, columns.device) if bool(padding.any()) else None
            return largest_columns("column_sums", columns, count, first)

        return reduce

    def _reduced(self, part: StackPart, step: PartStep, stacked: list[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the tensors of a step as they are sent: those on a GPU reduced, where statistics are kept."""
        context, columns = step.context, stacked[0].get("column_sums")
        if not (isinstance(self.destination, StatisticsDestination) and self.destination.reduces) or columns is None:
            return stacked
        running = step.causal or step.crossing or context.final_queries is not None
        heads = len({layer["value_norms"].shape[1] for layer in self._measured[part].values()})
        width = context.tokens.shape[1]
        if running or len(stacked) > 1 or heads > 1 or columns.shape[-1] != width or columns.device.type != "cuda":
            return stacked
        lengths = torch.zeros(len(context.tokens), dtype=torch.int64, device="cpu")
        for row, number in zip(context.rows, context.prompts, strict=True):
            lengths[row] = self._prompts[part][number].length
        thresholds = self.destination.thresholds
        return [reduce_statistics(stacked[0], context.masked, context.lengths, lengths, thresholds)]

    def _write_step(
        self, prompts: dict[int, _Prompt], step: PartStep, layers: list[str], sent: Mapping[tuple[int, str], Tensor]
    ) -> None:
        parts: dict[int, dict[str, Tensor]] = {}
        for (number, name), one in sent.items():
            parts.setdefault(number, {})[name] = one
        result = parts.pop(-1)
        stacked = join_devices(list(parts.values()))
        step = replace(step, context=replace(step.context, **{name: result.pop(name) for name in CONTEXT}))
        for row, number in zip(step.context.rows, step.context.prompts, strict=True):
            prompt = prompts[number]
            arrays = prompt_arrays(step, row, stacked, result, prompt.running)
            sums = stacked["total" if "total" in stacked else "column_sums"]
            check_numbers(sums[:, row], arrays, layers, prompt.steps)
            prompt.canvas, written = arrays["tokens"], arrays.get("written")
            if written is not None:  # an autoregressive step writes one position more
                more = len(written) - len(prompt.canvas)
                prompt.canvas = np.where(written >= 0, written, np.pad(prompt.canvas, (0, more), constant_values=-1))
            prompt.steps += 1
            seen = {*np.unique(arrays["tokens"]).tolist(), *np.unique(prompt.canvas).tolist()}
            if not seen <= prompt.tokens:
                prompt.tokens |= seen
                prompt.writer.describe(**self._vocabulary(prompt.tokens))
            prompt.writer.add(arrays)
            writers = [one.writer for one in prompts.values()]
            while sum(writer.held for writer in writers) > MOST_HELD:
                max(writers, key=lambda writer: writer.held).flush()

    def end_generation(self, failed: bool) -> None:
        """Close the traces once every step has arrived; the manifest of one that was given up says ``complete: false``.
        Raise AttentionError for a step whose attention is not a number.
        """
        prompts, self._prompts = self._prompts, {}
        error: BaseException | None = None
        try:
            self._async_writer.drain()
        except BaseException as late:
            error = late
        self._async_writer.close()
        for part, numbered in prompts.items():
            for number, prompt in numbered.items():
                more = self._answer(prompt) | self._vocabulary(prompt.tokens)
                more |= {"hidden": self._hidden(number), "attention": "+".join(sorted(self._paths[part]))}
                complete = not failed and error is None
                with contextlib.nullcontext() if complete else contextlib.suppress(Exception):  # another one is raised
                    prompt.writer.close(complete=complete, **more)
        self._start = self._context = None
        if error is not None and not failed:
            raise error

    def _open(
        self, part: StackPart, step: PartStep, start: GenerationStart, measured: dict[str, LayerTensors]
    ) -> dict[int, _Prompt]:
        context = step.context
        several = len(start.prompt_lengths) > 1 or len(sessions[self.network].stacks) > 1
        lengths = context.prompt_lengths or start.prompt_lengths
        heads = next(iter(measured.values()))["sums"].shape[1]
        parameter = next(self.network.parameters(), torch.empty(0))
        dtype = str(parameter.dtype).removeprefix("torch.")  # the card's is that of loading
        card: dict[str, Any] = {"name": type(self.network).__name__}
        if self.model is not None:
            card = {**self.model.card.as_dict(), "dtype": dtype}
            if were_changed(self.network, self.model.card.weight_hash):
                parameters = sum(one.numel() for one in self.network.parameters())
                card |= {"weight_hash": None, "parameters": parameters, "layers": len(measured)}
        versions = {name: version(name) for name in ("sinkscope", "transformers")}
        versions |= {"torch": torch.__version__, "python": platform.python_version()}
        manifests = []
        for number in range(len(start.prompt_lengths)):
            row = context.rows[context.prompts.index(number)] if number in context.prompts else 0
            sampler = plain_values(start.sampler)
            if isinstance(sampler.get("seed"), int):
                sampler["seed"] += number
            manifests.append(
                {
                    "model": card,
                    "device": str(parameter.device),
                    "dtype": dtype,
                    "versions": versions,
                    "command": command_line(),
                    "causal": step.causal,
                    "sampler": sampler,
                    "seed": sampler.get("seed"),
                    "prompt": start.prompts[number],
                    "prompt_length": lengths[number],
                    "mask_id": start.mask_id,
                    **self._vocabulary(context.tokens[row].tolist()),
                    "layers": list(measured),
                    "heads": heads,
                    "kv_heads": self._kv_heads[part],
                    "eos_id": self._eos_id,
                    "level": self.destination.level,
                    "hidden": self._hidden(number),
                    "prompts_asked": self.prompts_asked,
                    "stack": part.stack,
                    "attends_to": step.source,
                    "attention": "+".join(sorted(self._paths[part])),
                }
            )
        writers = self.destination.open(manifests, several)
        self.has_recorded = True
        return {number: _Prompt(writer, lengths[number]) for number, writer in enumerate(writers)}

    def _hidden(self, prompt: int) -> list[dict[str, Any]]:
        return [plain_values(one.describe(prompt)) for one in self._hiders.values()]

    def _answer(self, prompt: _Prompt) -> dict[str, Any]:
        if self._tokenizer is None:
            return {}
        answer = prompt.canvas[prompt.length :].astype(np.int64)
        if self.model is not None:
            return {"text": self.model.answer_text(torch.from_numpy(answer))}
        ends = np.flatnonzero(answer == self._eos_id)
        answer = answer[: ends[0] if len(ends) else None]
        return {"text": self._tokenizer.decode(answer.tolist(), skip_special_tokens=True)}

    def _vocabulary(self, found: Iterable[int]) -> dict[str, Any]:
        """Return the texts of tokens, so that a trace can be read without its model; some have none."""
        if self._tokenizer is None:
            return {}
        mask_id = None if self.model is None else self.model.card.mask_id
        special = [token for token in (mask_id, self._eos_id) if token is not None]
        tokens = sorted({int(token) for token in found if token >= 0} | set(special))
        for token in (one for one in tokens if one not in self._texts):  # special tokens go by their names
            self._texts[token] = text_of(self._tokenizer, token)
        return {"vocabulary": {str(token): self._texts[token] for token in tokens if self._texts[token]}}


def plain_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name as a manifest holds them, NumPy's numbers as Python's."""
    return json.loads(json.dumps(dict(found), allow_nan=False, default=lambda number: number.item()))


def command_line() -> str | None:
    """Return the running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
