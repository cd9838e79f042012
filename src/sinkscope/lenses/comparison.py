"""`lens`: what the residual stream at sinks would predict, layer by layer, beside matched positions without a sink.

A sink of a step is the main sink of at least one head, as in `track`. Its match is the nearest position of the same
canvas that is a sink in no head, on the same kind of place (a mask, a written token, the prompt), and of which the
token that it predicts is masked or not as that of the sink; each is used once, ties are drawn.

What is read is the stream of the sink itself. In a model without logit shift it predicts the token on its own place
(``here``). In a causal model and in a family with a logit shift it predicts the one behind it (``next``): the
prediction for position p is read at p − 1. Its own token is then a neighbour.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from sinkscope.errors import CallError
from sinkscope.lenses.pairs import PLACES, Pairs, final_canvas, pair_up
from sinkscope.lenses.readout import Readout, as_in_blocks, blocks_of, readout, streams_of
from sinkscope.lenses.tuned import TunedLens
from sinkscope.models import Model, expect_model
from sinkscope.recorder.attention_map import expect_writer
from sinkscope.sinks.finding import EXCESS, followed_sinks
from sinkscope.sinks.tracking import main_sinks
from sinkscope.statistics.intervals import Means, interval_of_means, known, ratio
from sinkscope.traces import Trace, open_traces
from sinkscope.traces.reading import attends_elsewhere, expect_steps

KINDS = ("sink", "match", "difference")
NEIGHBOURS = ("previous", "here", "next")
NUMBERS = ("entropy", "kl", *(f"{what}.{one}" for what in ("agreement", "rank") for one in NEIGHBOURS))
"""Nats; nats; share whose top token finally stands there; its rank (1: top), of which the mean is geometric."""


@dataclass(frozen=True, eq=False)
class Group:
    """The numbers of one kind of position.

    Attributes:
        place: one of `PLACES`: what stands there.
        kind: sink, match, or difference: sink minus match of each pair (of ranks the ratio).
        positions: how many were read.
        heads: mean number of heads of which the sink is the main sink.
        means: of each of `NUMBERS`, by layer, with intervals.
        top: of each layer the commonest top token, and its share of the positions.
    """

    place: str
    kind: str
    positions: int
    heads: float
    means: Mapping[str, Means]
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False)
class Lens:
    """What is read at sinks and at their matches; intervals are ``over`` the prompts, or one trace's steps.

    ``predicts``: here or next; ``alone``: sinks left out, as their canvas had no match for them.
    """

    model: str
    weight_hash: str
    layers: int
    traces: int
    canvases: int
    over: str
    predicts: str
    tuned: bool
    excess: float
    seed: int
    alone: int
    groups: tuple[Group, ...]
    vocabulary: Mapping[int, str]

    def of(self, place: str, kind: str = "sink") -> Group | None:
        """Return a group, None where no position was read."""
        return next((one for one in self.groups if (one.place, one.kind) == (place, kind)), None)

    @property
    def layer(self) -> int:
        """The layer of the headline, fixed beforehand: three quarters of the way up."""
        return 3 * self.layers // 4

    def headline(self) -> str:
        """Return in one sentence how much sinks predict: those on masks, or else where most of them stand."""
        sinks = [one for one in self.groups if one.kind == "sink"]
        place = max(sinks, key=lambda one: (one.place == "masked", one.positions)).place if sinks else None
        if place is None:
            return "no sink has a matched position beside it, so nothing can be compared"
        number, layer = f"agreement.{self.predicts}", self.layer
        what = "its own token" if self.predicts == "here" else "the next token"
        if place == "masked":
            what = f"what is later written {'there' if self.predicts == 'here' else 'behind it'}"
        sink, match, difference = ([*_numbers(self.of(place, kind), number, layer)] for kind in KINDS)
        against = f"matched positions without one: {_percent(*match)}"
        if np.isnan(difference[0]):
            against += "; too few to compare"
        elif np.isnan(difference[1]):
            against += f"; too few {self.over} for an interval"
        elif difference[1] <= 0 <= difference[2]:
            against = f"no different from {against}"
        return f"at {place} sinks layer {layer} of {self.layers} predicts {what} in {_percent(*sink)}, {against}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as ``sinkscope lens --json`` prints them."""
        about = {name: value for name, value in vars(self).items() if name not in ("groups", "vocabulary")}
        groups = []
        for one in self.groups:
            by_layer = {
                name: {end: [*map(known, getattr(means, end).tolist())] for end in ("mean", "low", "high")}
                for name, means in one.means.items()
            }
            top = [{"token": at, "text": self.vocabulary.get(at), "share": share} for at, share in one.top]
            plain = {name: getattr(one, name) for name in ("place", "kind", "positions", "heads")}
            groups.append({**plain, "by_layer": by_layer, "top": top})
        return {**about, "headline": self.headline(), "layer": self.layer, "groups": groups}


