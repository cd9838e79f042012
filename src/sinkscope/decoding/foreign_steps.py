"""`following` publishes the steps of a sampler that is not ours: a diffusers pipeline, dllm's or dInfer's loop, or one's own.

A step is a call of the network with a whole canvas. What the sampler writes in it is told by `ForeignSteps.committed`, or else read
from the next call: the tokens that have changed.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sinkscope.attention import GenerationStart, Session, current_session
from sinkscope.decoding.canvas import Publisher
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import Model
from sinkscope.single_use import single_use

CANVASES = ("block_x", "canvas")
"""Names under which diffusers' pipelines pass the canvas to a callback."""


class ForeignSteps:
    """The steps of one generation of a foreign sampler.

    Args:
        network: what the sampler calls.
        mask_id: the mask token.
        pad_id: the token of padding; None where it is not known.
        sampler: its name, for the manifest.
        shift: whether a masked token is read from the query in front of it.
    """

    def __init__(self, network: nn.Module, mask_id: int, pad_id: int | None, sampler: str, shift: bool) -> None:
        self.network, self.mask_id, self.pad_id, self.sampler = network, mask_id, pad_id, sampler
        self.number = 0  # of steps that are finished
        self._shift = shift
        self._names = tuple(inspect.signature(network.forward).parameters)
        self._session: Session | None = None
        self._publisher = Publisher(None)
        self._canvas: Tensor | None = None  # of the step that is running

    def committed(self, canvas: Tensor) -> None:
        """Publish what the running step has written.

        Args:
            canvas: int64 [batch, position], after the step; it may be longer than the one that went in.

        Raises:
            CallError: no step is running, or the canvas is another one.
        """
        before = self._canvas
        if before is None:
            raise CallError("committed: expected a call of the network before it, found none; call it once after each step")
        if canvas.ndim != 2 or len(canvas) != len(before) or canvas.shape[1] < before.shape[1]:
            raise CallError(f"canvas: expected at least {list(before.shape)} tokens, found {list(canvas.shape)}")
        after = canvas[:, : before.shape[1]].to(before.device)
        self._finish(torch.where(after != before, after, -1))

    def callback(self, pipeline: Any, step: int, timestep: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Publish what a step of a diffusers pipeline has written; pass this method as ``callback_on_step_end``.

        Raises:
            CallError: the pipeline passes no canvas.
        """
        canvas = next((tensors[name] for name in CANVASES if name in tensors), None)
        if canvas is None:
            raise CallError(f"callback: expected {' or '.join(CANVASES)} from the pipeline, found {', '.join(tensors) or 'nothing'}")
        self.committed(canvas)
        return {}

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Publish that the network is called; `following` installs this as a hook.

        Raises:
            AttentionError: the call has no whole canvas, another number of rows, a shorter canvas, guidance, or padding on the right.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        canvas, mask, cache = self._tokens(given), given.get("attention_mask"), given.get("past_key_values")
        if canvas is None or (cache is not None and int(cache.get_seq_length())):
            raise AttentionError(
                "expected a sampler that calls the network with whole canvases (token ids [batch, position]), found one that passes "
                "parts of them with a cache, or embeddings; record it without `following`"
            )
        if self._canvas is not None:
            if len(canvas) != len(self._canvas):
                raise AttentionError(f"expected {len(self._canvas)} rows as in the call before, found {len(canvas)}; leave guidance out")
            if canvas.shape[1] < self._canvas.shape[1]:
                raise AttentionError(
                    f"expected a canvas of at least {self._canvas.shape[1]} tokens as in the call before, found {canvas.shape[1]}; leave "
                    "the sampler's cache out, and open `following` anew for each generation"
                )
            self.committed(canvas)
        lengths = _lengths(mask, canvas)
        if self._session is None:
            self._begin(canvas, lengths)
        masked = canvas == self.mask_id
        self._canvas = canvas.clone()  # pipelines write into it
        self._publisher.before(self._canvas, masked, lengths, range(len(canvas)), candidates=masked)

    def close(self, failed: bool) -> None:
        """End the generation."""
        if self._canvas is not None and not failed:
            self._finish(None)
            warnings.warn(
                "sinkscope.following: what the last step wrote is not known; call `steps.committed(canvas)` with what the sampler "
                "returned, or pass `steps.callback` to it",
                RuntimeWarning,
                stacklevel=4,
            )
        if self._session is not None:
            self._session.end_generation(failed)
        self._session, self._canvas = None, None

    def _tokens(self, given: Mapping[str, Any]) -> Tensor | None:
        """Return the tokens of a call: ``input_ids``; where a network has no such argument, its first integers [batch, position]."""
        found = [given.get("input_ids")] if "input_ids" in self._names else list(given.values())
        return next((one for one in found if isinstance(one, Tensor) and one.ndim == 2 and one.dtype == torch.long), None)

    def _begin(self, canvas: Tensor, lengths: Tensor) -> None:
        session = current_session(self.network)
        if session is None:
            return
        self._warn_of_padding(canvas, lengths)
        self._refuse_guidance(canvas, lengths)
        width, masked = canvas.shape[1], canvas == self.mask_id
        first = torch.where(masked.any(-1), masked.int().argmax(-1), width).cpu()
        prompts = tuple((first - (width - lengths)).clamp(min=0).tolist())
        session.begin_generation(GenerationStart(prompts, width, False, {"name": self.sampler}, (None,) * len(canvas), self.mask_id))
        self._session, self._publisher = session, Publisher(session, shift=self._shift)

    def _warn_of_padding(self, canvas: Tensor, lengths: Tensor) -> None:
        """Warn of a batch whose padding the sampler shows to the network as text."""
        if self.pad_id is None or len(canvas) == 1 or int(lengths.min()) < canvas.shape[1]:
            return
        padding = (canvas == self.pad_id).int().cumprod(-1).sum(-1)
        if int(padding.max()) and not int(padding.min()):
            warnings.warn(
                f"sinkscope.following: the sampler passes no attention mask, so the network reads the {int(padding.max())} padding tokens "
                f"in front of prompt {int(padding.argmax())} as text (diffusers issue 13598); the columns are those of what ran. "
                "Run prompts of different lengths one by one",
                RuntimeWarning,
                stacklevel=6,
            )

    def _refuse_guidance(self, canvas: Tensor, lengths: Tensor) -> None:
        """Raise an error where some rows hold a prompt and others nothing but masks.

        Raises:
            AttentionError: so it is.
        """
        padding = torch.arange(canvas.shape[1], device=canvas.device) < (canvas.shape[1] - lengths.to(canvas.device))[:, None]
        bare = ((canvas == self.mask_id) | padding).all(-1)
        if bool(bare.any()) and not bool(bare.all()):
            raise AttentionError(
                f"expected a prompt in every row, found {int(bare.sum())} of {len(canvas)} rows with nothing but masks; leave guidance out"
            )

    def _finish(self, written: Tensor | None) -> None:
        """Publish the result of the running step; None where it is not known."""
        assert self._canvas is not None
        if self._session is not None:
            self._publisher.after(torch.full_like(self._canvas, -1) if written is None else written, None, None)
        self._canvas, self.number = None, self.number + 1


def _lengths(mask: Any, canvas: Tensor) -> Tensor:
    """Return the number of real tokens of each row, int64 [batch], on the host.

    Raises:
        AttentionError: padding on the right.
    """
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape != canvas.shape:
        return torch.full((len(canvas),), canvas.shape[1], device="cpu")
    real = mask.cpu().long()
    if bool((real.diff(dim=-1) < 0).any()):
        raise AttentionError(
            "expected padding on the left, found it on the right; set tokenizer.padding_side = 'left', and let prompt and answer of a "
            "pipeline that writes in blocks together fill whole blocks"
        )
    return real.sum(-1)


@single_use
def following(
    model: Model | nn.Module, *, mask_id: int | None = None, pad_id: int | None = None, sampler: str = "foreign"
) -> Iterator[ForeignSteps]:
    """Publish the steps of one generation that a foreign sampler writes in the body, to what records or hides there.

    Args:
        model: a `Model`, or the module that the sampler calls.
        mask_id: the mask token; that of a `Model`, or of a module's configuration, where it is left out.
        pad_id: the token of padding, so that a sampler that does not mask it is noticed; the tokenizer's for a `Model`.
        sampler: its name, for the manifest.

    Raises:
        CallError: no mask token is known.
        AttentionError: the sampler does not pass whole canvases.
    """
    network = model.network if isinstance(model, Model) else model
    if isinstance(model, Model):
        mask_id = model.card.mask_id if mask_id is None else mask_id
        pad_id = model.tokenizer.pad_token_id if pad_id is None else pad_id
    else:
        mask_id = getattr(getattr(network, "config", None), "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise CallError(f"mask_id: expected the mask token, found none in {type(network).__name__}; name it")
    steps = ForeignSteps(network, mask_id, pad_id, sampler, isinstance(model, Model) and model.family.shift)
    handle = network.register_forward_pre_hook(steps.before_call, with_kwargs=True, prepend=True)  # before those of a session
    failed = True
    try:
        yield steps
        failed = False
    finally:
        handle.remove()
        steps.close(failed)
