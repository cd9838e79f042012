"""The tuned lens (Belrose and others, arXiv 2303.08112): an affine map for each layer in front of the norm and head.

What a layer writes may be turned against the basis that the head reads, which biases the logit lens. The map
h + W h + b starts as the identity and is trained to make KL(final ‖ lens) small on text. A folder of one holds

lens.safetensors    weight [layer, width, width] and bias [layer, width], of all layers but the last
lens.json           the model's name and weight hash, and how it was fitted
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor

from sinkscope.errors import CallError
from sinkscope.lenses.readout import blocks_of, read, streams_of
from sinkscope.models import Model, expect_model
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.runs.files import json_text, read_json_object

WEIGHTS, ABOUT = "lens.safetensors", "lens.json"
HELD_OUT = 8
"""Every eighth text is not trained on, and measures the lens."""


@dataclass(frozen=True, eq=False)
class TunedLens:
    """A map of each layer's residual stream but the last; kl: held out, of all layers, before and after the fit."""

    weight: Float[Tensor, "layer width width"]
    bias: Float[Tensor, "layer one width"]
    model: str
    weight_hash: str
    updates: int = 0
    kl_before: tuple[float, ...] = ()
    kl: tuple[float, ...] = ()

    def __call__(self, streams: Float[Tensor, "layer row width"]) -> Float[Tensor, "layer row width"]:
        inner = streams[:-1].to(self.weight)
        moved = inner + inner @ self.weight.mT + self.bias
        return torch.cat([moved.to(streams), streams[-1:]])

    def save(self, folder: str | Path) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"weight": self.weight.cpu(), "bias": self.bias[:, 0].cpu()}, folder / WEIGHTS)
        about = {name: value for name, value in vars(self).items() if name not in ("weight", "bias")}
        (folder / ABOUT).write_text(json_text(about) + "\n", encoding="utf-8")


def open_lens(folder: str | Path, model: Model) -> TunedLens:
    """Return the lens in a folder; CallError for one of another model, or none."""
    folder = Path(folder)
    if not (folder / ABOUT).is_file():
        raise CallError(f"no tuned lens at {folder}: expected {WEIGHTS} and {ABOUT}, as `sinkscope lens --fit` writes")
    about = read_json_object(folder / ABOUT, CallError, "fit it again")
    if about.get("weight_hash") != weight_hash_of(model):
        raise CallError(f"{folder} was fitted to other weights ({about.get('model')}) than those of {model.card.name}")
    stored = load_file(folder / WEIGHTS, device=str(model.device))
    return TunedLens(stored["weight"], stored["bias"][:, None], **about)


def fit_lens(
    model: Model,
    texts: Sequence[str],
    *,
    updates: int = 200,
    rows: int = 16,
    length: int = 128,
    rate: float = 1e-3,
    seed: int = 0,
    on_progress: Callable[[int], object] = lambda update: None,
) -> TunedLens:
    """Return a tuned lens, trained on random positions of texts, of which every eighth is held out.

    Args:
        texts: at least eight; of a diffusion model a share of their tokens, drawn evenly from 0 to 1, is masked.
        updates: of Adam, whose ``rate`` falls to 0.
        rows: positions of one text in an update.
        length: tokens of a text, of which the rest is cut off.

    Raises CallError for too few texts.
    """
    expect_model(model, unwatched=True)
    if len(texts) < HELD_OUT:
        raise CallError(f"expected at least {HELD_OUT} texts, of which one is held out, found {len(texts)}")
    blocks, rng, mask = blocks_of(model), np.random.default_rng(seed), model.card.mask_id
    encoded = [np.array(model.encode(one))[: min(length, model.card.max_positions)] for one in texts]

    def drawn(tokens: np.ndarray, rng: np.random.Generator) -> Tensor:
        if not model.family.causal:
            assert mask is not None
            tokens = np.where(rng.random(len(tokens)) < rng.random(), mask, tokens)
        at = rng.choice(len(tokens), min(rows, len(tokens)), replace=False)
        return streams_of(model, blocks, tokens)[:, torch.from_numpy(at)].float()

    def loss(streams: Tensor, corrected: Tensor) -> Tensor:
        said = torch.log_softmax(read(model, blocks, corrected.to(model.network.dtype)), -1)
        final = said[-1].detach()
        return (final.exp() * (final - said[:-1])).sum(-1).mean(-1)

    width = model.card.hidden_size
    weight = torch.zeros(len(blocks) - 1, width, width, device=model.device, requires_grad=True)
    bias = torch.zeros(len(blocks) - 1, 1, width, device=model.device, requires_grad=True)
    known: dict[str, Any] = {"model": model.card.name, "weight_hash": weight_hash_of(model), "updates": updates}
    fitted = TunedLens(weight, bias, **known)
    optimiser = torch.optim.Adam([weight, bias], lr=rate)
    trained = [one for number, one in enumerate(encoded) if (number + 1) % HELD_OUT]

    def held_out(corrected: Callable[[Tensor], Tensor]) -> tuple[float, ...]:
        draws = np.random.default_rng([seed, 1])
        with torch.no_grad():
            streams = [drawn(one, draws) for one in encoded[HELD_OUT - 1 :: HELD_OUT][:16]]
            return tuple(torch.stack([loss(one, corrected(one)) for one in streams]).mean(0).tolist())

    before = held_out(lambda streams: streams)
    for update in range(updates):
        for group in optimiser.param_groups:
            group["lr"] = rate * (1 - update / updates)
        streams = drawn(trained[rng.integers(len(trained))], rng)
        weight.grad, bias.grad = torch.autograd.grad(loss(streams, fitted(streams)).sum(), [weight, bias])
        optimiser.step()
        on_progress(update + 1)
    known |= {"kl_before": before, "kl": held_out(fitted)}
    return TunedLens(weight.detach(), bias.detach(), **known)
