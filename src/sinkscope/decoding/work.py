"""Counts the arithmetic of a generation: multiply-adds, positions computed and forward calls, for each row of a batch.

A row is charged what it would cost alone: its padding, positions that only fill a batch, and calls after it has
finished are not counted. Norms, rotations, softmax and sampling are not counted; they are not products.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Work:
    """The arithmetic of one generation.

    Attributes:
        forwards: calls of the network.
        rows: positions whose hidden states were computed, over all calls; the mean over the layers where these compute
            different ones.
        projections: multiply-adds of the projections to queries, keys, values and output, those of a sink token
            included.
        attention: multiply-adds of the scores and of the weighted sum of values.
        mlp: multiply-adds of the feed-forward layers.
        vocabulary: multiply-adds of the projection onto the vocabulary.
    """

    forwards: int
    rows: int
    projections: int
    attention: int
    mlp: int
    vocabulary: int

    @property
    def total(self) -> int:
        """All multiply-adds."""
        return self.projections + self.attention + self.mlp + self.vocabulary


class WorkMeter:
    """Adds up the work of the rows of a batch.

    Args:
        network: a Llama or Qwen2 of transformers, with or without a sink.
        rows: number of rows.
    """

    def __init__(self, network: Any, rows: int) -> None:
        config = network.config
        width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
        dim = getattr(config, "head_dim", None) or width // config.num_attention_heads
        queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
        sink = getattr(network.model, "sink_token", None)
        gated = sink is not None and sink.variant.kind == "gate"
        token = None if sink is None or sink.variant.kind != "token" or sink.hidden else sink.variant
        self._front = 0 if token is None else token.count  # keys in front of every query
        self._layers = layers  # the following are of one layer
        self._projections = width * (2 * queries + 2 * keys + queries * gated)
        self._value = width * keys
        self._pair = 2 * queries  # of one query and one key
        experts = getattr(config, "num_local_experts", None)
        dense = layers if experts is None else getattr(config, "first_k_dense_replace", 0)
        self._mlps = dense * 3 * width * inner  # of all layers
        if experts is not None:  # the router, the experts that it chooses, and those that all tokens share
            chosen = config.num_experts_per_tok + getattr(config, "n_shared_experts", 0)
            self._mlps += (layers - dense) * (width * experts + chosen * 3 * width * config.moe_intermediate_size)
        # A token that is not folded passes through the layers once in each call, as far as its keys and values ask for
        # it.
        alone = 0 if token is None or token.folded else token.count
        values = 0 if token is None or token.zero_value else layers * keys + (layers - 1) * queries
        self._token_projections = alone * width * (layers * keys + values)
        self._token_mlps = alone * (layers - 1) * 3 * width * inner
        self._word = width * network.lm_head.out_features
        # Over all layers.
        self._forwards, self._rows, self._pairs, self._values = ([0] * rows for _ in range(4))
        self._words: Tensor | list[Any] = [0] * rows

    def add(self, row: int, queries: int, keys: int, copies: int = 1) -> None:
        """Count a call that computes some positions of a row.

        Args:
            row: of the batch.
            queries: number of positions.
            keys: how many each of them reads, its own included.
            copies: how many canvases of the row are in the call, two with guidance.
        """
        self._forwards[row] += 1
        self._rows[row] += self._layers * copies * queries
        self._pairs[row] += self._layers * copies * queries * (keys + self._front)

    def add_layers(self, row: int, queries: Sequence[int], keys: int, values: int) -> None:
        """Count a call of which each layer computes other positions.

        Args:
            row: of the batch.
            queries: number of positions in each layer.
            keys: how many each of them reads.
            values: how many more positions have their values computed, and nothing else, over all layers.
        """
        self._forwards[row] += 1
        self._rows[row] += sum(queries)
        self._pairs[row] += sum(queries) * (keys + self._front)
        self._values[row] += values

    def add_words(self, places: Tensor, copies: int = 1) -> None:
        """Count the projection of some places onto the vocabulary, bool [row, position]; a GPU is not waited for."""
        counted = places.sum(-1) * copies
        self._words = counted if isinstance(self._words, list) else self._words + counted

    def take(self, row: int, alone: "WorkMeter") -> None:
        """Take over what another meter has counted so far of its only row."""
        for mine, other in zip(self._counts(), alone._counts(), strict=True):
            mine[row] = other[0]
        self._words[row] = alone._words[0]

    def _counts(self) -> tuple[list[int], ...]:
        return self._forwards, self._rows, self._pairs, self._values

    def work(self, row: int) -> Work:
        """Return the work of a row so far; this waits for a GPU."""
        rows = self._rows[row]
        return Work(
            forwards=self._forwards[row],
            rows=round(rows / self._layers),
            projections=rows * self._projections
            + self._values[row] * self._value
            + self._forwards[row] * self._token_projections,
            attention=self._pairs[row] * self._pair,
            mlp=rows * self._mlps // self._layers + self._forwards[row] * self._token_mlps,
            vocabulary=int(self._words[row]) * self._word,
        )
