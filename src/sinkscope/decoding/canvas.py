"""A batch of prompts as one left-padded canvas, and the publication of its steps to the subscribers of a model.

A canvas is the whole sequence that the network reads in a step: the prompt, followed by the tokens to be written,
masked or not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import GenerationStart, Session, StepContext, StepResult, generating_in, upload
from sinkscope.decoding.settings import Settings, described
from sinkscope.decoding.work import WorkMeter
from sinkscope.errors import CallError
from sinkscope.models import Model


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a sampler, all rows of the batch, left padding included.

    Attributes:
        number: from 0.
        tokens: int64 [batch, position], the canvas after the step.
        written: int64 [batch, position], the token committed in this step, −1 elsewhere.
        confidence: float32 [batch, position], of the tokens that were committed or could have been; NaN elsewhere.
        meter: adds up the work of the generation; None for a sampler that does not count it.
        lengths: int64 [batch], tokens of each prompt and its answer, on the host; None where all rows end where the
            canvas ends.
    """

    number: int
    tokens: Tensor
    written: Tensor
    confidence: Tensor
    meter: WorkMeter | None = None
    lengths: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts that are written together.

    Attributes:
        tokens: int64 [batch, prompt position], left-padded.
        real: bool of the same shape, False on padding.
        texts: the prompts as text; None for one that came as token ids.
    """

    tokens: Tensor
    real: Tensor
    texts: tuple[str | None, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of tokens of each prompt."""
        return tuple(self.real.sum(-1).tolist())


