"""The summary of many prompts: sums that merge in any order and grouping, in arrays whose size does not grow with the
prompts.
"""

import json
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

from sinkscope.errors import SinkscopeError
from sinkscope.sinks.definition import check_excess
from sinkscope.sinks.tracking import check_tolerance
from sinkscope.statistics.averages import ratio
from sinkscope.statistics.move_triggers import TriggerTest
from sinkscope.statistics.norms import Moments
from sinkscope.statistics.prompt import PromptFeed, PromptSummary
from sinkscope.statistics.prompt_canvas import PromptSettings
from sinkscope.statistics.prompt_sums import COMPARED, Arrays, PromptSums, empty_arrays
from sinkscope.statistics.statistic import Key, feed_of
from sinkscope.statistics.step import quarters_of
from sinkscope.statistics.thresholds import THRESHOLDS, Threshold


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
            raise SinkscopeError(f"expected statistics with the same {names} {mine}, found {theirs}")
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
            layers, heads, excess, causal, tolerance, corpus = [*arrays["settings"].tolist(), 0, 0][:6]
            tolerance, corpus = int(tolerance), int(corpus)
            found = cls(int(layers), int(heads), excess=excess, causal=bool(causal), tolerance=tolerance, corpus=corpus)
            for name, empty in found.arrays.items():
                array = np.array(arrays[name])
                growing = name.startswith("tokens.")
                if array.dtype != empty.dtype or (not growing and array.shape != empty.shape):
                    raise ValueError(f"{name} of {array.dtype} {array.shape}, expected {empty.dtype} {empty.shape}")
                found.arrays[name] = array
            listed = json.loads(zlib.decompress(arrays["profiles.keys"].tobytes()))
            found.keys = tuple((name, tuple((axis, value) for axis, value in place)) for name, place in listed)
            moments = [arrays[f"profiles.{name}"] for name in ("count", "sum", "square")]
            found.values = np.stack(moments, axis=-1, dtype=np.float64)
        except (KeyError, ValueError, zlib.error) as error:
            raise SinkscopeError(f"expected statistics of this version, found others ({error})") from error
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
        """Column sums in bins of a quarter of a query's worth; see `step.quarters_of`."""
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
        """Return the tokens by how often they are sinks; ``sinks``, ``main_sinks`` and ``canvas`` count steps × layers
        × heads.
        """
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
