"""The definition of a sink by two rules, on column sums.

c_j = Σ_i A_ij is the attention key j receives, in queries' worth. By ``eq3`` (Eq. 3 of paper 1) its excess is
c_j − mean of the other columns. In a causal model more queries see an early key, so that even uniform attention has
sinks by it: by ``uniform`` the excess is (c_j − u_j) · S/(S − 1), where u_j is the column that j would have if each
query that sees it shared its attention evenly among its keys. Where every query sees every key the rules are the same.

Quirk: paper 1's text divides by the number of queries, with which Eq. 3 and ε = 3 can never hold; its figures have
axes up to 50. Sums (``queries``) and percent of all attention are offered, and the mean form is refused for ε ≥ 1.
"""

import re
from functools import cache
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from sinkscope.errors import CallError

Unit = Literal["queries", "percent", "mean"]
UNITS: tuple[Unit, ...] = ("queries", "percent", "mean")
Rule = Literal["eq3", "uniform"]
RULE_TEXTS: dict[Rule, str] = {"eq3": "the mean of the other columns (Eq. 3)", "uniform": "uniform attention"}


def in_unit(
    columns: Float[np.ndarray, "*step layer head key"], unit: Unit
) -> Float[np.ndarray, "*step layer head key"]:
    """Column sums in another unit: as they are, in percent of all attention, or as a share of it (mean)."""
    check_excess(0.0, unit)
    if unit == "queries":
        return columns
    total = np.nansum(columns, axis=-1, keepdims=True)
    share = np.divide(columns, total, out=np.zeros_like(columns), where=total > 0)
    share[np.isnan(columns)] = np.nan
    return share * 100 if unit == "percent" else share


def excess_of(
    columns: Float[np.ndarray, "*step layer head key"], uniform: Float[np.ndarray, "*step layer one key"] | None = None
) -> Float[np.ndarray, "*step layer head key"]:
    """c_j − mean over k ≠ j of c_k (paper 1, Eq. 3), NaN left out; with ``uniform`` columns the excess over these."""
    count = (~np.isnan(columns)).sum(axis=-1, keepdims=True)
    others = np.maximum(count - 1, 1)
    if uniform is not None:
        return ((columns - uniform) * (count / others)).astype(columns.dtype)
    return columns - (np.nansum(columns, axis=-1, keepdims=True) - columns) / others


