"""What follows from the rows that were measured: estimates over prompts, and the role of each head."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sinkscope.models import Model
from sinkscope.roles.head_roles import HeadRole
from sinkscope.roles.removal import MOST_HIDDEN
from sinkscope.roles.verdict import Estimate, Rules, decide
from sinkscope.statistics.intervals import interval_of_means
from sinkscope.statistics.prompt_rows import known

MATCHED_OVER = "kl.rowmass.zero over kl.sink.zero"
"""How much more the control changes than the sink where both lose what they add, prompt by prompt."""


def conclude(
    model: Model, head: tuple[int, int], judged: Sequence[Sequence[Mapping[str, Any]]], rules: Rules
) -> HeadRole:
    """Return the role of a head from the rows of the prompts that judge."""
    mine = [[dict(row) for row in prompt if (row["layer"], row["head"]) == head] for prompt in judged]
    rows = [row for prompt in mine for row in prompt]
    lasting = float(np.mean([row["sink"] for row in rows])) if rows else 0.0
    for row in rows:
        if "kl.sink.zero" in row:
            row[MATCHED_OVER] = row["kl.rowmass.zero"] - row["kl.sink.zero"]
    measured, nothing = estimates(mine), Estimate(None, None, None)
    names = ("kl.sink.zero", "kl.rowmass.zero", MATCHED_OVER, "norm_ratio", "evenness", "taken.sink")
    role, reason = decide(lasting, *(measured.get(name, nothing) for name in names), rules)
    hidden, removable = measured.get("kl.sink", nothing), None
    if hidden.low is not None and hidden.high is not None and not hidden.low <= rules.changed <= hidden.high:
        removable = hidden.high < rules.changed
    place, token = measured.get("place", nothing).mean, _most_frequent(model, rows)
    return HeadRole(*head, role, reason, lasting, place, token, measured, *count_to_hide(measured, rules), removable)


def estimates(by_prompt: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Estimate]:
    """Return the mean of every number over prompts, with its interval. The prompt is the unit: its canvases are
    averaged first.
    """
    names = sorted({name for prompt in by_prompt for row in prompt for name in row if isinstance(row[name], float)})
    if not names:
        return {}
    table = np.full((len(by_prompt), len(names)), np.nan)
    for number, prompt in enumerate(by_prompt):
        for column, name in enumerate(names):
            values = [row[name] for row in prompt if name in row]
            if values:
                table[number, column] = np.mean(values)
    means = interval_of_means(table)
    numbers = zip(means.mean.tolist(), means.low.tolist(), means.high.tolist(), strict=True)
    return {name: Estimate(*map(known, one)) for name, one in zip(names, numbers, strict=True)}


def count_to_hide(measured: Mapping[str, Estimate], rules: Rules) -> tuple[int | None, int]:
    """Return ``substitutes`` and ``substitutes_at_least`` of a `HeadRole`."""
    at_least, unchanged = 1, True
    for many in (1, *MOST_HIDDEN):
        found = measured.get("kl.sink" if many == 1 else f"kl.top.{many}")
        if found is None or found.low is None or found.high is None:
            unchanged = False
            continue
        if found.low > rules.changed:
            return many, at_least
        unchanged = unchanged and found.high < rules.changed
        at_least = many + 1 if unchanged else at_least
    return None, at_least


def _most_frequent(model: Model, rows: Sequence[Mapping[str, Any]]) -> str | None:
    tokens = [row["token"] for row in rows if "token" in row]
    if not tokens:
        return None
    token = max(sorted(set(tokens)), key=tokens.count)
    if model.tokenizer is None:
        return str(token)
    return model.tokenizer.decode([token]) or model.tokenizer.convert_ids_to_tokens(token) or f"<{token}>"
