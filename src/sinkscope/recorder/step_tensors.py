"""The tensors of one step: the measurements of each layer, stacked over layers, and cut into the arrays of each prompt.

A prompt's row loses its left padding; where the model is causal, its sums run over the steps. Cross-attention of a
stack has separate traces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import Columns, GenerationStart, KeyNorms, LayerCall, StepContext, norms_of
from sinkscope.errors import AttentionError
from sinkscope.sinks.followed_columns import WINDOW

GROUPS = ("column_sums", "column_sums_masked", "column_sums_prompt")
"""Names of the column sums of the three query groups: all queries, masked ones, those of the prompt."""
PER_QUERY = ("self_attention", "hidden_norms")
PER_KEY = ("value_norms", "key_norms", "output_norms")
WITHOUT_TOKENS = ("sink_token_columns", "top_column_sums", "top_column_sums_key", "rest_column_sums")
Reduce = Callable[[Tensor], dict[str, Tensor]]
"""A function of the column sums of a step, [layer, batch, head, key]."""
NOTHING = {"sums": 0.0, "last_query": 0.0, "sink_token_columns": 0.0, "self_attention": np.nan, "hidden_norms": np.nan}
"""Measurements of a step that computes nothing; keys and values stay."""

LayerTensors = dict[str, Tensor]
"""The measurements of one layer in a step, for the whole batch; norms are NaN for keys that the layer dropped.

``sums`` are [batch, head, group, key], ``self_attention`` [batch, head, query], ``last_query`` (as it took effect)
[batch, head, key], ``value_norms`` and ``key_norms`` [batch, kv_head, key]. A layer may lack ``hidden_norms``
[batch, query], ``sink_token_columns`` [batch, head, sink] of the network's own constant keys, and ``output_norms``
[batch, head, key], NaN for keys of earlier steps; where only the largest columns are kept, every norm.
"""


def layer_tensors(call: LayerCall, columns: Columns, groups: tuple[str, ...], norms: KeyNorms | None) -> LayerTensors:
    """Return the measurements of a layer call; without ``norms`` none of hidden states either."""
    hidden = None if norms is None or call.hidden_states is None else norms_of(call.hidden_states)
    diagonal, sums, keys = columns.diagonal, columns.sums, call.keys
    if call.part is not None:  # the diagonal is measured for queries at the end of the canvas only
        hidden = None if hidden is None else call.part.spread(hidden, keys)
        diagonal = call.part.spread(diagonal if call.part.whole else torch.full_like(diagonal, torch.nan), keys)
    if groups != call.groups:
        sums = torch.stack([sums[:, :, call.groups.index(group)] for group in groups], dim=2)
    first = call.first_key
    found = {"sums": sums, "self_attention": diagonal, "last_query": columns.last_row_in_force}
    if norms is not None:
        found["value_norms"] = _placed(norms.values, first)
        found["key_norms"] = _placed(norms.keys, first)
        if norms.outputs is not None:
            found["output_norms"] = _placed(norms.outputs, keys - norms.outputs.shape[-1])
    if hidden is not None:
        found["hidden_norms"] = hidden.to(sums.device)  # it comes from the device of the layer before
    if columns.prefix is not None and call.own is not None:
        found["sink_token_columns"] = columns.prefix[:, :, call.groups.index("all")]
    return found


def in_batch(measured: LayerTensors, rows: Tensor, others: LayerTensors | None, before: LayerTensors) -> LayerTensors:
    """Return the measurements of the whole batch: those of some rows, int64 [row], and known ones of the others, which
    computed nothing since the step before where this step has none of them.
    """
    if others is None:
        others = {name: torch.full_like(one, NOTHING[name]) if name in NOTHING else one for name, one in before.items()}
    return {name: others[name].index_copy(0, rows.to(one.device), one) for name, one in measured.items()}


def _placed(norms: Tensor, first_key: int) -> Tensor:
    return pad(norms, (first_key, 0), value=torch.nan) if first_key else norms


@torch.no_grad()
def stack_layers(
    layers: list[LayerTensors], causal: bool, blocks: bool = False, reduce: Reduce | None = None
) -> list[dict[str, Tensor]]:
    """Return the tensors of one step stacked over layers, [layer, batch, …], one dictionary for each device.

    A causal trace keeps the last row in place of the query groups; with ``blocks`` (block diffusion behind a cache) it
    stands beside them. A measurement that some layer lacks is left out. With ``reduce`` what it returns of the column
    sums stands for all that has an axis of tokens.
    """
    everywhere = set(layers[0]).intersection(*layers) - {"sums"}
    names = [name for name in layers[0] if name in everywhere and (name != "last_query" or causal or blocks)]
    names = names if reduce is None else [name for name in names if name == "sink_token_columns"]
    stacked = []
    for _, run in groupby(layers, lambda layer: layer["sums"].device):
        here = list(run)
        groups = GROUPS[:1] if causal or reduce is not None else GROUPS  # one tensor each, as on disk
        sums = [layer["sums"][:, :, : len(groups)] for layer in here]
        batch, heads, _, keys = sums[0].shape
        by_group = sums[0].new_empty(len(groups), len(sums), batch, heads, keys)
        torch.stack(sums, out=by_group.movedim(0, 3))
        whole: dict[str, Tensor] = dict(zip(groups, by_group, strict=True))
        found = whole if reduce is None else reduce(by_group[0])
        for name in names:
            one = [layer[name] for layer in here]
            found[name] = _in_heads([norms[None] for norms in one]) if name in PER_KEY else torch.stack(one)
        stacked.append(found)
    return stacked


def join_devices(stacked: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all layers of one step, on the host; NaN in kv heads that a layer does not have."""
    if len(stacked) == 1:
        return stacked[0]
    join = {name: _in_heads if name in PER_KEY else torch.cat for name in stacked[0]}
    return {name: join[name]([part[name] for part in stacked]) for name in stacked[0]}


