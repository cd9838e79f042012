"""The tensors of one step: the measurements of each layer, stacked over layers and aligned with the canvas."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import Columns, KeyNorms, LayerCall, norms_of
from sinkscope.errors import AttentionError
from sinkscope.sinks.followed_columns import WINDOW

GROUPS = ("column_sums", "column_sums_masked", "column_sums_prompt")
"""Names of the column sums of the three query groups: all queries, masked ones, those of the prompt."""
PER_QUERY = ("self_attention", "hidden_norms")
PER_KEY = ("value_norms", "key_norms", "output_norms")


OPTIONAL = {"hidden_norms": "hidden_norms", "sink_token": "sink_token_columns", "output_norms": "output_norms"}
"""Measurements that a layer may lack, and their names on disk; a step has those that all of its layers have."""


@dataclass(frozen=True, eq=False)
class LayerTensors:
    """The measurements of one layer in a step, for the whole batch. Norms are NaN for keys that the layer no longer
    holds.

    Attributes:
        sums: [batch, head, group, key].
        diagonal: [batch, head, query].
        last_row: [batch, head, key], as it took effect.
        value_norms, key_norms: [batch, kv_head, key].
        output_norms: [batch, head, key]; None where the layer's output projection is not understood. NaN also for keys
            of earlier steps that the recorder knows already.
        hidden_norms: [batch, query]; None where the layer's input is not visible.
        sink_token: [batch, head, sink], columns of the network's own constant keys; None where it has none.
    """

    sums: Tensor
    diagonal: Tensor
    last_row: Tensor
    value_norms: Tensor
    key_norms: Tensor
    hidden_norms: Tensor | None
    sink_token: Tensor | None = None
    output_norms: Tensor | None = None

    @classmethod
    def of(cls, call: LayerCall, columns: Columns, groups: tuple[str, ...], norms: KeyNorms) -> "LayerTensors":
        """Return the measurements of a layer call: its columns, and the norms of its values, keys and inputs."""
        hidden = None if call.hidden_states is None else norms_of(call.hidden_states)
        diagonal, sums, outputs, keys = columns.diagonal, columns.sums, norms.outputs, call.keys
        if call.part is not None:  # the diagonal is measured for queries at the end of the canvas only
            hidden = None if hidden is None else call.part.spread(hidden, keys)
            measured = diagonal if call.part.whole else torch.full_like(diagonal, torch.nan)
            diagonal = call.part.spread(measured, keys)
        if groups != call.groups:
            sums = torch.stack([sums[:, :, call.groups.index(group)] for group in groups], dim=2)
        first, known = call.first_key, 0 if outputs is None else keys - outputs.shape[-1]
        return cls(
            sums,
            diagonal,
            columns.last_row_in_force,
            _placed(norms.values, first) if first else norms.values,
            _placed(norms.keys, first) if first else norms.keys,
            None if hidden is None else hidden.to(sums.device),  # it comes from the device of the layer before
            None if columns.prefix is None or call.own is None else columns.prefix[:, :, call.groups.index("all")],
            _placed(outputs, known) if outputs is not None and known else outputs,
        )

    def in_batch(self, rows: Tensor, others: "LayerTensors") -> "LayerTensors":
        """Return the measurements of the whole batch, of which this call computed some rows.

        Args:
            rows: int64 [row], which ones.
            others: what is known of the others.
        """
        known = {name: (getattr(others, name), mine) for name, mine in vars(self).items() if mine is not None}
        return replace(
            self, **{name: other.index_copy(0, rows.to(mine.device), mine) for name, (other, mine) in known.items()}
        )

    def one_step_later(self) -> "LayerTensors":
        """Return the measurements of a next step in which nothing is computed: no attention, and the same keys and
        values.
        """
        zeroed = {
            name: torch.zeros_like(one)
            for name in ("sums", "last_row", "sink_token")
            if (one := getattr(self, name)) is not None
        }
        unknown = ("diagonal", "hidden_norms")
        unknowns = {
            name: torch.full_like(one, torch.nan) for name in unknown if (one := getattr(self, name)) is not None
        }
        return replace(self, **zeroed, **unknowns)

    def on_the_host(self) -> "LayerTensors":
        """Return the same tensors on the host, for a device that has no room to stack layers."""
        return replace(self, **{name: one.cpu() for name, one in vars(self).items() if one is not None})


def _placed(norms: Tensor, first_key: int) -> Tensor:
    return pad(norms, (first_key, 0), value=torch.nan)


@torch.no_grad()
def stack_layers(layers: list[LayerTensors], causal: bool, blocks: bool = False) -> list[dict[str, Tensor]]:
    """Return the tensors of one step stacked over layers, [layer, batch, …], one dictionary for each device;
    `join_devices` joins them.

    Args:
        causal: keeps the last row in place of the query groups, as an autoregressive trace does.
        blocks: keeps the last row beside them, for block diffusion behind a cache.
    """
    runs = [list(run) for _, run in groupby(layers, lambda layer: layer.sums.device)]
    missing = {name for layer in layers for name in OPTIONAL if getattr(layer, name) is None}
    shown = [name for name in OPTIONAL if name not in missing]
    return [_stacked(run, causal, shown, causal or blocks) for run in runs]


def _stacked(layers: list[LayerTensors], causal: bool, shown: list[str], last: bool) -> dict[str, Tensor]:
    groups = GROUPS[:1] if causal else GROUPS  # one tensor each, as on disk
    sums = [layer.sums[:, :, : len(groups)] for layer in layers]
    batch, heads, _, keys = sums[0].shape
    by_group = sums[0].new_empty(len(groups), len(sums), batch, heads, keys)
    torch.stack(sums, out=by_group.movedim(0, 3))
    stacked: dict[str, Tensor] = dict(zip(groups, by_group, strict=True))
    stacked["self_attention"] = torch.stack([layer.diagonal for layer in layers])
    if last:
        stacked["last_query"] = torch.stack([layer.last_row for layer in layers])
    stacked |= {
        name: _in_heads([getattr(layer, name)[None] for layer in layers]) for name in ("value_norms", "key_norms")
    }
    return stacked | {OPTIONAL[name]: torch.stack([getattr(layer, name) for layer in layers]) for name in shown}


def join_devices(stacked: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all layers of one step, on the host; NaN in kv heads that a layer does not have."""
    if len(stacked) == 1:
        return stacked[0]
    join = {name: _in_heads if name in PER_KEY else torch.cat for name in stacked[0]}
    return {name: join[name]([part[name] for part in stacked]) for name in stacked[0]}