def make_batch(model: Model, prompts: Sequence[Sequence[int]], texts: Sequence[str | None], length: int) -> Batch:
    """Return prompts padded on the left to one width; ``length`` is the number of tokens to write.

    Raises:
        CallError: there is no prompt, or the canvas is longer than the model's maximum.
    """
    if not prompts:
        raise CallError("expected at least one prompt, found none")
    width = max(map(len, prompts))
    if width + length > model.card.max_positions:
        raise CallError(
            f"the canvas does not fit: a prompt of {width} tokens and {length} to write make {width + length}, "
            f"{model.limit}; shorten the prompt (fewer --shots, where it has some) or --length"
        )
    padding = model.card.eos_id if model.card.eos_id is not None else 0
    tokens = torch.full((len(prompts), width), padding, dtype=torch.long, device="cpu")
    real = torch.zeros(len(prompts), width, dtype=torch.bool, device="cpu")
    for row, prompt in enumerate(prompts):
        tokens[row, width - len(prompt) :] = torch.tensor(prompt, dtype=torch.long, device="cpu")
        real[row, width - len(prompt) :] = True
    return Batch(tokens.to(model.device), real.to(model.device), tuple(texts))


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of the real tokens in a batch of canvases: the right end of each row.

    Attributes:
        seen: bool [batch, 1, query, key], False on padding; None when there is none. It has the full shape because the
            network would ask in every step whether a mask of padding [batch, key] is all true, and wait for the GPU.
        positions: int64 [batch, position], from 0 at the first real token.
        lengths: int64 [batch], number of real tokens; on the host.
        starts: index of the first real token of each row.
    """

    seen: Tensor | None
    positions: Tensor
    lengths: Tensor
    starts: tuple[int, ...]


def lay_out(real: Tensor) -> Layout:
    """Return the layout of canvases; ``real`` marks their real tokens, bool [batch, position]."""
    lengths = real.sum(-1).cpu()
    return Layout(
        seen=None if bool(real.all()) else real[:, None, None].expand(-1, 1, real.shape[1], -1),
        positions=(real.long().cumsum(-1) - 1).clamp(min=0),
        lengths=lengths,
        starts=tuple((real.shape[1] - lengths).tolist()),
    )


def masked_canvas(batch: Batch, length: int, mask_id: int) -> tuple[Tensor, Layout]:
    """Return the canvas that a sampler begins with, int64 [batch, position]: the prompts, followed by masks."""
    masks = batch.tokens.new_full((len(batch.tokens), length), mask_id)
    real = torch.cat([batch.real, torch.ones_like(masks, dtype=torch.bool)], dim=1)
    return torch.cat([batch.tokens, masks], dim=1), lay_out(real)


class Publisher:
    """Tells the subscribers of a model about each step; does nothing when there are none.

    Args:
        session: of the model; None without subscribers.
        causal: whether a token is read from the query in front of it, the newest one.
        shift: the same for a masked position of a diffusion model; a row's first token is read at its own place.
        mask_id: the mask token, with which a position is written that is masked again; that is no commit.
    """

    def __init__(
        self, session: Session | None, causal: bool = False, shift: bool = False, mask_id: int | None = None
    ) -> None:
        self._session, self._causal, self._shift, self._mask_id = session, causal, shift, mask_id
        self._lengths = torch.zeros(0, dtype=torch.long, device="cpu")

    @property
    def listened(self) -> bool:
        """Whether the model has subscribers."""
        return self._session is not None

    def before(
        self,
        tokens: Tensor,
        masked: Tensor,
        lengths: Tensor,
        rows: Sequence[int],
        prompts: Sequence[int] | None = None,
        candidates: Tensor | None = None,
        final_queries: bool | None = None,
    ) -> None:
        """Publish that a forward call is about to run.

        Args:
            tokens: int64 [batch, position], the canvas that goes in.
            masked: bool [batch, position], where it holds the mask token.
            lengths: int64 [batch], real tokens of each row; on the host.
            rows: rows of the batch that are still being written.
            prompts: number of the prompt of each of these rows; the rows' own numbers when None.
            candidates: bool [batch, position], where a token may be committed in this step, an autoregressive model's
                one position beyond its tokens; None where nothing is committed.
            final_queries: see `StepContext`.
        """
        if self._session is not None:
            self._lengths = lengths
            readers = None if candidates is None else self._readers(candidates)
            numbers = tuple(rows if prompts is None else prompts)
            self._session.begin_step(
                StepContext(tokens, masked, lengths, tuple(rows), numbers, readers=readers, final_queries=final_queries)
            )

    def after(self, written: Tensor, predicted: Tensor | None, confidence: Tensor | None) -> None:
        """Publish what a step has committed: int64, int64 and float32 [batch, position], as in `StepResult`."""
        if self._session is not None:
            commits = written >= 0 if self._mask_id is None else (written >= 0) & (written != self._mask_id)
            self._session.end_step(StepResult(written, predicted, confidence, self._readers(commits)))

    def _readers(self, places: Tensor) -> Tensor:
        """Return the queries whose outputs tokens of some places are read from, bool [batch, position]."""
        if self._causal:
            return places[:, 1:]
        if not self._shift:
            return places
        starts = places.shape[1] - upload(self._lengths[: len(places)], places.device)
        first = torch.arange(places.shape[1], device=places.device) == starts[:, None]
        return pad(places & ~first, (-1, 1)) | (places & first)


@contextmanager
def publishing(model: Model, batch: Batch, settings: Settings, final_length: int | None = None) -> Iterator[Publisher]:
    """Publish the start and the end of a generation; an exception ends it as failed.

    Args:
        final_length: positions of the longest canvas once it is written; None where it follows from the prompts and
            ``length``.
    """
    with generating_in(model.network) as session:
        if session is not None:
            session.begin_generation(
                GenerationStart(
                    prompt_lengths=batch.lengths,
                    final_length=final_length or max(batch.lengths) + settings.length,
                    causal=model.family.causal,
                    sampler={"name": model.family.sampler, **described(settings)},
                    prompts=batch.texts,
                    mask_id=model.card.mask_id,
                )
            )
        failed = True
        try:
            yield Publisher(session, model.family.causal, model.family.shift, model.card.mask_id)
            failed = False
        finally:
            if session is not None:
                session.end_generation(failed)


def row_generators(seed: int, rows: int, device: torch.device) -> list[torch.Generator]:
    """Return a random generator for each row, so that a row does not depend on its neighbours."""
    return [torch.Generator(device).manual_seed(seed + row) for row in range(rows)]


def scattered(candidates: Tensor, token: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
    """Return tokens and confidences of candidates [batch, position] over the canvas, −1 and −∞ elsewhere."""
    nothing = torch.full(candidates.shape, -1, dtype=torch.long, device=candidates.device)
    unsure = torch.full(candidates.shape, -torch.inf, dtype=sure.dtype, device=candidates.device)
    return nothing.masked_scatter_(candidates, token), unsure.masked_scatter_(candidates, sure)
