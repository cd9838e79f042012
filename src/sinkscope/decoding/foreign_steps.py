"""`following` publishes the steps of a sampler that is not ours: a diffusers pipeline, dllm's or dInfer's loop, or one's own.

A step is a call of the network with a whole canvas. What the sampler writes in it is told by `ForeignSteps.committed`, or else read
from the next call: the tokens that have changed.
"""

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sinkscope.argument_types import fits, in_words
from sinkscope.attention import GenerationStart, Hider, Session, Watcher, current_session
from sinkscope.attention.records import described
from sinkscope.attention.stacks import lengths_of
from sinkscope.decoding.canvas import Publisher
from sinkscope.documents import describe
from sinkscope.errors import AttentionError, CallError
from sinkscope.models import Model
from sinkscope.models.weights import LONGEST_CANVAS

CANVASES = ("block_x", "canvas")
"""Names under which diffusers' pipelines pass the canvas to a callback."""
LONGEST_NAME = 1000
MOST_TOKENS = 1 << 31
"""Characters of a sampler's name, and token ids, that a trace can hold."""


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
        self._watchers: list[Watcher] = []  # those that were there when the generation began
        self._publisher = Publisher(None)
        self._canvas: Tensor | None = None  # of the step that is running
        self._shape: tuple[int, int] | None = None  # of the newest canvas that went in
        self._first: Tensor | None = None  # the canvas of the first step
        self._prompt: Tensor | None = None  # where that holds tokens of a prompt, bool [batch, position]
        self._told: Tensor | None = None  # the canvas that was committed after the newest step
        self._vocabulary = _vocabulary(network)

    def committed(self, canvas: Tensor | np.ndarray | Sequence[Sequence[int]]) -> None:
        """Publish what the running step has written.

        Args:
            canvas: token ids [batch, position], after the step; it may be longer than the one that went in.

        Raises:
            CallError: no step is running, this is no canvas, it holds what is no token, or its prompt is another one.
        """
        before = self._canvas
        if before is None:
            raise CallError(
                "committed: expected a call of the network before it, found none; call it once after each step"
            )
        tokens = _token_ids(canvas)
        if tokens.ndim != 2 or len(tokens) != len(before) or tokens.shape[1] < before.shape[1]:
            raise CallError(f"canvas: expected at least {list(before.shape)} tokens, found {list(tokens.shape)}")
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise CallError(f"canvas: expected token ids, found {described(tokens)}")
        after = tokens[:, : before.shape[1]].to(before)
        self._check(after, CallError, "pass the canvas of the step that the network has just read")
        self._finish(torch.where(after != before, after, -1))
        self._told = after.clone()

    def callback(self, pipeline: Any, step: int, timestep: int, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Publish what a step of a diffusers pipeline has written; pass this method as ``callback_on_step_end``.

        Raises:
            CallError: the pipeline passes no canvas.
        """
        if not isinstance(tensors, Mapping):
            raise CallError(f"callback: expected tensors by name from the pipeline, found {in_words(tensors)}")
        canvas = next((tensors[name] for name in CANVASES if name in tensors), None)
        if canvas is None:
            raise CallError(
                f"callback: expected {' or '.join(CANVASES)} from the pipeline, found {', '.join(map(str, tensors)) or 'nothing'}"
            )
        self.committed(canvas)
        return {}

    def before_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Publish that the network is called; `following` installs this as a hook.

        Raises:
            AttentionError: the call has no whole canvas, another number of rows, a shorter canvas, another prompt, other tokens than were
                committed, the masks of a new generation, guidance, or padding that is not on the left.
            CallError: what the canvas holds is no token, or a row has none.
        """
        given = {**dict(zip(self._names, args, strict=False)), **kwargs}
        canvas, mask, cache = self._tokens(given), given.get("attention_mask"), given.get("past_key_values")
        if canvas is None or _holds_keys(cache):
            raise AttentionError(
                "expected a sampler that calls the network with whole canvases (token ids [batch, position]), found one that passes "
                "parts of them with a cache, or embeddings; record it without `following`"
            )
        if not canvas.numel():
            raise CallError(f"expected at least one token in each row, found a canvas of {list(canvas.shape)}")
        if self._shape is not None:
            rows, width = self._shape
            if len(canvas) != rows:
                raise AttentionError(
                    f"expected {rows} rows as in the call before, found {len(canvas)}; leave guidance out"
                )
            if canvas.shape[1] < width:
                raise AttentionError(
                    f"expected a canvas of at least {width} tokens as in the call before, found {canvas.shape[1]}; leave "
                    "the sampler's cache out, and open `following` anew for each generation"
                )
        self._check(canvas, AttentionError, "leave guidance out, and open `following` anew for each generation")
        self._check_continues(canvas)
        if (before := self._canvas) is not None:
            after = canvas[:, : before.shape[1]]
            self._finish(torch.where(after != before, after, -1))
        lengths = _lengths(mask, canvas)
        if self._session is None:
            self._begin(canvas, lengths)
        masked = canvas == self.mask_id
        self._canvas, self._shape, self._told = (
            canvas.clone(),
            (len(canvas), canvas.shape[1]),
            None,
        )  # pipelines write into it
        if self._first is None:
            self._first, self._prompt = self._canvas, _prompt_of(canvas, lengths, self.mask_id)
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
            left = {id(one) for one in self._session.subscribers}
            if not failed and any(id(one) not in left for one in self._watchers):
                warnings.warn(
                    "sinkscope.following: a recording was closed before `following`, so its trace says that it is incomplete; open "
                    "`following` inside `recording`",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._session.end_generation(failed)
        self._session, self._canvas, self._watchers = None, None, []

    def _tokens(self, given: Mapping[str, Any]) -> Tensor | None:
        """Return the tokens of a call: ``input_ids``; where a network has no such argument, its first integers [batch, position]."""
        found = [given.get("input_ids")] if "input_ids" in self._names else list(given.values())
        whole = (one for one in found if _is_canvas(one))
        return None if (first := next(whole, None)) is None else first.long()

    def _check(self, canvas: Tensor, other_prompt: type[Exception], advice: str) -> None:
        """Raise an error for a canvas, int64 [batch, position], that holds what is no token, or another prompt than the one before.

        Raises:
            CallError: what is no token.
            other_prompt: another prompt.
        """
        first, prompt = self._first, self._prompt
        changed = torch.zeros_like(canvas, dtype=torch.bool)
        if first is not None and prompt is not None:
            width = prompt.shape[1]
            changed[:, :width] = (canvas[:, :width] != first) & prompt
        none = (canvas < 0) | (canvas >= self._vocabulary)
        if not bool((none | changed).any()):
            return
        row, place = (none if bool(none.any()) else changed).nonzero()[0].tolist()
        token, there = int(canvas[row, place]), f"at position {place} of row {row}"
        if bool(none.any()):
            raise CallError(f"canvas: expected token ids from 0 to {self._vocabulary - 1}, found {token} {there}")
        assert first is not None
        was = int(first[row, place])
        raise other_prompt(
            f"canvas: expected the prompt to stay, found token {token} in place of {was} {there}; {advice}"
        )

    def _check_continues(self, canvas: Tensor) -> None:
        """Raise an error where a canvas does not follow from the step before.

        Raises:
            AttentionError: it holds other tokens than were committed, or the masks of the first step again.
        """
        first, before, told = self._first, self._canvas, self._told
        if told is not None and bool((other := canvas[:, : told.shape[1]] != told.to(canvas.device)).any()):
            row, place = other.nonzero()[0].tolist()
            raise AttentionError(
                f"canvas: expected the tokens that were committed, found token {int(canvas[row, place])} in place of "
                f"{int(told[row, place])} at position {place} of row {row}; commit each canvas after the step has written in it, and open "
                "`following` anew for each generation"
            )
        if told is not None or first is None or before is None or not bool((first == self.mask_id).any()):
            return
        width = first.shape[1]
        if torch.equal(canvas[:, :width], first) and not torch.equal(before[:, :width], first):
            raise AttentionError(
                "canvas: expected what the steps before have written, found the masks of the first step again, as a second generation "
                "begins; open `following` anew for each generation. Say what was `committed` where a sampler masks again all it has written"
            )

    def _begin(self, canvas: Tensor, lengths: Tensor) -> None:
        session = current_session(self.network)
        if session is None:
            return
        self._warn_of_padding(canvas, lengths)
        self._refuse_guidance(canvas, lengths)
        width, masked = canvas.shape[1], canvas == self.mask_id
        first = torch.where(masked.any(-1), masked.int().argmax(-1), width).cpu()
        prompts = tuple((first - (width - lengths)).clamp(min=0).tolist())
        session.begin_generation(
            GenerationStart(prompts, width, False, {"name": self.sampler}, (None,) * len(canvas), self.mask_id)
        )
        self._session, self._publisher = session, Publisher(session, shift=self._shift, mask_id=self.mask_id)
        self._watchers = [one for one in session.subscribers if isinstance(one, Watcher) and not isinstance(one, Hider)]

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
        padding = (
            torch.arange(canvas.shape[1], device=canvas.device) < (canvas.shape[1] - lengths.to(canvas.device))[:, None]
        )
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
    return lengths_of(
        mask,
        "set tokenizer.padding_side = 'left', and let prompt and answer of a pipeline that writes in blocks together fill whole blocks",
    )


def _prompt_of(canvas: Tensor, lengths: Tensor, mask_id: int) -> Tensor:
    """Return where a canvas holds tokens in front of its first mask, bool [batch, position]; nowhere in a row without masks."""
    masked = canvas == mask_id
    real = torch.arange(canvas.shape[1], device=canvas.device) >= (canvas.shape[1] - lengths.to(canvas.device))[:, None]
    return (masked.long().cumsum(-1) == 0) & masked.any(-1, keepdim=True) & real


def _is_canvas(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.ndim == 2
        and value.dtype in (torch.int64, torch.int32)
    )


def _token_ids(canvas: Any) -> Tensor:
    """Return a canvas as a tensor, whatever it holds.

    Raises:
        CallError: something that is none, such as text or rows of several lengths.
    """
    if isinstance(canvas, Tensor) and not canvas.is_nested:
        return canvas
    try:
        longest = max(map(len, canvas)) if isinstance(canvas, list | tuple) else 0
        array = np.asarray(None if isinstance(canvas, range) or longest > LONGEST_CANVAS else canvas)
    except (
        OverflowError,
        ValueError,
        TypeError,
        RuntimeError,
    ):  # rows of several lengths or without end, nested tensors
        array = np.asarray(None)
    if array.ndim != 2 or array.dtype.kind not in "iufb":
        raise CallError(f"canvas: expected token ids [batch, position], found {in_words(canvas)}")
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array.copy())


def _holds_keys(cache: Any) -> bool:
    """Return whether a cache, of transformers or of another kind, holds keys."""
    if cache is None:
        return False
    return bool(cache.get_seq_length() if callable(getattr(cache, "get_seq_length", None)) else cache)


def _vocabulary(network: nn.Module) -> int:
    """Return how many tokens a network reads, or as many as a trace can hold where it does not say."""
    with contextlib.suppress(AttributeError, NotImplementedError, TypeError):
        return min(len(network.get_input_embeddings().weight), MOST_TOKENS)  # type: ignore[operator]
    return MOST_TOKENS


@contextlib.contextmanager
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
        CallError: no model, no mask token is known, or it is no token of the network.
        AttentionError: the sampler does not pass whole canvases.
    """
    network = model.network if isinstance(model, Model) else model
    if not isinstance(network, nn.Module):
        raise CallError(f"model: expected a sinkscope Model or a torch module, found {in_words(network)}")
    if not 0 < len(sampler) <= LONGEST_NAME or any("\ud800" <= one <= "\udfff" for one in sampler):
        raise CallError(f"sampler: expected a name of 1 to {LONGEST_NAME} characters, found {describe(sampler)}")
    given = {"mask_id": mask_id, "pad_id": pad_id}
    if isinstance(model, Model):
        mask_id = model.card.mask_id if mask_id is None else mask_id
        pad_id = model.tokenizer.pad_token_id if pad_id is None else pad_id
    else:
        mask_id = getattr(getattr(network, "config", None), "mask_token_id", None) if mask_id is None else mask_id
    if mask_id is None:
        raise CallError(f"mask_id: expected the mask token, found none in {type(network).__name__}; name it")
    vocabulary = _vocabulary(network)
    for name, token in {**given, "mask_id": mask_id}.items():
        if token is not None and not (fits(token, int) and 0 <= token < vocabulary):
            raise CallError(f"{name}: expected a token id from 0 to {vocabulary - 1}, found {in_words(token)}")
    if isinstance(model, Model) and mask_id != model.card.mask_id:
        raise CallError(
            f"mask_id: the mask of {model.card.name} is {model.card.mask_id}, found {mask_id}; leave it out"
        )
    steps = ForeignSteps(network, mask_id, pad_id, sampler, isinstance(model, Model) and model.family.shift)
    handle = network.register_forward_pre_hook(
        steps.before_call, with_kwargs=True, prepend=True
    )  # before those of a session
    failed = True
    try:
        yield steps
        failed = False
    finally:
        handle.remove()
        steps.close(failed)
