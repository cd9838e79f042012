"""The summary of many prompts: sums that merge in any order and grouping, in arrays whose size does not grow with the prompts."""

import json
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import CallError, SinkscopeError
from sinkscope.sinks.definition import check_excess
from sinkscope.sinks.tracking import check_tolerance
from sinkscope.statistics.averages import ratio
from sinkscope.statistics.column_counts import quarters_of
from sinkscope.statistics.move_triggers import TriggerTest
from sinkscope.statistics.norms import Moments
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.prompt_sums import COMPARED, Arrays, PromptSums, empty_arrays
from sinkscope.statistics.statistic import Key, feed_of
from sinkscope.statistics.thresholds import THRESHOLDS, Threshold

MOST_COUNTED = 1 << 53
"""Bound of counts: larger ones are not exact as float64."""
MOST_HEADS = 1 << 20
LARGEST_NAMES = 64 << 20
"""Bytes of the names of statistics."""


class Summary:
    """What many prompts show together.

    Args:
        layers, heads: of the model.
        excess: ε of Eq. 3, in queries' worth of attention, of everything that is told at one threshold only.
        causal: whether the model is autoregressive, and main sinks are followed in the newest 16 queries.
        tolerance: steps without a sink that a track and a main sink survived.
        corpus: checksum of the counts of the training corpus, `PromptSettings.corpus`; 0 without.

    Attributes:
        arrays: counts and sums over prompts, with the axes of `prompt_sums.AXES`.
        keys: names and places of the statistics that any prompt has.
        values: [key, moment], over prompts: how many have a value, its sum, its sum of squares.
    """

    def __init__(
        self, layers: int, heads: int, *, excess: float = 3.0, causal: bool = False, tolerance: int = 0, corpus: int = 0
    ) -> None:
        if not 1 <= layers * heads <= MOST_HEADS or layers < 1:
            raise CallError(f"layers, heads: expected 1 to {MOST_HEADS} heads in all, found {layers} × {heads}")
        check_excess(float(excess), "queries")
        check_tolerance(tolerance)
        self.tolerance, self.corpus = tolerance, corpus
        self.layers, self.heads, self.excess, self.causal = layers, heads, excess, causal
        self.arrays: Arrays = empty_arrays(layers, heads)
        self.keys: tuple[Key, ...] = ()
        self.values = np.zeros((0, 3))

    @staticmethod
    def thresholds(excess: float = 3.0) -> tuple[Threshold, ...]:
        """Return the thresholds at which the sinks of a prompt must be counted for `of`."""
        return tuple(dict.fromkeys((*THRESHOLDS, Threshold(excess))))

    @classmethod
    def feed(cls, settings: PromptSettings, excess: float = 3.0) -> PromptFeed:
        """Return a feed for the steps of one prompt, whose summary `of` takes."""
        return feed_of(settings, cls.thresholds(excess))

    @classmethod
    def of(cls, prompt: PromptSummary, excess: float = 3.0) -> "Summary":
        """Return the summary of one prompt, with sinks counted at `thresholds`."""
        settings = prompt.canvas.settings
        found = cls(
            prompt.layers,
            prompt.heads,
            excess=excess,
            causal=settings.causal,
            tolerance=prompt.tolerance,
            corpus=settings.corpus,
        )
        if missing := [one for one in cls.thresholds(excess) if one not in prompt.followed.thresholds]:
            raise CallError(
                f"prompt: expected sinks counted at Summary.thresholds({excess:g}), found none counted at {missing[0].excess:g} "
                f"{missing[0].unit}; call summarise(trace, Summary.thresholds({excess:g}))"
            )
        sums = PromptSums.of(prompt, Threshold(excess))
        found.arrays = {name: sums.arrays[name] for name in found.arrays}
        found.keys = tuple(sorted(sums.values, key=repr))  # one order for all prompts
        numbers = np.array([sums.values[key] for key in found.keys])
        known = np.isfinite(numbers)
        numbers = np.where(known, numbers, 0)
        found.values = np.stack([known, numbers, numbers**2], axis=-1)
        return found

    # Merging and files

    def merge(self, other: "Summary") -> None:
        """Add what other prompts show.

        Raises:
            SinkscopeError: of another shape of model, or with another threshold, tolerance or training corpus.
        """
        mine, theirs = (
            (one.layers, one.heads, one.excess, one.causal, one.tolerance, one.corpus) for one in (self, other)
        )
        if mine != theirs:
            names = "layers, heads, excess, causal, tolerance, corpus"
            raise SinkscopeError(
                f"expected statistics with the same {names} {mine}, found {theirs}; they cannot be merged"
            )
        merged = {
            name: array + other.arrays[name] for name, array in self.arrays.items() if not name.startswith("tokens.")
        }
        self.arrays = merged | _merged_tokens(self.arrays, other.arrays)
        if self.keys != other.keys:
            keys = tuple(sorted({*self.keys, *other.keys}, key=repr))
            self.keys, self.values, added = keys, _placed(self, keys), _placed(other, keys)
        else:
            added = other.values
        self.values = self.values + added

    def to_arrays(self) -> Arrays:
        """Return everything as named arrays, for a file."""
        names = zlib.compress(json.dumps(self.keys, ensure_ascii=False).encode())
        found = {
            "settings": np.array([self.layers, self.heads, self.excess, self.causal, *self._rare_settings], np.float64),
            **self.arrays,
            "profiles.keys": np.frombuffer(names, np.uint8),
            "profiles.count": self.values[:, 0].astype(np.int64),
            **{f"profiles.{name}": self.values[:, number] for number, name in ((1, "sum"), (2, "square"))},
        }
        return {
            name: np.array(array, order="C") for name, array in found.items()
        }  # safetensors writes the memory as it lies

    @property
    def _rare_settings(self) -> tuple[int, ...]:
        """Settings that a recording never has, so that files without them are as those of earlier versions."""
        return (self.tolerance, self.corpus) if self.tolerance or self.corpus else ()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Summary":
        """Return what `to_arrays` gave.

        Raises:
            SinkscopeError: arrays of something else.
        """
        try:
            if wrong := next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None):
                raise ValueError(f"{wrong} is no array")
            layers, heads, excess, causal, tolerance, corpus = _settings(arrays)
            found = cls(layers, heads, excess=excess, causal=causal, tolerance=tolerance, corpus=corpus)
            for name, empty in found.arrays.items():
                found.arrays[name] = _like(name, arrays[name], empty)
            found.keys, found.values = _profiles(arrays)
            check_summary(found)
        except (KeyError, ValueError) as error:
            raise SinkscopeError(
                f"expected the arrays of statistics, found others ({error}); are they damaged, or were they written by another version?"
            ) from error
        return found

    # What figures draw

    @property
    def prompts(self) -> int:
        """How many prompts there are."""
        return int(self.arrays["prompts.prompts"][0])

    @property
    def steps(self) -> int:
        """Steps of all prompts."""
        return int(self.arrays["strength.steps"].max(initial=0))

    @property
    def columns(self) -> int:
        """How many columns there are: steps × layers × heads × tokens."""
        return int(self.arrays["epsilon.columns"].sum())

    @property
    def sinks(self) -> int:
        """How many columns are sinks."""
        return int(self.arrays["strength.sinks"].sum())

    @property
    def positions(self) -> int:
        """Tokens of a canvas, mean over steps; 0 without a step."""
        return round(self.columns / max(1, int(self.arrays["strength.steps"].sum())))

    @property
    def quarters(self) -> Int[np.ndarray, "layer quarter"]:
        """Column sums in bins of a quarter of a query's worth; see `column_counts.quarters_of`."""
        return quarters_of(self.arrays["histogram.columns"])

    @property
    def above(self) -> Int[np.ndarray, "unit layer epsilon"]:
        """How many columns exceed each ε of `thresholds.EPSILONS`, in the units `thresholds.UNITS`."""
        return self.arrays["epsilon.above"]

    @property
    def steps_with_sink(self) -> Int[np.ndarray, "layer head"]:
        """In how many steps each head has a sink."""
        return self.arrays["strength.steps_with_sink"]

    @property
    def mean_strength(self) -> Float[np.ndarray, "layer head"]:
        """Column sum of each head's strongest sink, mean over the steps that have one; NaN where there is none."""
        return ratio(self.arrays["strength.main"], self.steps_with_sink)

    @property
    def norms(self) -> Moments:
        """Norms of sinks and of other tokens."""
        return Moments(*(self.arrays[f"norms.{name}"] for name in ("count", "sum", "square")))

    @property
    def by_head(self) -> dict[str, Float[np.ndarray, "layer head"]]:
        """Means by layer and head, over the steps of all prompts."""
        arrays = self.arrays
        steps = arrays["strength.steps"]
        return {
            "main_sink_column_sum": self.mean_strength,
            "steps_with_sink": ratio(self.steps_with_sink, steps),
            **{
                name: ratio(arrays[f"strength.{name}"], steps)
                for name in ("sinks", "largest", "sink_share", "entropy", "gini")
            },
            "moves_per_step": ratio(arrays["moves.moves"], arrays["moves.pairs"]),
            "swaps_per_step": ratio(arrays["moves.swaps"], arrays["moves.pairs"]),
            "distance_per_move": ratio(arrays["moves.absolute_distance"], arrays["moves.moves"]),
            "drift_per_step": ratio(arrays["moves.drift"], arrays["moves.drifts"]),
            **{
                f"split{ending}": ratio(arrays[f"groups.split{ending}"], arrays[f"groups.compared{ending}"])
                for ending in COMPARED
            },
        }

    def token_tallies(self) -> dict[str, Int[np.ndarray, " token"]]:
        """Return the tokens by how often they are sinks; ``sinks``, ``main_sinks`` and ``canvas`` count steps × layers × heads."""
        ids, counts = self.arrays["tokens.ids"], self.arrays["tokens.counts"]
        order = np.lexsort((ids, -counts[:, 0]))
        return {
            "token": ids[order],
            **{name: counts[order, at] for at, name in enumerate(("sinks", "main_sinks", "canvas"))},
        }

    def trigger_tests(self) -> dict[Threshold, TriggerTest]:
        """Return the test of triggers against shifted commits, at each threshold."""
        sums = (self.arrays[f"profiles.{name}"] for name in ("moving", "triggered", "shifted"))
        return {
            threshold: TriggerTest(int(moving), *both)
            for threshold, moving, *both in zip(THRESHOLDS, *sums, strict=True)
        }


