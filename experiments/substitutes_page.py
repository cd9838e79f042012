"""Writes results/substitutes/README.md, the tables behind docs/findings.md, from the JSON files beside it; a test
compares them.

Command   python experiments/substitutes_page.py
"""

import json
from itertools import groupby
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results" / "substitutes"
PAGE = RESULTS / "README.md"
FIRST = ("specimens", "roles", "reversed")
HEAD = """# Everything that was measured about substitutes

`python experiments/substitutes_page.py` writes this page from the JSON files beside it;
[docs/findings.md](../../docs/findings.md#on-the-labs-small-models) says what they mean. Costs are nats a predicted token, with 95 % intervals over canvases;
*share* is that of the predicting queries' attention.
"""
SPECIMENS = """
## Specimens

Command: `{command}`, commit {commit}. Three seeds each. *Cost* is that of hiding so many of the largest columns.

| kind | nulls K | share on nulls | on masks | knee | cost of K − 1 | cost of K | of all masks |
|---|--:|--:|--:|--:|--:|--:|--:|
"""
ROLES = """
## Roles of the specimens

Command: `{command}`, commit {commit}; {prompts} prompts each. *Adds* is the KL divergence of the predictions where one null is zeroed,
*costs* where it is hidden, in nats.

| kind | nulls K | role (seeds) | token | keys to hide | adds | costs |
|---|--:|---|---|--:|--:|--:|
"""
REVERSED = """
## A sink beside the null, and a single place for a diffusion model

Command: `{command}`, commit {commit}. Three seeds each. A trained sink: a token for the autoregressive specimen of one null, a logit
for the diffusion specimen without nulls. *Cost* is that of hiding, in nats a predicted token.

| kind | trained sink | share on it | on the largest column | cost of the largest column | of the sink | of both | of all masks |
|---|---|--:|--:|--:|--:|--:|--:|
"""
MODEL = """
## {model}

Command: `{command}`, commit {commit}. Loss {loss}, knee {knee}.

| keys hidden in every head | top | rowmass | random |
|--:|--:|--:|--:|
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for path in sorted(RESULTS.glob("*.json"), key=lambda path: (*(path.stem != first for first in FIRST), path.stem)):
        read = json.loads(path.read_text())
        if path.stem == "roles":
            parts.append(ROLES.format(**read) + "".join(map(_row_of_roles, _by_dial(read["specimens"]))))
        elif path.stem == "reversed":
            parts.append(REVERSED.format(**read) + "".join(map(_row_of_reversed, _by_arm(read["networks"]))))
        elif path.stem == "specimens":
            parts.append(SPECIMENS.format(**read) + "".join(map(_row_of_specimens, _by_dial(read["models"]))))
        else:
            parts += [_of_model(read, model) for model in read["models"]]
    return "".join(parts)


def _by_arm(found: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    arms = sorted(found, key=lambda one: (one["kind"], one["sink"] != "none", one["seed"]))
    return [list(group) for _, group in groupby(arms, key=lambda one: (one["kind"], one["sink"]))]


def _row_of_reversed(seeds: list[dict[str, Any]]) -> str:
    def cost(what: str) -> str:
        return (
            ", ".join(f"{round(one['cost'][what]['mean'], 3) + 0.0:+.3f}" for one in seeds)
            if what in seeds[0]["cost"]
            else ""
        )

    shares = [", ".join(f"{one['shares'][name]:.2f}" for one in seeds) for name in ("sink", "largest")]
    costs = [cost(what) for what in ("top", "sink", "sink and top", "masks")]
    return f"| {seeds[0]['kind']} | {seeds[0]['sink']} | " + " | ".join(shares + costs) + " |\n"


def _by_dial(found: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    return [list(group) for _, group in groupby(found, key=lambda one: (one["kind"], one["nulls"]))]


def _row_of_specimens(seeds: list[dict[str, Any]]) -> str:
    kind, nulls = seeds[0]["kind"], seeds[0]["nulls"]
    cells = [
        kind,
        str(nulls),
        _mean(seeds, "nulls"),
        _mean(seeds, "masks"),
        ", ".join(_knee(one["knee"]) for one in seeds),
    ]
    cells += [_range(_cost(one, "top", k) for one in seeds) for k in (nulls - 1, nulls)]
    cells.append(_range(_cost(one, "masks") for one in seeds))
    return f"| {' | '.join(cells)} |\n"


def _row_of_roles(seeds: list[dict[str, Any]]) -> str:
    sinks = [sink for one in seeds for sink in one["sinks"]]
    cells = [seeds[0]["kind"], str(seeds[0]["nulls"]), ", ".join(sink["role"] for sink in sinks) or "no lasting sink"]
    cells.append(", ".join(sorted({f"`{sink['token']}`" for sink in sinks})))
    cells.append(", ".join(_knee(sink["to_hide"]) for sink in sinks))
    cells += [_range(sink[name] for sink in sinks) for name in ("adds", "costs")]
    return f"| {' | '.join(cells)} |\n"


def _of_model(read: dict[str, Any], model: dict[str, Any]) -> str:
    head = MODEL.format(
        **read | {"model": model["model"], "loss": f"{model['loss']['all']['mean']:.3f}", "knee": _knee(model["knee"])}
    )
    rows = {}
    for row in model["hidden"]:
        rows.setdefault(row["hidden"], {})[row["rule"]] = _interval(row["cost"]["all"])
    every = rows.pop(next((row["hidden"] for row in model["hidden"] if row["rule"] == "masks"), None), {}).get("masks")
    lines = [
        f"| {k} | {' | '.join(cells.get(rule, '') for rule in ('top', 'rowmass', 'random'))} |\n"
        for k, cells in rows.items()
    ]
    return head + "".join(lines) + (f"\nAll masks hidden from the masked queries: {every}.\n" if every else "")


def _mean(seeds: list[dict[str, Any]], name: str) -> str:
    found = [share for one in seeds for layer in one["shares"].get(name, []) for share in layer]
    return f"{sum(found) / len(found):.2f}" if found else "–"


def _cost(one: dict[str, Any], rule: str, hidden: int | None = None) -> float | None:
    found = [
        row["cost"]["all"]["mean"] for row in one["hidden"] if row["rule"] == rule and hidden in (None, row["hidden"])
    ]
    return found[0] if found else None


def _range(values: Any) -> str:
    found = sorted(value for value in values if value is not None)
    return "–" if not found else f"{found[0]:.3f} … {found[-1]:.3f}"


def _interval(cost: dict[str, float]) -> str:
    return f"{cost['mean']:+.3f} ({cost['low']:+.3f} … {cost['high']:+.3f})"


def _knee(found: int | None) -> str:
    return "none" if found is None else str(found)


if __name__ == "__main__":
    PAGE.write_text(page())
