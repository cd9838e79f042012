"""The tensors of one step: what each layer showed, layers side by side, each thing in its place on the canvas."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import Columns, LayerCall
from sinkscope.errors import AttentionError

PER_QUERY = ("self_attention", "hidden_norms")


@dataclass(frozen=True)
class LayerSeen:
    """What one layer showed in a step, all rows; keys a layer no longer holds have NaN norms.

    Attributes:
        sums: [batch, head, group, key].
        diagonal: [batch, head, query].
        last_row: [batch, head, key].
        value_norms, key_norms: [batch, kv_head, key].
        hidden_norms: [batch, query]; None where the model does not show them.
        sink_token: [batch, head, sink], what the network's own constant keys received; None where it has none.
    """

    sums: Tensor
    diagonal: Tensor
    last_row: Tensor
    value_norms: Tensor
    key_norms: Tensor
    hidden_norms: Tensor | None
    sink_token: Tensor | None = None

    @classmethod
    def of(cls, call: LayerCall, columns: Columns, groups: tuple[str, ...]) -> "LayerSeen":
        """What a watcher is told, brought to norms."""
        hidden = call.hidden_states
        return cls(
            columns.sums if groups == call.groups else columns.sums[:, :, [call.groups.index(group) for group in groups]],
            columns.diagonal,
            columns.last_row,
            _placed(_norms(call.value), call.first_key),
            _placed(_norms(call.key), call.first_key),
            None if hidden is None else _norms(hidden),
            None if columns.prefix is None or call.own is None else columns.prefix[:, :, call.groups.index("all")],
        )


def _norms(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32)


def _placed(norms: Tensor, first_key: int) -> Tensor:
    return pad(norms, (first_key, 0), value=torch.nan) if first_key else norms


def stack_layers(layers: list[LayerSeen]) -> dict[str, Tensor]:
    """Layers of one step side by side: [layer, batch, …]; where layers differ in kv heads, NaN beyond a layer's own.

    Raises:
        AttentionError: layers with different numbers of query heads.
    """
    heads = sorted({layer.sums.shape[1] for layer in layers})
    if len(heads) > 1:
        raise AttentionError(
            f"expected as many query heads in every layer, found {' and '.join(map(str, heads))}; such a model is not recorded"
        )
    hidden = [layer.hidden_norms for layer in layers]
    stacked = {
        "sums": torch.stack([layer.sums for layer in layers]),
        "diagonal": torch.stack([layer.diagonal for layer in layers]),
        "last_row": torch.stack([layer.last_row for layer in layers]),
        "value_norms": _stack_heads([layer.value_norms for layer in layers]),
        "key_norms": _stack_heads([layer.key_norms for layer in layers]),
    }
    if all(one is not None for one in hidden):
        stacked["hidden_norms"] = torch.stack([one for one in hidden if one is not None])
    sinks = [layer.sink_token for layer in layers if layer.sink_token is not None]
    if len(sinks) == len(layers):
        stacked["sink_token"] = torch.stack(sinks)
    return stacked


def _stack_heads(norms: list[Tensor]) -> Tensor:
    most = max(one.shape[1] for one in norms)
    return torch.stack([pad(one, (0, 0, 0, most - one.shape[1]), value=torch.nan) if one.shape[1] < most else one for one in norms])


def accumulate(running: dict[str, Tensor], arrays: dict[str, Tensor], anew: bool) -> dict[str, Tensor]:
    """Behind a cache a step has few new queries: columns add up, per-query values are appended, norms stay known.

    Args:
        running: what the steps so far came to; changed.
        arrays: of this step.
        anew: whether all queries are in this step.
    """
    if anew:
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
    for name in ("value_norms", "key_norms"):
        now = arrays[name].clone()
        if name in running:
            before = running[name]
            now[..., : before.shape[-1]] = torch.where(now[..., : before.shape[-1]].isnan(), before, now[..., : before.shape[-1]])
        running[name] = now
    return dict(running)


def at_the_end(arrays: dict[str, Tensor], length: int) -> None:
    """Puts what is known per query under the newest positions of the canvas, NaN in front of it."""
    for name in PER_QUERY:
        if name in arrays:
            arrays[name] = pad(arrays[name], (length - arrays[name].shape[-1], 0), value=torch.nan)