def _settings(arrays: Mapping[str, np.ndarray]) -> tuple[int, int, float, bool, int, int]:
    """Return the arguments of `Summary`, in their order; raise ValueError where they cannot be."""
    settings, steps = arrays["settings"], arrays["strength.steps"]
    if settings.shape not in ((4,), (6,)) or settings.dtype != np.float64 or not np.isfinite(settings).all():
        raise ValueError("settings of another shape")
    layers, heads, excess, causal, tolerance, corpus = [*settings.tolist(), 0, 0][:6]
    if (
        steps.ndim != 2
        or steps.shape != (layers, heads)
        or excess < 0
        or causal not in (0, 1)
        or tolerance < 0
        or corpus < 0
    ):
        raise ValueError(f"settings for {layers:g} layers and {heads:g} heads, counts for {steps.shape}")
    return int(layers), int(heads), excess, bool(causal), int(tolerance), int(corpus)


def _like(name: str, array: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Return an array as a summary holds it; raise ValueError for another type or size, or for numbers that cannot be."""
    growing = name.startswith("tokens.")
    if array.dtype != empty.dtype or array.ndim != empty.ndim or (not growing and array.size != empty.size):
        raise ValueError(f"{name} of {array.dtype} {array.shape}, expected {empty.dtype} {empty.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{name} with numbers that are not finite")
    least = {"moves.distance": -MOST_COUNTED, "tokens.ids": -1}.get(
        name, 0
    )  # one has a direction, one a token that is unknown
    if array.dtype.kind == "i" and ((array < least).any() or (array > MOST_COUNTED).any()):
        raise ValueError(f"{name} with a count of {int(array.min() if (array < least).any() else array.max())}")
    return np.array(array) if growing else np.array(array).reshape(empty.shape)


def _profiles(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[Key, ...], np.ndarray]:
    """Return the keys and the values of the statistics; raise ValueError where they cannot be."""
    packed = np.asarray(arrays["profiles.keys"])
    if packed.dtype != np.uint8:
        raise ValueError("names of statistics that are no text")
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(packed.tobytes(), LARGEST_NAMES)
    except zlib.error as error:
        raise ValueError("names of statistics that cannot be unpacked") from error
    try:
        listed = json.loads(text)
        keys = tuple((str(name), tuple((str(key), value) for key, value in place)) for name, place in listed)
        hash(keys)
    except (TypeError, RecursionError) as error:
        raise ValueError("names of statistics that are no names") from error
    values = [np.asarray(arrays[f"profiles.{name}"]) for name in ("count", "sum", "square")]
    if any(one.shape != (len(keys),) or one.dtype.kind not in "if" for one in values):
        raise ValueError(f"{len(keys)} names for {values[0].shape} statistics")
    stacked = np.stack([one.astype(np.float64) for one in values], axis=-1)
    if not np.isfinite(stacked).all() or (stacked[:, 0] < 0).any():
        raise ValueError("statistics that are not finite")
    return keys, stacked


def check_summary(found: Summary) -> None:
    """Raise ValueError where counts contradict each other: more sinks than columns, more steps with a sink than steps.

    Raises:
        ValueError: the counts that do.
    """
    arrays = found.arrays
    if len(arrays["tokens.ids"]) != len(arrays["tokens.counts"]) or (np.diff(arrays["tokens.ids"]) <= 0).any():
        raise ValueError("tokens that are not in order")
    pairs = (
        ("strength.steps_with_sink", "strength.steps"),
        ("moves.moves", "moves.pairs"),
        ("moves.swaps", "moves.pairs"),
    )
    for part, whole in pairs:
        if (arrays[part] > arrays[whole]).any():
            raise ValueError(f"{part} larger than {whole}")
    if found.sinks > found.columns or (arrays["epsilon.above"] > arrays["epsilon.columns"][:, None]).any():
        raise ValueError(f"{found.sinks} sinks in {found.columns} columns")


def _merged_tokens(first: Arrays, second: Arrays) -> Arrays:
    ids = np.union1d(first["tokens.ids"], second["tokens.ids"]).astype(np.int32)
    counts = np.zeros((len(ids), first["tokens.counts"].shape[1]), np.int64)
    for one in (first, second):
        counts[np.searchsorted(ids, one["tokens.ids"])] += one["tokens.counts"]
    return {"tokens.ids": ids, "tokens.counts": counts}


def _placed(one: Summary, keys: Sequence[Key]) -> Float[np.ndarray, "key moment"]:
    """Return the values of a summary in the order of keys, 0 where it has none."""
    at = {key: number for number, key in enumerate(keys)}
    values = np.zeros((len(keys), 3))
    values[[at[key] for key in one.keys]] = one.values
    return values
