"""A batch of prompts as one left-padded canvas (prompt and tokens to be written), its work, and its published steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention import GenerationStart, Session, StepContext, StepResult, generating_in, upload
from sinkscope.decoding.settings import Settings, described
from sinkscope.models import Model


@dataclass(frozen=True)
class Work:
    """The arithmetic of one generation.

    Attributes:
        forwards: calls of the network.
        rows: positions whose hidden states were computed, over all calls; the mean over layers that differ in them.
        projections, attention, mlp, vocabulary: multiply-adds of the projections to queries, keys, values and output
            (a sink token's too), of scores and weighted sums, of the feed-forward layers, and of the logits.
    """

    forwards: int
    rows: int
    projections: int
    attention: int
    mlp: int
    vocabulary: int

    @property
    def total(self) -> int:
        return self.projections + self.attention + self.mlp + self.vocabulary


class WorkMeter:
    """Adds up the work of the rows of a batch; the network is a Llama, Qwen2 or BERT, with or without a sink."""

    def __init__(self, network: Any, rows: int) -> None:
        config = network.config
        width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
        dim = getattr(config, "head_dim", None) or width // config.num_attention_heads
        heads = config.num_attention_heads
        queries, keys = heads * dim, (getattr(config, "num_key_value_heads", None) or heads) * dim
        sink = getattr(network.model, "sink_token", None)
        gated = sink is not None and sink.variant.kind == "gate"
        token = None if sink is None or sink.variant.kind != "token" else sink.variant
        self._front = 0 if token is None else token.count  # keys in front of every query
        self._layers = layers  # the following are of one layer
        self._projections = width * (2 * queries + 2 * keys + queries * gated)
        self._value = width * keys
        self._pair = 2 * queries  # of one query and one key
        experts = getattr(config, "num_local_experts", None)
        dense = layers if experts is None else getattr(config, "first_k_dense_replace", 0)
        self._mlps = dense * (2 if config.model_type == "bert" else 3) * width * inner  # of all layers
        if experts is not None:  # the router, the experts that it chooses, and those that all tokens share
            chosen = config.num_experts_per_tok + getattr(config, "n_shared_experts", 0)
            self._mlps += (layers - dense) * (width * experts + chosen * 3 * width * config.moe_intermediate_size)
        # A token that is not folded passes through the layers once a call, as far as its keys and values need it.
        alone = 0 if token is None or token.folded else token.count
        values = 0 if token is None or token.zero_value else layers * keys + (layers - 1) * queries
        self._token_projections = alone * width * (layers * keys + values)
        self._token_mlps = alone * (layers - 1) * 3 * width * inner
        self._word = sum(one.numel() for one in network.lm_head.parameters() if one.ndim == 2)
        # Over all layers.
        self._forwards, self._rows, self._pairs, self._values = ([0] * rows for _ in range(4))
        self._words: Tensor | list[Any] = [0] * rows

    def add(self, row: int, queries: int, keys: int, copies: int = 1) -> None:
        """Count a call that computes some positions, each of which reads ``keys``; guidance has two ``copies``."""
        self.add_layers(row, [copies * queries] * self._layers, keys, 0)

    def add_layers(self, row: int, queries: Sequence[int], keys: int, values: int) -> None:
        """Count a call by the positions of each layer; of ``values`` more, over all layers, only values."""
        self._forwards[row] += 1
        self._rows[row] += sum(queries)
        self._pairs[row] += sum(queries) * (keys + self._front)
        self._values[row] += values

    def add_words(self, places: Tensor, copies: int = 1) -> None:
        """Count the projection of some places onto the vocabulary, bool [row, position]; a GPU is not waited for."""
        counted = places.sum(-1) * copies
        self._words = counted if isinstance(self._words, list) else self._words + counted

    def take(self, row: int, alone: "WorkMeter") -> None:
        """Copy the counts of another meter, of its only row."""
        for name in ("_forwards", "_rows", "_pairs", "_values", "_words"):
            getattr(self, name)[row] = getattr(alone, name)[0]

    def work(self, row: int) -> Work:
        """Return the work of a row so far; this waits for a GPU."""
        forwards, rows = self._forwards[row], self._rows[row]
        projections = rows * self._projections + self._values[row] * self._value + forwards * self._token_projections
        attention, vocabulary = self._pairs[row] * self._pair, int(self._words[row]) * self._word
        mlp = rows * self._mlps // self._layers + forwards * self._token_mlps
        return Work(forwards, round(rows / self._layers), projections, attention, mlp, vocabulary)


@dataclass(frozen=True, eq=False)
class Step:
    """One step of a sampler, all rows of the batch, left padding included, [batch, position].

    Attributes:
        tokens: int64, the canvas after the step.
        written: int64, the token committed in this step, −1 elsewhere.
        confidence: float32, of the tokens that were committed or could have been; NaN elsewhere.
        meter: adds up the work of the generation; None for a sampler that does not count it.
        lengths: int64 [batch], tokens of each prompt and its answer, on the host; None where all end with the canvas.
    """

    number: int
    tokens: Tensor
    written: Tensor
    confidence: Tensor
    meter: WorkMeter | None = None
    lengths: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts that are written together."""

    tokens: Tensor  # int64 [batch, prompt position], left-padded
    real: Tensor  # bool of the same shape, False on padding
    texts: tuple[str | None, ...]  # None for a prompt that came as token ids

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.real.sum(-1).tolist())


