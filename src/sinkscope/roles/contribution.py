"""What a key adds to the residual stream through one head: the norm of its value behind the output projection.

Head h adds Σ_j a_qj · W_O^h v_j to query q (Kobayashi et al., arXiv 2004.10102); ‖W_O^h v_j‖ is what key j weighs in it.
"""

from jaxtyping import Float
from torch import Tensor, nn

from sinkscope.errors import AttentionError

NAMES = ("o_proj", "out_proj", "attn_out", "c_proj", "dense")


def output_projection(attention: nn.Module, heads: int) -> Float[Tensor, "head width dim"]:
    """Return W_O of an attention module, cut into its heads.

    Raises:
        AttentionError: the module has no output projection of a known name and shape.
    """
    found = next((module for name in NAMES if isinstance(module := getattr(attention, name, None), nn.Module)), None)
    weight = getattr(found, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise AttentionError(
            f"expected the output projection of {type(attention).__name__} under one of the names {', '.join(NAMES)}, found none; "
            "what its keys contribute cannot be told"
        )
    if type(found).__name__ == "Conv1D":  # GPT-2 keeps it transposed
        weight = weight.T
    if weight.shape[1] % heads:
        raise AttentionError(f"expected an output projection from {heads} heads, found {weight.shape[1]} columns in it")
    return weight.detach().unflatten(1, (heads, -1)).transpose(0, 1)


def output_norms(
    value: Float[Tensor, "batch kv_head key dim"], projection: Float[Tensor, "head width dim"]
) -> Float[Tensor, "batch head key"]:
    """Return ‖W_O^h v_j‖ of every head and key, float32.

    ‖W v‖² = vᵀ(WᵀW)v: with the Gram matrix of each head the cost does not depend on the width of the model.
    """
    weight = projection.to(value.device).float()
    gram = weight.mT @ weight
    shared = gram.shape[0] // value.shape[1]
    mine = value.float().repeat_interleave(shared, dim=1)
    return ((mine @ gram) * mine).sum(-1).clamp(min=0).sqrt()