def head_counts(layers: list[LayerTensors]) -> tuple[int, int]:
    """Return the number of query heads, and the largest number of kv heads of any layer.

    Raises:
        AttentionError: layers with different numbers of query heads.
    """
    heads = sorted({layer.sums.shape[1] for layer in layers})
    if len(heads) > 1:
        raise AttentionError(
            f"expected as many query heads in every layer, found {' and '.join(map(str, heads))}; such a model cannot "
            "be recorded"
        )
    return heads[0], max(layer.value_norms.shape[1] for layer in layers)


def _in_heads(norms: list[Tensor]) -> Tensor:
    """Return norms [layer, batch, kv_head, key] concatenated over layers, filled with NaN up to the most kv heads."""
    counts = {one.shape[2] for one in norms}
    if len(counts) == 1:
        return torch.cat(norms)
    return torch.cat([pad(one, (0, 0, 0, max(counts) - one.shape[2]), value=torch.nan) for one in norms])


def check_numbers(sums: Tensor, layers: list[str], step: int) -> None:
    """Raise AttentionError where a column is not a number.

    Args:
        sums: float32 [layer, head, key] of one prompt, from all queries.

    Raises:
        AttentionError: names the layer and head of the first one.
    """
    if not bool(sums.sum().isnan()):  # one pass; infinities cannot occur
        return
    layer, head = (int(place) for place in sums.isnan().any(-1).nonzero()[0])
    raise AttentionError(
        f"expected the attention of step {step} to be numbers, found NaN first in layer {layers[layer]}, head {head}; "
        "queries or keys "
        "overflow there, or the weights hold NaN: load the model with dtype='float32', or check the checkpoint"
    )