def _in_heads(norms: list[Tensor]) -> Tensor:
    """Return norms [layer, batch, kv_head, key] concatenated over layers, filled with NaN up to the most kv heads."""
    counts = {one.shape[2] for one in norms}
    if len(counts) > 1:
        norms = [pad(one, (0, 0, 0, max(counts) - one.shape[2]), value=torch.nan) for one in norms]
    return torch.cat(norms)


class StackPart(NamedTuple):
    """The layers of one stack, a module path, that attend to the same tokens; crossing: those of another stack."""

    stack: str
    crossing: bool


@dataclass(frozen=True)
class PartStep:
    """A step of one part of a stack.

    Attributes:
        context: input of the step. For a crossing part the tokens that are attended to, and the lengths of their rows.
        queries: tokens that attend, left padding included; ``all_queries``: none of the canvas was left to a cache.
        causal: whether column sums are running sums over the steps.
        source: the stack whose tokens they are, where it is known; another one for a ``crossing`` part.
    """

    context: StepContext
    queries: int
    all_queries: bool
    causal: bool
    crossing: bool
    source: str | None


def part_step(
    part: StackPart,
    layer: LayerTensors,
    context: StepContext,
    start: GenerationStart,
    last_contexts: Mapping[str, StepContext],
) -> PartStep:
    """Return the step of one part of a stack, given any of its layers and the stack's input; a crossing part attends to
    the newest tokens of another stack.
    """
    queries, causal = layer["self_attention"].shape[-1], start.causal if context.causal is None else context.causal
    all_queries = queries == context.tokens.shape[1]
    if not part.crossing:
        return PartStep(context, queries, all_queries, causal, False, part.stack)
    shape = (layer["sums"].shape[0], layer["sums"].shape[-1])
    fitting = [name for name, one in last_contexts.items() if name != part.stack and one.tokens.shape == shape]
    source = fitting[-1] if fitting else None
    if source is None:  # the caller gave encoder states, not encoder tokens
        tokens, lengths = context.tokens.new_full(shape, -1), torch.full(shape[:1], shape[1], device="cpu")
    else:
        tokens, lengths = last_contexts[source].tokens, last_contexts[source].lengths
    attended = replace(
        context,
        tokens=tokens,
        masked=torch.zeros_like(tokens, dtype=torch.bool),
        lengths=lengths,
        prompt_lengths=tuple(lengths.tolist()),
    )
    return PartStep(attended, queries, all_queries, causal, True, source)


