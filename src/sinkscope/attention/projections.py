"""A key's contribution to the residual stream through one head: the norm of its value behind the output projection.

Head h adds Σ_j a_qj · W_O^h v_j to query q (Kobayashi et al., arXiv 2004.10102); ‖W_O^h v_j‖ is what key j weighs in
it. A gate between attention and output projection is left out.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.attention.blockwise import product, product_dtype
from sinkscope.attention.dispatch import norms_by_kernel, without_autocast
from sinkscope.attention.records import LayerCall

NAMES = ("o_proj", "out_proj", "attn_out", "c_proj", "dense")
"""Names of the output projection in an attention module."""


def output_projection(attention: nn.Module, heads: int) -> Float[Tensor, "head width dim"] | None:
    """Return W_O of an attention module, cut into its heads; None without a plain linear layer of a known name."""
    found = _projection_of(attention)
    weight = getattr(found, "weight", None)
    transposed = type(found).__name__ == "Conv1D"  # as GPT-2 keeps it
    plain = transposed or getattr(type(found), "forward", None) in (nn.Linear.forward, nn.Module.forward)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or weight.is_meta or not plain:
        return None
    weight = weight.T if transposed else weight
    if not weight.is_floating_point() or weight.element_size() == 1 or weight.shape[1] % heads:
        return None
    return weight.detach().unflatten(1, (heads, -1)).transpose(0, 1)


def reduced(projection: Float[Tensor, "head width dim"]) -> Float[Tensor, "head rank dim"]:
    """Return R of W = QR for each head, float32: ‖R v‖ = ‖W v‖ at a cost that does not grow with the width."""
    return torch.linalg.qr(projection.float(), mode="r").R


def output_norms(
    value: Float[Tensor, "batch kv_head key dim"], projection: Float[Tensor, "head rank dim"]
) -> Float[Tensor, "batch head key"]:
    """Return ‖W_O^h v_j‖ of every head and key, float32, from W_O or its `reduced` form."""
    batch, kv_heads, keys, dim = value.shape
    stacked = projection.to(value.device).float().reshape(kv_heads, -1, dim).mT  # of the heads that share a kv head
    with without_autocast(value.device.type):  # which would round the products
        added = product(value.detach().float(), stacked, product_dtype(value.device))
    norms = torch.linalg.vector_norm(added.unflatten(-1, (len(projection) // kv_heads, -1)), dim=-1)
    return norms.transpose(-1, -2).reshape(batch, len(projection), keys)


def norms_of(vectors: Float[Tensor, "*axes dim"]) -> Float[Tensor, "*axes"]:
    """Return the norms of vectors, float32; computed in float64 for float64."""
    wide = torch.float64 if vectors.dtype == torch.float64 else torch.float32
    norms = torch.linalg.vector_norm(vectors, dim=-1, dtype=wide)
    return norms if wide == torch.float32 else norms.float()


@dataclass(frozen=True, eq=False)
class KeyNorms:
    """Norms of one layer call, float32 [batch, kv_head, key]; ``outputs`` of W_O^h v_j [batch, head, key], if known."""

    keys: Tensor
    values: Tensor
    outputs: Tensor | None = None


class OutputProjections:
    """The output projections of one network, each reduced when it is first needed and whenever its weights change."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._modules: dict[str, nn.Module] = {}
        # By layer: the parameter, where it lay and how often it had been written, and its reduced form.
        self._known: dict[str, tuple[Tensor, tuple[object, ...], Tensor | None]] = {}

    def key_norms(self, call: LayerCall, newest: int | None = None) -> KeyNorms:
        """Return the norms of the keys of a layer call; ``outputs`` of so many of the newest keys, of all when None."""
        keys = call.key.shape[2]
        projection, newest = self._reduced(call), keys if newest is None else newest
        found = norms_by_kernel(call.key, call.value, projection, newest)
        if found is not None:
            return KeyNorms(*found)
        outputs = None if projection is None else output_norms(call.value[:, :, keys - newest :], projection)
        return KeyNorms(norms_of(call.key), norms_of(call.value), outputs)

    def _reduced(self, call: LayerCall) -> Tensor | None:
        if call.name not in self._modules:
            try:
                self._modules[call.name] = self._network.get_submodule(call.name.partition(":")[0])
            except AttributeError:
                return None
        attention, known = self._modules[call.name], self._known.get(call.name)
        weight = getattr(_projection_of(attention), "weight", None)
        if not isinstance(weight, Tensor):
            return None
        written = None if weight.is_inference() else weight._version
        heads, dim, device = call.query.shape[1], call.value.shape[-1], call.value.device
        state = (weight.data_ptr(), written, weight.device, device, heads, dim)
        if known is None or weight is not known[0] or state != known[1]:
            projection = output_projection(attention, heads)
            if projection is not None:  # LAPACK lays its columns one behind the other.
                projection = reduced(projection).to(device).contiguous() if projection.shape[-1] == dim else None
            self._known[call.name] = known = (weight, state, projection)
        return known[2]


def _projection_of(attention: nn.Module) -> Any:
    modules = (getattr(attention, name, None) for name in NAMES)
    return next((one for one in modules if isinstance(one, nn.Module)), None)