def check_norms(arrays: Mapping[str, np.ndarray], step: int) -> None:
    """Raise AttentionError where a norm is infinite: statistics of it mean nothing, and readers take such a trace for
    damaged.

    Args:
        arrays: of one step of one prompt.
    """
    for name in (one for one in arrays if one.endswith("_norms")):
        if np.isinf(arrays[name]).any():
            raise AttentionError(
                f"expected the {name.replace('_', ' ')} of step {step} to be finite, found infinite ones; the squares "
                "of the model's "
                "states overflow in float32: check the checkpoint"
            )


def accumulate(running: dict[str, Tensor], arrays: dict[str, Tensor], all_queries: bool) -> dict[str, Tensor]:
    """Return what a step with a cache adds up to with the steps before it.

    With a cache, a step has only its new queries. Column sums are added to those before, per-query values are appended,
    and norms of keys that are no longer visible are kept.

    Args:
        running: the sums so far; changed in place.
        arrays: of this step.
        all_queries: whether the step has all queries, so that it replaces the sums.
    """
    if all_queries:
        running.clear()
    columns = arrays["column_sums"].clone()
    if "column_sums" in running:
        before = running["column_sums"]
        columns[..., : before.shape[-1]] += before
    running["column_sums"] = columns
    if "sink_token_columns" in arrays:
        running["sink_token_columns"] = arrays["sink_token_columns"] + running.get("sink_token_columns", 0)
    for name in PER_QUERY:
        if name in arrays:
            running[name] = torch.cat([running[name], arrays[name]], dim=-1) if name in running else arrays[name]
    for name in (one for one in PER_KEY if one in arrays):
        now = arrays[name].clone()
        if name in running:
            before = running[name]
            now[..., : before.shape[-1]] = torch.where(
                now[..., : before.shape[-1]].isnan(), before, now[..., : before.shape[-1]]
            )
        running[name] = now
    return dict(running)


def add_finished(running: dict[str, Tensor], arrays: dict[str, Tensor], final: bool) -> dict[str, Tensor]:
    """Return what a step of block diffusion makes together with the finished blocks before it: the newest row of every
    query so far.

    Column sums are those of the step's own queries and of every finished query. ``newest_columns`` are those of the
    step's queries, and of as many finished blocks before them as make 16 queries, the window in which sinks of
    autoregressive models are followed. Of a longer prompt, which is read at once, only the newest row is known, as
    there.

    Args:
        running: sums and rows of the finished queries; changed in place where the step's queries are final.
        arrays: of this step; its ``last_query`` is used up.
        final: whether the queries of the step are finished.
    """
    made, queries, last = {}, arrays["self_attention"].shape[-1], arrays.pop("last_query")
    for name in (one for one in (*GROUPS, "sink_token_columns") if one in arrays):
        made[name] = arrays[name].clone()
        if name in running:
            made[name][..., : running[name].shape[-1]] += running[name]
    for name in (one for one in PER_QUERY if one in arrays):
        made[name] = torch.cat([running[name], arrays[name]], dim=-1) if name in running else arrays[name]
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


def align_to_end(arrays: dict[str, Tensor], length: int) -> None:
    """Align per-query values with the newest positions of the canvas; NaN at the positions before."""
    for name in PER_QUERY:
        if name in arrays:
            arrays[name] = pad(arrays[name], (length - arrays[name].shape[-1], 0), value=torch.nan)