def prompt_arrays(
    step: PartStep, row: int, stacked: Mapping[str, Tensor], result: Mapping[str, Tensor], running: dict[str, Tensor]
) -> dict[str, np.ndarray]:
    """Return the arrays of one prompt, a row of the batch, as in `axes.TRACE_AXES` without the step axis, from tensors
    [layer, batch, …] on the host and its ``running`` sums over the steps before (causal models), which are changed;
    ``result``: the known tensors of the `StepResult`.
    """
    context = step.context
    width, length = context.tokens.shape[1], int(context.lengths[row])
    padding = width - length
    measured = {name: tensor[:, row] for name, tensor in stacked.items()}
    keys = measured["column_sums"].shape[-1] if "column_sums" in measured else width
    real_keys = slice(max(0, padding - (width - keys)), None)
    real_queries = slice(max(0, padding - (width - step.queries)), None)
    arrays: dict[str, Any] = {
        "tokens": context.tokens[row, padding:].to(torch.int32),
        "masked": context.masked[row, padding:].to(torch.uint8),
        "lengths": torch.tensor(length, dtype=torch.int32, device="cpu"),
        **{name: measured[name][..., real_keys] for name in (*GROUPS, *PER_KEY, "last_query") if name in measured},
    }
    arrays |= {name: one for name, one in measured.items() if name in WITHOUT_TOKENS or "." in name}
    if not step.crossing:  # the queries stand on the same canvas
        arrays |= {name: measured[name][..., real_queries] for name in PER_QUERY if name in measured}
    if context.final_queries is not None:
        arrays.update(add_finished(running, arrays, context.final_queries))
    elif step.causal:
        arrays.update(accumulate(running, arrays, step.all_queries))
    for name in (one for one in PER_QUERY if one in arrays):  # NaN where nothing was computed
        arrays[name] = pad(arrays[name], (length - arrays[name].shape[-1], 0), value=torch.nan)
    for name, one in result.items():
        arrays[name] = one[row, padding:].to(torch.float32 if name == "confidence" else torch.int32)
    return {name: value.detach().cpu().contiguous().numpy() for name, value in arrays.items()}


def check_numbers(sums: Tensor, arrays: Mapping[str, np.ndarray], layers: list[str], step: int) -> None:
    """Raise AttentionError where a column sum [layer, head, key] of a prompt is NaN, or where a norm is infinite."""
    found = ""
    if bool(sums.sum().isnan()):  # one pass; infinities cannot occur
        layer, head = (int(place) for place in sums.isnan().any(-1).nonzero()[0])
        found = f"NaN in the attention, first in layer {layers[layer]}, head {head}"
    elif wrong := [name for name in arrays if name.endswith("_norms") and np.isinf(arrays[name]).any()]:
        found = f"infinite {wrong[0].split('.')[-1].replace('_', ' ')}"
    if found:
        advice = "load the model with dtype='float32', or check the checkpoint"
        raise AttentionError(f"expected numbers in step {step}, found {found}; {advice}")


def accumulate(running: dict[str, Tensor], arrays: dict[str, Tensor], all_queries: bool) -> dict[str, Tensor]:
    """Return the sums of a step and the steps before it, ``running``, which are replaced by a step with all queries;
    norms of keys that are no longer visible are kept.
    """
    if all_queries:
        running.clear()
    running |= _with_earlier_queries(running, arrays)
    for name in (one for one in PER_KEY if one in arrays):
        now = arrays[name].clone()
        if name in running:
            before = running[name]
            known = now[..., : before.shape[-1]]
            now[..., : before.shape[-1]] = torch.where(known.isnan(), before, known)
        running[name] = now
    return dict(running)


def _with_earlier_queries(running: dict[str, Tensor], arrays: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return column sums with those of earlier queries, ``running``, and the values of each query behind theirs."""
    found = {}
    for name in (one for one in (*GROUPS, "sink_token_columns") if one in arrays):
        found[name] = arrays[name].clone()
        if name in running:
            found[name][..., : running[name].shape[-1]] += running[name]
    for name in (one for one in PER_QUERY if one in arrays):
        found[name] = torch.cat([running[name], arrays[name]], dim=-1) if name in running else arrays[name]
    return found


def add_finished(running: dict[str, Tensor], arrays: dict[str, Tensor], final: bool) -> dict[str, Tensor]:
    """Return the sums of a step of block diffusion and of the finished blocks before it.

    Column sums are those of the step's own queries and of every finished query, ``running``. ``newest_columns`` are
    those of the step's queries, and of as many finished blocks before them as make 16 queries, the window in which
    sinks of autoregressive models are followed. Of a longer prompt, which is read at once, only the last row is known.
    """
    queries, last = arrays["self_attention"].shape[-1], arrays.pop("last_query")
    made = _with_earlier_queries(running, arrays)
    many = queries > WINDOW and torch.equal(arrays["column_sums"], arrays["column_sums_prompt"])
    newest, size = (last, 1) if many else (arrays["column_sums"], queries)
    made["newest_columns"], held = newest.clone(), size
    numbers = sorted((name for name in running if name.startswith("block ")), key=lambda name: -int(name.split()[1]))
    for name in numbers:
        if held >= WINDOW:
            break
        made["newest_columns"][..., : running[name].shape[-1]] += running[name]
        held += int(name.split()[2])
    if final:
        running |= {name: one for name, one in made.items() if name != "newest_columns"}
        running[f"block {len(numbers)} {size}"] = newest
        for name in numbers[WINDOW:]:
            running[name] = running[name][..., :0]  # too old to be counted again
    return made