def _numbers(group: Group | None, number: str, layer: int) -> tuple[float, float, float]:
    assert group is not None
    means = group.means[number]
    return float(means.mean[layer]), float(means.low[layer]), float(means.high[layer])


def _percent(mean: float, low: float, high: float) -> str:
    interval = "" if np.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})"
    return "–" if np.isnan(mean) else f"{100 * mean:.1f} %{interval}"


def lens(
    model: Model,
    traces: Any,
    *,
    every: int = 1,
    tuned: TunedLens | None = None,
    excess: float = EXCESS,
    seed: int = 0,
    on_canvas: Callable[[], object] = lambda: None,
) -> Lens:
    """Return what each layer's residual stream would predict at sinks and at matched positions of recorded canvases.

    The canvases of a diffusion model's steps, and the whole text of a causal model, go through the network again.

    Args:
        model: the one that wrote the traces.
        traces: a path or an open trace, or several. With several traces intervals are over them, else over the steps.
        every: reads each so-manyth step.
        tuned: corrects each layer's stream (`fit_lens`); the logit lens when None.
        excess: ε of sinks, in queries' worth.
        seed: of matches at the same distance.
        on_canvas: called behind each canvas.

    Raises CallError for traces of other weights, with a cache or with hidden keys; ModelError for a network whose
    layers pass more than one residual stream to each other.
    """
    expect_model(model, unwatched=True)
    if every < 1:
        raise CallError(f"every: expected at least 1, found {every}")
    given = [traces] if isinstance(traces, str | Path | Trace) else [*traces]
    opened = [one for each in given for one in ([each] if isinstance(each, Trace) else open_traces(each))]
    blocks, rng, of_traces, canvases, alone = blocks_of(model), np.random.default_rng(seed), list[Any](), 0, 0
    tally, vocabulary, shift = _Tally(len(blocks)), dict[int, str](), int(model.family.causal or model.family.shift)
    for trace in opened:
        expect_steps(trace, "read")
        expect_writer(model, trace)
        if trace.manifest.get("hidden") or attends_elsewhere(trace.manifest):
            raise CallError(f"{trace.folder}: expected a trace of self-attention without hidden keys")
        _, sinks, ranked = followed_sinks(trace, excess, "queries", None)
        main, canvas, values = main_sinks(ranked, sinks), final_canvas(trace), list[Any]()
        before, streams = np.empty(0), torch.empty(0)
        for step in [trace.steps - 1] if trace.causal else range(0, trace.steps, every):
            length = int(trace.lengths[step])
            tokens, masked = np.asarray(trace.tokens[step])[:length], np.zeros(length + 1, bool)
            if not trace.causal:
                masked[:length] = np.asarray(trace.masked[step])[:length] > 0
            place = np.where(np.arange(length) < trace.manifest["prompt_length"], 2, 1) * ~masked[:length]
            heads = np.bincount(main[step][main[step] >= 0], minlength=length)
            any_head = sinks[step].any(axis=(0, 1))[:length]
            pairs = pair_up(heads, any_head, place, masked[shift : length + shift], rng)
            canvases, alone = canvases + 1, alone + pairs.alone
            if len(pairs.sink):
                if not np.array_equal(tokens, before):
                    with as_in_blocks(model, (trace.manifest.get("sampler") or {}).get("block")):
                        before, streams = tokens, streams_of(model, blocks, tokens)
                wanted, chosen = pairs.tokens(canvas, masked), streams[:, torch.from_numpy(pairs.rows)]
                values.append(tally.add(pairs, wanted, readout(model, blocks, chosen, wanted, tuned)))
            on_canvas()
        of_traces.append(values)
        vocabulary |= {int(token): text for token, text in (trace.manifest.get("vocabulary") or {}).items()}
    several = len(opened) > 1
    rows = [_mean(np.stack(one), 0) for one in of_traces if one] if several else of_traces[0]
    groups = tally.groups(np.stack(rows)) if rows else ()
    if model.tokenizer is not None:
        tops = {token for one in groups for token, _ in one.top} - vocabulary.keys()
        vocabulary |= {token: model.tokenizer.decode([token]) for token in tops}
    about = (model.card.name, model.card.weight_hash, len(blocks), len(opened), canvases)
    how = ("prompts" if several else "steps", NEIGHBOURS[1 + shift], tuned is not None, excess, seed, alone)
    return Lens(*about, *how, groups, vocabulary)