def make_batch(model: Model, prompts: Sequence[Sequence[int]], texts: Sequence[str | None], length: int) -> Batch:
    """Return prompts padded on the left; `CallError` where ``length`` more tokens exceed the maximum."""
    width = max(map(len, prompts))
    whole = f"a prompt of {width} tokens and {length} to write make {width + length}"
    model.expect_room(width + length, whole, "; shorten the prompt or --length")
    padding = model.card.eos_id if model.card.eos_id is not None else 0
    rows = [[padding] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    real = [[place >= width - len(prompt) for place in range(width)] for prompt in prompts]
    return Batch(torch.tensor(rows, device=model.device), torch.tensor(real, device=model.device), tuple(texts))


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of the real tokens in a batch of canvases: the right end of each row."""

    real: Tensor  # bool [batch, position], False on padding
    # bool [batch, 1, query, key]; None without padding. For a mask [batch, key] the network would wait for the GPU.
    seen: Tensor | None
    positions: Tensor  # int64 [batch, position], from 0 at the first real token
    lengths: Tensor  # int64 [batch], number of real tokens; on the host
    starts: tuple[int, ...]  # index of the first real token of each row


def seen_of(real: Tensor) -> Tensor:
    """Return `Layout.seen` of ``real``: one row of keys for all queries, in the memory of one, as kernels read it."""
    return real[:, None, None].expand(-1, 1, real.shape[1], -1)


def lay_out(real: Tensor) -> Layout:
    """Return the layout of canvases; ``real`` marks their real tokens, bool [batch, position]."""
    lengths = real.sum(-1).cpu()
    seen = None if bool(real.all()) else seen_of(real)
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    return Layout(real, seen, positions, lengths, tuple((real.shape[1] - lengths).tolist()))


def masked_canvas(batch: Batch, length: int, mask_id: int) -> tuple[Tensor, Layout]:
    """Return the canvas that a sampler begins with, int64 [batch, position]: the prompts, followed by masks."""
    masks = batch.tokens.new_full((len(batch.tokens), length), mask_id)
    real = torch.cat([batch.real, torch.ones_like(masks, dtype=torch.bool)], dim=1)
    return torch.cat([batch.tokens, masks], dim=1), lay_out(real)


class Publisher:
    """Publishes each step to the subscribers of a model, if any. A token of a causal model is read from the query in
    front of it; one of a diffusion model with ``shift`` too, except the first of a row. A new mask is no commit.
    """

    def __init__(
        self, session: Session | None, causal: bool = False, shift: bool = False, mask_id: int | None = None
    ) -> None:
        self._session, self._causal, self._shift = session, causal, shift
        self._mask_id = -1 if mask_id is None else mask_id
        self._lengths, self._width = torch.zeros(0, dtype=torch.long, device="cpu"), 0
        self.listened = session is not None

    def before(
        self, tokens: Tensor, masked: Tensor, lengths: Tensor, rows: Sequence[int], candidates: Any = None, **more: Any
    ) -> None:
        """Publish that a forward call is about to run, with the fields of `StepContext`. ``candidates`` are where it
        may commit a token, bool [batch, position]: of a causal model, or behind a block, one beyond its tokens.
        """
        if self._session is not None:
            self._lengths, self._width = lengths, tokens.shape[1]
            readers = None if candidates is None else self._readers(candidates)
            given = (tokens, masked, lengths, tuple(rows), tuple(rows))
            self._session.begin_step(StepContext(*given, readers=readers, **more))

    def after(self, written: Tensor, predicted: Tensor | None, confidence: Tensor | None) -> None:
        """Publish what a step has committed: int64, int64 and float32 [batch, position], as in `StepResult`."""
        if self._session is not None:
            readers = self._readers((written >= 0) & (written != self._mask_id))
            self._session.end_step(StepResult(written, predicted, confidence, readers))

    def _readers(self, places: Tensor) -> Tensor:
        """Return the queries whose outputs tokens of some places are read from, bool [batch, position]."""
        if self._causal or places.shape[1] > self._width:  # behind the newest query
            return places[:, 1:]
        if not self._shift:
            return places
        starts = places.shape[1] - upload(self._lengths[: len(places)], places.device)
        first = torch.arange(places.shape[1], device=places.device) == starts[:, None]
        return pad(places & ~first, (-1, 1)) | (places & first)


@contextmanager
def publishing(model: Model, batch: Batch, settings: Settings) -> Iterator[Publisher]:
    """Publish the start and the end of a generation; an exception ends it as failed."""
    family, mask_id = model.family, model.card.mask_id
    with generating_in(model.network) as session:
        if session is not None:
            sampler = {"name": family.sampler, **described(settings)}
            session.begin_generation(GenerationStart(batch.lengths, family.causal, sampler, batch.texts, mask_id))
        failed = True
        try:
            yield Publisher(session, family.causal, family.shift, mask_id)
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
