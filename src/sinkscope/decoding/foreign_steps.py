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

from sinkscope.attention import GenerationStart, Hider, Session, Watcher, current_session
from sinkscope.attention.stacks import lengths_of
from sinkscope.decoding.canvas import Publisher
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import Model

CANVASES = ("block_x", "canvas")
"""Names under which diffusers' pipelines pass the canvas to a callback."""
ANEW = "leave guidance and the sampler's cache out, and open `following` anew for each generation"


class ForeignSteps:
    """The steps of one generation of a foreign sampler.

    Args:
        network: called by the sampler.
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
        self._watchers: list[Watcher] = []  # those that were there when the generation began
        self._publisher = Publisher(None)
        self._canvas: Tensor | None = None  # of the step that is running
        self._shape: tuple[int, int] | None = None  # of the newest canvas that went in
        self._first: Tensor | None = None  # the canvas of the first step
        self._prompt: Tensor | None = None  # where that holds tokens of a prompt, bool [batch, position]
        self._committed: Tensor | None = None  # the canvas that was committed after the newest step

    def committed(self, canvas: Tensor | np.ndarray | Sequence[Sequence[int]]) -> None:
        """Publish the tokens that the running step has written.

        Args:
            canvas: token ids [batch, position], after the step; it may be longer than the one that went in.

        Raises:
            CallError: no step is running, this is no canvas, or its prompt is another one.
        """
        before = self._canvas
        if before is None:
            raise CallError("committed: expected a call of the network before it; call it once after each step")
        tokens = torch.as_tensor(canvas)
        fits = tokens.ndim == 2 and len(tokens) == len(before) and tokens.shape[1] >= before.shape[1]
        if not fits or tokens.is_floating_point():
            raise CallError(
                f"canvas: expected at least {list(before.shape)} token ids, found {tokens.dtype} {list(tokens.shape)}"
            )
        after = tokens[:, : before.shape[1]].to(before)
        self._check_prompt(after, CallError, "pass the canvas of the step that the network has just read")
        self._finish(torch.where(after != before, after, -1))
        self._committed = after.clone()

    def callback(self, pipeline: Any, step: int, timestep: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Publish a step of a diffusers pipeline; pass this method as ``callback_on_step_end``.

        Raises:
            CallError: the pipeline passes no canvas.
        """
        canvas = next((tensors[name] for name in CANVASES if name in tensors), None)
        if canvas is None:
            raise CallError(f"callback: expected {' or '.join(CANVASES)} from the pipeline, found {', '.join(tensors)}")
        self.committed(canvas)
        return {}

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Publish that the network is called; `following` installs this as a hook.

        Raises:
            AttentionError: the call has no whole canvas, another number of rows, a shorter canvas, another prompt,
                other tokens than were committed, the masks of a new generation, guidance, or padding that is not on the
                left.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        canvas, cache = self._tokens(given), given.get("past_key_values")
        if canvas is None or (cache.get_seq_length() if hasattr(cache, "get_seq_length") else cache):
            raise AttentionError(
                "expected a sampler that calls the network with whole canvases (token ids [batch, position]), found "
                "parts of them behind a cache, or embeddings; record it without `following`"
            )
        rows, width = canvas.shape if self._shape is None else self._shape
        if len(canvas) != rows or canvas.shape[1] < width:
            raise AttentionError(f"expected {rows} rows of at least {width} tokens, found {list(canvas.shape)}; {ANEW}")
        self._check_prompt(canvas, AttentionError, ANEW)
        self._check_continues(canvas)
        if (before := self._canvas) is not None:
            after = canvas[:, : before.shape[1]]
            self._finish(torch.where(after != before, after, -1))
        lengths = _lengths(given.get("attention_mask"), canvas)
        if self._session is None:
            self._begin(canvas, lengths)
        masked = canvas == self.mask_id
        self._canvas, self._committed = canvas.clone(), None  # pipelines write into the canvas
        self._shape = (len(canvas), canvas.shape[1])
        if self._first is None:
            starts = canvas.shape[1] - lengths.to(canvas.device)[:, None]
            real = torch.arange(canvas.shape[1], device=canvas.device) >= starts
            in_front = (masked.long().cumsum(-1) == 0) & masked.any(-1, keepdim=True)
            self._first, self._prompt = self._canvas, in_front & real
        self._publisher.before(self._canvas, masked, lengths, range(len(canvas)), candidates=masked)

    def close(self, failed: bool) -> None:
        """End the generation."""
        if self._canvas is not None and not failed:
            self._finish(None)
            _warn(
                "the tokens of the last step are not known; call `steps.committed(canvas)` with the sampler's result, "
                "or pass `steps.callback` to it"
            )
        if self._session is not None:
            left = {id(one) for one in self._session.subscribers}
            if not failed and any(id(one) not in left for one in self._watchers):
                _warn("a recording ended before `following`, so it is incomplete; open `following` inside it")
            self._session.end_generation(failed)
        self._session, self._canvas, self._watchers = None, None, []

    def _tokens(self, given: Mapping[str, Any]) -> Tensor | None:
        """Return ``input_ids`` of a call, or where a network has none its first integers [batch, position]."""
        found: list[Any] = [given.get("input_ids")] if "input_ids" in self._names else list(given.values())
        for one in found:
            if isinstance(one, Tensor) and one.ndim == 2 and one.dtype in (torch.int64, torch.int32):
                return one.long()
        return None

    def _check_prompt(self, canvas: Tensor, kind: type[Exception], advice: str) -> None:
        if self._first is not None and self._prompt is not None:
            changed = (canvas[:, : self._prompt.shape[1]] != self._first) & self._prompt
            _refuse_changed("the prompt to stay", changed, canvas, self._first, kind, advice)

    def _check_continues(self, canvas: Tensor) -> None:
        first, before, after = self._first, self._canvas, self._committed
        if after is not None:
            changed = canvas[:, : after.shape[1]] != after
            advice = f"commit each canvas after the step has written in it; {ANEW}"
            _refuse_changed("the tokens that were committed", changed, canvas, after, AttentionError, advice)
        elif first is not None and before is not None and bool((first == self.mask_id).any()):
            width = first.shape[1]
            if torch.equal(canvas[:, :width], first) and not torch.equal(before[:, :width], first):
                raise AttentionError(
                    f"canvas: expected the tokens of the steps before, found the masks of the first again; {ANEW}; "
                    "pass each canvas to `committed` where a sampler masks all again"
                )

    def _begin(self, canvas: Tensor, lengths: Tensor) -> None:
        session = current_session(self.network)
        if session is None:
            return
        self._warn_of_padding(canvas, lengths)
        width, masked = canvas.shape[1], canvas == self.mask_id
        starts = (width - lengths).to(canvas.device)
        bare = (masked | (torch.arange(width, device=canvas.device) < starts[:, None])).all(-1)
        if bool(bare.any()) and not bool(bare.all()):
            raise AttentionError(f"expected a prompt in every row, found {int(bare.sum())} bare; stop guidance")
        first = torch.where(masked.any(-1), masked.int().argmax(-1), width).cpu()
        prompts = tuple((first - (width - lengths)).clamp(min=0).tolist())
        session.begin_generation(
            GenerationStart(prompts, False, {"name": self.sampler}, (None,) * len(canvas), self.mask_id)
        )
        self._session, self._publisher = session, Publisher(session, shift=self._shift, mask_id=self.mask_id)
        self._watchers = [one for one in session.subscribers if isinstance(one, Watcher) and not isinstance(one, Hider)]

    def _warn_of_padding(self, canvas: Tensor, lengths: Tensor) -> None:
        if self.pad_id is None or len(canvas) == 1 or int(lengths.min()) < canvas.shape[1]:
            return
        padding = (canvas == self.pad_id).int().cumprod(-1).sum(-1)
        if int(padding.max()) and not int(padding.min()):
            _warn(
                f"the sampler passes no mask, so the network reads the {int(padding.max())} padding tokens in "
                f"front of prompt {int(padding.argmax())} as text (diffusers issue 13598); run prompts of different "
                "lengths one by one"
            )

    def _finish(self, written: Tensor | None) -> None:
        assert self._canvas is not None
        if self._session is not None:
            self._publisher.after(torch.full_like(self._canvas, -1) if written is None else written, None, None)
        self._canvas, self.number = None, self.number + 1


