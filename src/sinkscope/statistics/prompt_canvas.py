"""The canvas of one prompt in each step: tokens and their classes, masks and commits."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from sinkscope.sinks.definition import CLASSES, Rule, token_class
from sinkscope.sinks.finding import rule_of
from sinkscope.sinks.followed_columns import zeroes
from sinkscope.traces.format import attends_elsewhere, block_of


@dataclass(frozen=True)
class PromptSettings:
    """Settings that are known before the first step of a prompt.

    training: {token: how often it stands in the training corpus}; kept: how many of the largest columns, None for all;
    crossing: keys are another stack's tokens; aligned: blocks stand at multiples of ``block``; zeroed: weights were.
    """

    causal: bool = False
    prompt_length: int = 0
    block: int | None = None
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()
    training: Mapping[int, int] | None = field(default=None, repr=False)
    kept: int | None = None
    crossing: bool = False
    aligned: bool = False
    zeroed: bool = False
    rule: Rule = "eq3"

    @cached_property
    def corpus(self) -> int:
        return 0 if self.training is None else 1 + zlib.crc32(repr(sorted(self.training.items())).encode())

    @classmethod
    def of(
        cls,
        causal: bool,
        manifest: Mapping[str, Any],
        training: Mapping[int, int] | None = None,
        rule: Rule | None = None,
    ) -> "PromptSettings":
        special = [manifest.get("eos_id"), *(manifest.get("special_ids") or ())]
        return cls(
            causal,
            int(manifest.get("prompt_length") or 0),
            block_of(manifest),
            manifest.get("mask_id"),
            tuple(int(one) for one in special if one is not None),
            training,
            crossing=attends_elsewhere(manifest),
            # Settings that only samplers of block diffusion have.
            aligned=not {"block_steps", "small_block"}.isdisjoint(manifest.get("sampler") or {}),
            zeroed=zeroes(manifest),
            rule=rule_of(causal, manifest, rule),
        )

    @property
    def first_block(self) -> int:
        return 0 if self.aligned else self.prompt_length


@dataclass(frozen=True, eq=False)
class PromptCanvas:
    """The canvas of one prompt over all steps; tokens are −1 beyond ``lengths`` and where unknown, written where none.

    token_ids are the distinct tokens in rising order; token_indices the canvas in them; classes: numbers in `CLASSES`.
    """

    tokens: Int[np.ndarray, "step position"]
    masked: Bool[np.ndarray, "step position"]
    lengths: Int[np.ndarray, " step"]
    written: Int[np.ndarray, "step written_position"] | None
    settings: PromptSettings
    vocabulary: Mapping[int, str] = field(repr=False)
    token_ids: Int[np.ndarray, " token"]
    token_counts: Int[np.ndarray, " token"]
    token_indices: Int[np.ndarray, "step position"]
    token_classes: Int[np.ndarray, " token"]

    @classmethod
    def of(
        cls,
        steps: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray | None]],
        settings: PromptSettings,
        vocabulary: Mapping[int, str],
    ) -> "PromptCanvas":
        """Return the canvases of single steps, (tokens, masked, written) each, which may differ in length, as one."""
        lengths = np.array([len(one) for one, _, _ in steps])
        tokens, masked = _padded([one for one, _, _ in steps], -1), _padded([one for _, one, _ in steps], 0) > 0
        commits = [one for _, _, one in steps if one is not None]
        written = _padded(commits, -1) if len(commits) == len(steps) else None
        there = np.arange(tokens.shape[1]) < lengths[:, None]
        ids, found, counts = np.unique(tokens[there], return_inverse=True, return_counts=True)
        indices = np.full(tokens.shape, -1)
        indices[there] = found
        mask, special = settings.mask_id, settings.special_ids
        names = [token_class(vocabulary.get(one), one == mask, one in special) for one in ids.tolist()]
        classes = np.array([CLASSES.index(name) for name in names], dtype=np.int64)
        return cls(tokens, masked, lengths, written, settings, dict(vocabulary), ids, counts, indices, classes)


def _padded(rows: Sequence[np.ndarray], missing: int) -> Int[np.ndarray, "step position"]:
    whole = np.full((len(rows), max(len(row) for row in rows)), missing, np.int64)
    for number, row in enumerate(rows):
        whole[number, : len(row)] = row
    return whole
