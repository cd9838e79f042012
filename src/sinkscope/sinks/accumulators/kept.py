"""What is kept of each step of the prompt that is being written: a few numbers a head, of which its profile is made in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.sinks.accumulators.accumulator import SeenStep
from sinkscope.sinks.candidates import Candidates, find_candidates, percent_per_query
from sinkscope.sinks.composition import Composition, canvas_tally
from sinkscope.sinks.concentration import Concentration
from sinkscope.sinks.groups import Groups, layer_groups
from sinkscope.sinks.layers import Canvas, stack_layers
from sinkscope.sinks.movement import layer_kinds
from sinkscope.sinks.norms import Norms, norms_by_step
from sinkscope.sinks.points import POINTS
from sinkscope.sinks.profile import MainSinks, Profile


@dataclass(frozen=True)
class PromptSettings:
    """What is known of a prompt beside its steps; attributes as those of `Canvas`."""

    causal: bool = False
    prompt_length: int = 0
    block: int | None = None
    mask_id: int | None = None
    special_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class KeptStep:
    """One step. Layers stand where a layer's record has its steps, so that the same functions reduce both.

    Attributes:
        tally: [point, position], how often each position is a sink.
        head, key, excess: of every column that is a sink at any point, of the columns that are followed; heads counted over layers.
        percent: percent of all attention that a query's worth of these columns is.
    """

    tokens: Int[np.ndarray, " position"]
    masked: Bool[np.ndarray, " position"]
    written: Int[np.ndarray, " position"] | None
    main: MainSinks
    concentration: Concentration
    groups: Groups
    norms: Norms
    tally: Int[np.ndarray, "point position"]
    head: Int[np.ndarray, " sink"]
    key: Int[np.ndarray, " sink"]
    excess: Float[np.ndarray, " sink"]
    percent: Float[np.ndarray, "layer head"]


def keep(step: SeenStep, settings: PromptSettings) -> KeptStep:
    """Reduces a step."""
    layers, heads, keys = step.columns.shape
    here = step.layers
    lengths = np.full(layers, keys)
    canvas = Canvas(
        np.broadcast_to(step.tokens, (layers, keys)),
        np.broadcast_to(step.masked, (layers, keys)),
        lengths,
        None,
        settings.causal,
        step.prompt_length,
        settings.block,
        settings.mask_id,
        settings.special_ids,
        {},
    )
    followed = step.sinks
    if here.followed is not here.sums:
        followed = find_candidates(here.followed, here.followed_excess, here.followed_total, POINTS)
    return KeptStep(
        step.tokens,
        step.masked,
        step.written,
        step.followed,
        step.concentration,
        layer_groups(here, canvas, step.concentration.top),
        norms_by_step(here, step.sinks, lengths, step.concentration.top),
        step.sinks.tally(step.sinks.key, keys).astype(np.int32),
        (followed.step * heads + followed.head).astype(np.uint16 if layers * heads < 1 << 16 else np.int32),
        followed.key.astype(np.int32),
        followed.excess,
        percent_per_query(here.followed_total).astype(np.float32),
    )


def profile_of_kept(steps: Sequence[KeptStep], settings: PromptSettings, texts: Mapping[int, str]) -> Profile:
    """The profile that `profile_of` makes of a whole trace, at `POINTS` and without tolerance."""
    canvas = _canvas(steps, settings, texts)
    ids, counts, indices = canvas_tally(canvas)

    def over_steps(part: str, name: str, axis: int = 0) -> np.ndarray:
        return np.stack([getattr(getattr(one, part), name) for one in steps], axis=axis)

    main = MainSinks(*(over_steps("main", name) for name in ("position", "excess", "percent")))
    names = ("top", "largest", "total", "entropy", "gini", "over_third")
    concentration = Concentration(
        over_steps("concentration", "counts", 1),
        over_steps("concentration", "shares", 1),
        **{name: over_steps("concentration", name) for name in names},
        curve=np.sum([one.concentration.curve for one in steps], axis=0)[:, None],
    )
    groups = Groups(*(over_steps("groups", name, 1) for name in ("position", "excess", "self_attention")))
    norms = Norms(
        np.sum([one.norms.of_sinks for one in steps], axis=0),
        np.sum([one.norms.of_all for one in steps], axis=0),
        over_steps("norms", "above", 1),
        over_steps("norms", "noop", 1),
        over_steps("norms", "given"),
    )
    place = indices[indices >= 0]  # step by step, as the tallies are
    tally = np.concatenate([one.tally for one in steps], axis=1)
    composition = Composition(np.array([[np.bincount(place, one, len(ids))] for one in tally]).astype(np.int64))
    kinds = stack_layers([layer_kinds(sinks, POINTS, len(steps), main.position.shape[2], 0) for sinks in _by_layer(steps)])
    return Profile(canvas, POINTS, 0, main, concentration, groups, norms, kinds, composition, ids, counts, indices)


def _by_layer(steps: Sequence[KeptStep]) -> list[Candidates]:
    """Followed candidates of each layer, over all steps."""
    layers, heads = steps[0].percent.shape
    at = np.repeat(np.arange(len(steps)), [len(one.head) for one in steps])
    head, key, excess = (np.concatenate([getattr(one, name) for one in steps]) for name in ("head", "key", "excess"))
    percent = excess * np.stack([one.percent.ravel() for one in steps])[at, head]
    layer, head = np.divmod(head.astype(np.int64), heads)
    found = []
    for one in range(layers):
        own = np.flatnonzero(layer == one)
        columns = np.full(len(own), np.nan)  # not kept
        found.append(Candidates(at[own], head[own], key[own], columns, excess[own], percent[own], POINTS))
    return found


def _canvas(steps: Sequence[KeptStep], settings: PromptSettings, texts: Mapping[int, str]) -> Canvas:
    def side_by_side(rows: Sequence[np.ndarray], missing: int) -> np.ndarray:
        width = max(len(row) for row in rows)  # of ``written`` one more, where a canvas grows
        return np.stack([np.pad(row.astype(np.int64), (0, width - len(row)), constant_values=missing) for row in rows])

    written = [one.written for one in steps if one.written is not None]
    return Canvas(
        tokens=side_by_side([one.tokens for one in steps], -1),
        masked=side_by_side([one.masked for one in steps], 0) > 0,
        lengths=np.array([len(one.tokens) for one in steps]),
        written=side_by_side(written, -1) if len(written) == len(steps) else None,
        causal=settings.causal,
        prompt_length=settings.prompt_length,
        block=settings.block,
        mask_id=settings.mask_id,
        special_ids=settings.special_ids,
        vocabulary=dict(texts),
    )
