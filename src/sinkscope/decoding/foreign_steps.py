"""`following` publishes the steps of a foreign sampler: a diffusers pipeline, the loop of dllm or dInfer, or any other.

A step is a call of the network with a whole canvas. `ForeignSteps.committed` passes the canvas that the sampler wrote;
without it, the tokens that have changed are read from the next call.
"""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.attention import GenerationStart, Session, current_session
from sinkscope.attention.stacks import lengths_of
from sinkscope.decoding.canvas import Publisher
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import Model

ANEW = "leave guidance and the sampler's cache out, and open `following` anew for each generation"


class ForeignSteps:
    """The steps of one generation of a foreign sampler; ``number`` of them are finished."""

    def __init__(self, network: nn.Module, mask_id: int, pad_id: int | None, sampler: str, shift: bool) -> None:
        self.network, self.mask_id, self.pad_id, self.sampler = network, mask_id, pad_id, sampler
        self.number = 0
        self._shift = shift
        self._names = tuple(inspect.signature(network.forward).parameters)
        self._session: Session | None = None
        self._publisher = Publisher(None)
        self._running = False  # whether a step has begun whose tokens are not known
        self._first: Tensor | None = None  # the canvas of the first step, and of the newest one
        self._newest: Tensor | None = None
        self._prompt: Tensor | None = None  # where the first holds tokens of a prompt, bool [batch, position]
        self._committed: Tensor | None = None  # the canvas that was committed after the newest step

    def committed(self, canvas: Tensor | np.ndarray | Sequence[Sequence[int]]) -> None:
        """Publish the tokens of the running step, by the canvas after it, [batch, position] or longer; raise CallError
        where no step is running, AttentionError where its prompt is another one.
        """
        before = self._newest
        if before is None or not self._running:
            raise CallError("committed: expected a call of the network before it; call it once after each step")
        after = torch.as_tensor(canvas)[:, : before.shape[1]].to(before)
        self._check_prompt(after, "pass the canvas of the step that the network has just read")
        self._finish(after)
        self._committed = after.clone()

    def callback(self, pipeline: Any, step: int, timestep: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a step of a diffusers pipeline; pass this method as ``callback_on_step_end``."""
        self.committed(tensors["block_x"] if "block_x" in tensors else tensors["canvas"])
        return {}

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Publish that the network is called, as a hook; `AttentionError` where the call does not go on from before."""
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        # The token ids, or where a network has no such argument its first integers [batch, position].
        found: list[Any] = [given.get("input_ids")] if "input_ids" in self._names else list(given.values())
        integers = (torch.int64, torch.int32)
        whole = [one for one in found if isinstance(one, Tensor) and one.ndim == 2 and one.dtype in integers]
        cache = given.get("past_key_values")
        if not whole or getattr(cache, "get_seq_length", lambda: cache)():
            raise AttentionError(
                "expected a sampler that calls the network with whole canvases (token ids [batch, position]), found "
                "parts of them behind a cache, or embeddings; record it without `following`"
            )
        canvas = whole[0].long()
        if self._newest is not None:
            self._check_continues(canvas, self._newest)
            if self._running:
                self._finish(canvas)
        mask, masked = given.get("attention_mask"), canvas == self.mask_id
        lengths = torch.full((len(canvas),), canvas.shape[1], device="cpu")
        if isinstance(mask, Tensor) and mask.shape == canvas.shape:
            lengths = lengths_of(mask, "set tokenizer.padding_side = 'left'; fill whole blocks")
        starts = canvas.shape[1] - lengths.to(canvas.device)[:, None]
        real = torch.arange(canvas.shape[1], device=canvas.device) >= starts
        if self._session is None:
            self._begin(canvas, masked, real, lengths)
        self._newest, self._running, self._committed = canvas.clone(), True, None  # pipelines write into the canvas
        if self._first is None:
            in_front = (masked.long().cumsum(-1) == 0) & masked.any(-1, keepdim=True)
            self._first, self._prompt = self._newest, in_front & real
        self._publisher.before(self._newest, masked, lengths, range(len(canvas)), candidates=masked)

    def close(self, failed: bool) -> None:
        if self._running and not failed:
            self._finish(None)
            _warn(
                "the tokens of the last step are not known; call `steps.committed(canvas)` with the sampler's result, "
                "or pass `steps.callback` to it"
            )
        if self._session is not None:
            self._session.end_generation(failed)
        self._session, self._running = None, False

    def _check_prompt(self, canvas: Tensor, advice: str) -> None:
        assert self._first is not None and self._prompt is not None
        _refuse_changed("the prompt to stay", canvas, self._first, advice, self._prompt)

    def _check_continues(self, canvas: Tensor, newest: Tensor) -> None:
        rows, width = newest.shape
        if len(canvas) != rows or canvas.shape[1] < width:
            raise AttentionError(f"expected {rows} rows of at least {width} tokens, found {list(canvas.shape)}; {ANEW}")
        self._check_prompt(canvas, ANEW)
        if self._committed is not None:
            advice = f"commit each canvas after the step has written in it; {ANEW}"
            _refuse_changed("the tokens that were committed", canvas, self._committed, advice)
            return
        assert self._first is not None
        first, width = self._first, self._first.shape[1]
        again = bool((first == self.mask_id).any()) and torch.equal(canvas[:, :width], first)
        if again and not torch.equal(newest[:, :width], first):
            raise AttentionError(
                f"canvas: expected the tokens of the steps before, found the masks of the first again; {ANEW}; pass "
                "each canvas to `committed` where a sampler masks all again"
            )

    def _begin(self, canvas: Tensor, masked: Tensor, real: Tensor, lengths: Tensor) -> None:
        session, width = current_session(self.network), canvas.shape[1]
        if session is None:
            return
        if self.pad_id is not None and len(canvas) > 1 and int(lengths.min()) == width:
            padding = (canvas == self.pad_id).int().cumprod(-1).sum(-1)
            if int(padding.max()) and not int(padding.min()):
                _warn(
                    f"the sampler passes no mask, so the network reads the {int(padding.max())} padding tokens in "
                    f"front of prompt {int(padding.argmax())} as text (diffusers issue 13598); run prompts of "
                    "different lengths one by one"
                )
        bare = (masked | ~real).all(-1)
        if bool(bare.any()) and not bool(bare.all()):
            raise AttentionError(f"expected a prompt in every row, found {int(bare.sum())} bare; stop guidance")
        first = torch.where(masked.any(-1), masked.int().argmax(-1), width).cpu()
        prompts = tuple((first - (width - lengths)).clamp(min=0).tolist())
        start = GenerationStart(prompts, False, {"name": self.sampler}, (None,) * len(canvas), self.mask_id)
        session.begin_generation(start)
        self._session, self._publisher = session, Publisher(session, shift=self._shift, mask_id=self.mask_id)

    def _finish(self, after: Tensor | None) -> None:
        before = self._newest
        assert before is not None
        after = before if after is None else after[:, : before.shape[1]]
        self._publisher.after(torch.where(after != before, after, -1), None, None)
        self._running, self.number = False, self.number + 1


def _warn(text: str) -> None:
    warnings.warn(f"sinkscope.following: {text}", RuntimeWarning, stacklevel=5)


def _refuse_changed(expected: str, now: Tensor, before: Tensor, advice: str, places: Tensor | bool = True) -> None:
    changed = (now[:, : before.shape[1]] != before) & places
    if bool(changed.any()):
        row, place = changed.nonzero()[0].tolist()
        raise AttentionError(
            f"canvas: expected {expected}, found token {int(now[row, place])} in place of {int(before[row, place])} at "
            f"position {place} of row {row}; {advice}"
        )


@contextmanager
def following(
    model: Model | nn.Module, *, mask_id: int | None = None, pad_id: int | None = None, sampler: str = "foreign"
) -> Iterator[ForeignSteps]:
    """Publish the steps of one generation that a foreign sampler writes in the body, to the subscribers of the model.

    Args:
        model: a `Model`, or the module that the sampler calls.
        mask_id: the mask token; by default that of a `Model`, or of a module's configuration.
        pad_id: the token of padding, to notice a sampler that does not mask it; the tokenizer's for a `Model`.
        sampler: its name, for the manifest.

    Raises:
        CallError: no mask token is known, or another one than the model's.
        AttentionError: the sampler does not pass whole canvases.
    """
    loaded = isinstance(model, Model)
    network: nn.Module = model.network if loaded else model
    own = model.card.mask_id if loaded else getattr(getattr(network, "config", None), "mask_token_id", None)
    pad_id = model.tokenizer.pad_token_id if loaded and pad_id is None else pad_id
    mask = own if mask_id is None else mask_id
    if mask is None or (loaded and mask != own):
        expected = f"{own}, the mask of {model.card.name}" if loaded and own is not None else "the mask token"
        raise CallError(f"mask_id: expected {expected}, found {mask_id} for {type(network).__name__}")
    steps = ForeignSteps(network, mask, pad_id, sampler, loaded and model.family.shift)
    # Before the hooks of a session.
    handle = network.register_forward_pre_hook(steps.before_call, with_kwargs=True, prepend=True)
    failed = True
    try:
        yield steps
        failed = False
    finally:
        handle.remove()
        steps.close(failed)
