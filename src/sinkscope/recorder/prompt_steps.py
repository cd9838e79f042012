"""One step of one prompt: its row of the batch without left padding; where the model is causal, summed over the steps.

Layers of one stack may attend to the tokens of different stacks: those of a decoder to its own tokens, and those of its
cross-attention to the encoder's. Each such part of a stack has traces of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinkscope.attention import GenerationStart, StepContext, StepResult
from sinkscope.recorder.step_tensors import (
    GROUPS,
    PER_KEY,
    PER_QUERY,
    LayerTensors,
    accumulate,
    add_finished,
    align_to_end,
)


@dataclass(frozen=True)
class StackPart:
    """The layers of one stack that attend to the same tokens.

    Attributes:
        stack: module path of the stack.
        crossing: whether these are another stack's tokens.
    """

    stack: str
    crossing: bool


@dataclass(frozen=True)
class PartStep:
    """A step of one part of a stack.

    Attributes:
        context: what went into the step. For a crossing part the tokens that are attended to, and the lengths of their
            rows.
        queries: tokens that attend, left padding included.
        all_queries: whether the step computes every query of the canvas, so that none was left to a cache.
        causal: whether column sums are running sums over the steps.
        crossing: whether the tokens are another stack's.
        source: module path of that stack; None where it is unknown.
    """

    context: StepContext
    queries: int
    all_queries: bool
    causal: bool
    crossing: bool = False
    source: str | None = None


def part_step(
    part: StackPart,
    layer: LayerTensors,
    context: StepContext,
    start: GenerationStart,
    last_contexts: Mapping[str, StepContext],
) -> PartStep:
    """Return the step of one part of a stack.

    Args:
        layer: any of its layers.
        context: what went into the stack.
        start: of the generation.
        last_contexts: the newest step of each stack; a crossing part attends to the tokens of one of them.
    """
    queries, causal = layer.diagonal.shape[-1], start.causal if context.causal is None else context.causal
    all_queries = queries == context.tokens.shape[1]
    if not part.crossing:
        return PartStep(context, queries, all_queries, causal)
    batch, keys = layer.sums.shape[0], layer.sums.shape[-1]
    fitting = {
        name: one for name, one in last_contexts.items() if name != part.stack and one.tokens.shape == (batch, keys)
    }
    source = next(reversed(fitting), None)
    if source is None:  # the caller gave encoder states, not encoder tokens
        tokens, lengths = context.tokens.new_full((batch, keys), -1), torch.full((batch,), keys, device="cpu")
    else:
        tokens, lengths = fitting[source].tokens, fitting[source].lengths
    attended = replace(
        context,
        tokens=tokens,
        masked=torch.zeros_like(tokens, dtype=torch.bool),
        lengths=lengths,
        prompt_lengths=tuple(lengths.tolist()),
    )
    return PartStep(attended, queries, all_queries, causal, True, source)


def prompt_arrays(
    step: PartStep, row: int, stacked: Mapping[str, Tensor], result: StepResult | None, running: dict[str, Tensor]
) -> dict[str, np.ndarray]:
    """Return the arrays of one prompt, as in `axes.TRACE_AXES` without the step axis.

    Args:
        step: on the host.
        row: of the batch.
        stacked: tensors [layer, batch, …] of all layers, on the host.
        result: what the step committed.
        running: sums of this prompt over the steps before, where the model is causal; changed.
    """
    context = step.context
    width, length = context.tokens.shape[1], int(context.lengths[row])
    padding = width - length
    measured: dict[str, Any] = {name: tensor[:, row] for name, tensor in stacked.items()}
    keys = measured["column_sums"].shape[-1]
    real_keys = slice(max(0, padding - (width - keys)), None)
    real_queries = slice(max(0, padding - (width - step.queries)), None)
    arrays: dict[str, Any] = {
        "tokens": context.tokens[row, padding:].to(torch.int32),
        "masked": context.masked[row, padding:].to(torch.uint8),
        "lengths": torch.tensor(length, dtype=torch.int32, device="cpu"),
        **{name: measured[name][..., real_keys] for name in (*GROUPS, *PER_KEY, "last_query") if name in measured},
    }
    if "sink_token_columns" in measured:
        arrays["sink_token_columns"] = measured["sink_token_columns"]
    if not step.crossing:  # the queries stand on the same canvas
        arrays |= {name: measured[name][..., real_queries] for name in PER_QUERY if name in measured}
    if context.final_queries is not None:
        arrays = {**arrays, **add_finished(running, arrays, context.final_queries)}
        arrays.pop("last_query", None)
    elif step.causal:
        arrays.update(accumulate(running, arrays, step.all_queries))
    align_to_end(arrays, length)
    if result is not None:
        arrays["written"] = result.written[row, padding:].to(torch.int32)
        if result.predicted is not None:
            arrays["predicted"] = result.predicted[row, padding:].to(torch.int32)
        if result.confidence is not None:
            arrays["confidence"] = result.confidence[row, padding:].float()
    return {name: value.detach().cpu().contiguous().numpy() for name, value in arrays.items()}


def canvas_after(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the canvas after a step, int32 [position]: its tokens, with those that it wrote."""
    tokens, written = arrays["tokens"], arrays.get("written")
    if written is None:
        return tokens
    after = np.full(len(written), -1, np.int32)
    after[: len(tokens)] = tokens
    return np.where(written >= 0, written, after)