def _warn(text: str) -> None:
    warnings.warn(f"sinkscope.following: {text}", RuntimeWarning, stacklevel=5)


def _refuse_changed(
    expected: str, changed: Tensor, now: Tensor, before: Tensor, kind: type[Exception], advice: str
) -> None:
    if bool(changed.any()):
        row, place = changed.nonzero()[0].tolist()
        raise kind(
            f"canvas: expected {expected}, found token {int(now[row, place])} in place of {int(before[row, place])} at "
            f"position {place} of row {row}; {advice}"
        )


def _lengths(mask: Any, canvas: Tensor) -> Tensor:
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape != canvas.shape:
        return torch.full((len(canvas),), canvas.shape[1], device="cpu")
    advice = "set tokenizer.padding_side = 'left'; in a pipeline of blocks, let prompt and answer fill whole blocks"
    return lengths_of(mask, advice)


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
    network = model.network if isinstance(model, Model) else model
    own, shift = getattr(getattr(network, "config", None), "mask_token_id", None), False
    if isinstance(model, Model):
        own, shift = model.card.mask_id, model.family.shift
        pad_id = model.tokenizer.pad_token_id if pad_id is None else pad_id
    mask = own if mask_id is None else mask_id
    if mask is None:
        raise CallError(f"mask_id: expected the mask token, found none in {type(network).__name__}; name it")
    if isinstance(model, Model) and mask != own:
        raise CallError(f"mask_id: the mask of {model.card.name} is {own}, found {mask_id}; leave it out")
    steps = ForeignSteps(network, mask, pad_id, sampler, shift)
    # Before the hooks of a session.
    handle = network.register_forward_pre_hook(steps.before_call, with_kwargs=True, prepend=True)
    failed = True
    try:
        yield steps
        failed = False
    finally:
        handle.remove()
        steps.close(failed)