class _Tally:
    """Counts readings over all canvases."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.heads: list[list[int]] = [[] for _ in PLACES]
        self.tops = [[[Counter[int]() for _ in range(layers)] for _ in KINDS[:2]] for _ in PLACES]

    def add(self, pairs: Pairs, wanted: np.ndarray, read: Readout) -> Float[np.ndarray, "place kind number layer"]:
        """Count one canvas, and return its means over pairs, NaN where there are none; of ranks the logarithms."""
        agreement = np.where(wanted >= 0, read.top[..., None] == wanted, np.nan)
        by_row = [read.entropy, read.kl, *np.moveaxis(agreement, -1, 0), *np.moveaxis(np.log(read.rank), -1, 0)]
        sink, match = np.split(np.stack(by_row), 2, axis=-1)
        values = np.full((len(PLACES), len(KINDS), len(NUMBERS), self.layers), np.nan)
        for place in range(len(PLACES)):
            there = pairs.place == place
            for kind, one in enumerate((sink, match, sink - match)):
                values[place, kind] = _mean(one[..., there], -1)
            for kind, top in enumerate(np.split(read.top, 2, axis=-1)):
                for layer in range(self.layers):
                    self.tops[place][kind][layer].update(top[layer, there].tolist())
            self.heads[place] += pairs.heads[there].tolist()
        return values

    def groups(self, values: Float[np.ndarray, "prompt place kind number layer"]) -> tuple[Group, ...]:
        """Return the groups that have positions."""
        found = interval_of_means(values.reshape(len(values), -1))
        mean, low, high, count = (
            getattr(found, name).reshape(values.shape[1:]) for name in ("mean", "low", "high", "prompts")
        )
        groups = []
        for place, kind in np.ndindex(len(PLACES), len(KINDS)):
            if not (heads := self.heads[place]):
                continue
            means = {}
            for at, name in enumerate(NUMBERS):
                ends = [one[place, kind, at] for one in (mean, low, high)]
                if name.startswith("rank"):
                    ends = [*map(np.exp, ends)]
                means[name] = Means(ends[0], ends[1], ends[2], count[place, kind, at])
            tops = [one.most_common(1)[0] for one in self.tops[place][kind]] if kind < 2 else []
            top = tuple((token, many / len(heads)) for token, many in tops)
            groups.append(Group(PLACES[place], KINDS[kind], len(heads), float(np.mean(heads)), means, top))
        return tuple(groups)


def _mean(values: np.ndarray, axis: int) -> np.ndarray:
    there = ~np.isnan(values)
    return ratio(np.where(there, values, 0.0).sum(axis), there.sum(axis))
