"""`card`: a small HTML summary of an object, which notebooks show in its place. It loads nothing and runs nothing.

All values are shown as text: tokens may hold HTML, control characters or marks that turn the direction of writing.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MOST_ROWS = 10
MOST_LETTERS = 48
"""Of a cell; a fact may have five times as many."""
_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}
_CELL = "text-align:right;padding:1px 8px"


def visible(text: str) -> str:
    """Return a text in which every character can be seen: ↵ for a new line, � for one that has no shape."""
    return "".join(_SIGNS.get(letter, letter if letter.isprintable() else "�") for letter in text)


def card(
    title: str,
    facts: Mapping[str, Any],
    columns: Sequence[str] = (),
    rows: Sequence[Sequence[Any]] = (),
    more: int = 0,
    most: int = MOST_ROWS,
) -> str:
    """Return a heading, facts that have a value, and a table; rows beyond ``most`` are counted only, with ``more``."""
    parts = ['<div style="font-size:90%;line-height:1.45">', f"<b>{_text(title, 5 * MOST_LETTERS)}</b>"]
    known = {name: value for name, value in facts.items() if value is not None}
    parts += [f"<br>{_text(name)}: {_text(value, 5 * MOST_LETTERS)}" for name, value in known.items()]
    if rows:
        head = "".join(f'<th style="{_CELL}">{_text(name)}</th>' for name in columns)
        parts.append(f'<table style="border-collapse:collapse;margin-top:4px"><thead><tr>{head}</tr></thead><tbody>')
        for row in rows[:most]:
            parts.append("<tr>" + "".join(f'<td style="{_CELL}">{_text(cell)}</td>' for cell in row) + "</tr>")
        parts.append("</tbody></table>")
    if left_out := max(0, len(rows) - most) + more:
        parts.append(f"<i>and {left_out:,} more</i>")
    return "".join([*parts, "</div>"])


def _text(value: Any, most: int = MOST_LETTERS) -> str:
    if value is None:
        return "–"
    text = visible(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
    return f"<bdi>{escape(text if len(text) <= most else text[: most - 1] + '…')}</bdi>"