def excess_in(
    columns: Float[np.ndarray, "*step layer head key"],
    unit: Unit,
    uniform: Float[np.ndarray, "*step layer one key"] | None = None,
) -> Float[np.ndarray, "*step layer head key"]:
    """Return the excess of columns in a unit; both arrays are given in queries' worth."""
    if uniform is None or unit == "queries":
        return excess_of(in_unit(columns, unit), uniform)
    total = np.maximum(np.nansum(columns, axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return excess_of(columns, uniform) / total * (100 if unit == "percent" else 1)


def check_excess(excess: float, unit: str) -> None:
    """Raise CallError for an unknown unit, a threshold below 0 or NaN, or ε ≥ 1 on means."""
    if unit not in UNITS or not 0 <= excess < (1 if unit == "mean" else np.inf):
        why = "on means 1 can never hold, as they are shares of attention; paper 1's ε = 3 is meant in sums, 'queries'"
        raise CallError(f"expected an excess from 0 upwards in {', '.join(UNITS)}, found {excess} in {unit}; {why}")


def is_sink(
    columns: Float[np.ndarray, "*step layer head key"], excess: float = 3.0, unit: Unit = "queries"
) -> Bool[np.ndarray, "*step layer head key"]:
    """Eq. 3: which ``columns`` (in queries' worth, NaN: no token) exceed the mean of the others by more than
    ``excess``, ε in that unit. CallError: see `check_excess`.
    """
    check_excess(excess, unit)
    return excess_of(in_unit(columns, unit)) > excess


def visible_query_mean(
    columns: Float[np.ndarray, "*step layer head key"],
    causal: bool,
    reach: Int[np.ndarray, "*step layer"] | None = None,
) -> Float[np.ndarray, "*step layer head key"]:
    """Return column sums over the queries that see the key: S; causal S − j, ``reach`` of them behind a window."""
    length = (~np.isnan(columns)).sum(axis=-1, keepdims=True)
    seen = length - np.arange(columns.shape[-1]) if causal else length
    return columns / np.maximum(seen if reach is None else np.minimum(seen, reach[..., None, None]), 1)


def reach_of(last_query: Float[np.ndarray, "*step layer head key"]) -> Int[np.ndarray, "*step layer"]:
    """Return how many keys the newest query of a layer sees, behind a sliding window fewer than all."""
    seen = (last_query > 0).any(axis=-2)
    length = (~np.isnan(last_query[..., 0, :])).sum(axis=-1)
    newest = length - seen.argmax(axis=-1)
    return np.where(seen.sum(axis=-1) == newest, newest, length)


def uniform_rows(last_query: Float[np.ndarray, "*step layer head key"]) -> Float[np.ndarray, "*step layer one key"]:
    """Return uniform attention of the newest queries to the keys that they see."""
    reach, there = reach_of(last_query)[..., None], ~np.isnan(last_query[..., 0, :])
    seen = np.arange(last_query.shape[-1]) >= there.sum(axis=-1, keepdims=True) - reach
    return np.where(there, seen / reach, np.nan)[..., None, :]


def uniform_columns(length: int, reach: Int[np.ndarray, " layer"]) -> Float[np.ndarray, "layer one key"]:
    """Return the columns of uniform causal attention: Σ 1 / min(i + 1, reach) over the queries i that see the key."""
    position = np.arange(length)
    shares = np.cumsum(1 / np.minimum(position + 1, reach[:, None]), axis=1)
    shares = np.pad(shares, ((0, 0), (1, 0)))
    ends = np.minimum(position + reach[:, None], length)
    return (np.take_along_axis(shares, ends, axis=1) - shares[:, :-1])[:, None]


def last_query_window(
    last_query: Float[np.ndarray, "step layer head key"], window: int = 16
) -> Float[np.ndarray, "step layer head key"]:
    """Column sums over the newest ``window`` queries of an autoregressive trace, one a step; the first sum fewer."""
    rows = np.nan_to_num(last_query)
    summed = np.cumsum(rows, axis=0, dtype=np.float64)
    summed[window:] = summed[window:] - summed[:-window].copy() if len(summed) > window else summed[window:]
    return np.where(np.isnan(last_query), np.nan, summed).astype(np.float32)


CLASSES = ("mask", "newline", "white space", "punctuation", "special", "digit", "word")

_SPECIAL = re.compile(r"<\|?/?[A-Za-z_][\w .-]*\|?>|<\|[^|]*\|>|\[[A-Z]{2,}\]")
_BYTE_LEVEL = str.maketrans({"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "▁": " "})


@cache
def class_of(text: str) -> str:
    """Return the class of a token by how it reads; `token_class` knows masks and special tokens better."""
    plain = text.translate(_BYTE_LEVEL)
    bare = plain.strip()
    if not bare:
        return "newline" if "\n" in plain else "white space"
    if _SPECIAL.fullmatch(bare):
        return "special"
    if bare.isdigit():
        return "digit"
    return "word" if any(character.isalnum() for character in bare) else "punctuation"


def text_of(tokenizer: Any, token: int) -> str:
    """Return how a token reads: a special one by its name, bytes that are no whole character as ``<0xE2>``."""
    text = tokenizer.decode([token])
    if text and "\ufffd" not in text:
        return str(text)
    name = str(tokenizer.convert_ids_to_tokens(token) or "")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    if not {*name} <= letters.keys():
        return name
    read = bytes(letters[letter] for letter in name).decode(errors="surrogateescape")
    return "".join(f"<0x{ord(one) - 0xDC00:02X}>" if "\udc80" <= one <= "\udcff" else one for one in read)


def token_class(text: str | None, is_mask: bool, is_special: bool) -> str:
    """Return one of `CLASSES`, first by its id, then by how it reads; a token without a text is a word."""
    return "mask" if is_mask else "special" if is_special else class_of(text) if text else "word"
