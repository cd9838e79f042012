"""Writes docs/claims.md, and all measured parts to results/claims/README.md, from results/claims/*.json; a test compares them.

Command   python experiments/claims_page.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
RESULTS = ROOT / "results" / "claims"
FULL = RESULTS / "README.md"
ORDER = (
    "few-tokens",
    "moves",
    "drift",
    "depth",
    "query-groups",
    "absorbed-self-attention",
    "placement",
    "consistency",
    "small-values",
    "over-mixing",
    "learned-positions",
)
HEAD = """# The papers' claims on two small models

Paper 1 is *Attention Sinks in Diffusion Language Models* (arXiv 2510.15731), paper 2 is *One Token Is Enough* (arXiv 2601.19657). They
speak of models with 7 to 8 billion parameters; the numbers below were measured on [lab models](lab.md) with 2.8 million. A claim that
fails here may hold there, and the other way round. `sinkscope analyse` computes the same statistics for any model.

**How a verdict is reached.** Each part of a claim compares one number with a bound that was written into the script before it ran. The
number is a mean over prompts with a 95 % interval over prompts ([how](statistics.md)). A part *holds* if its whole interval lies on the
side that the claim wants, *does not hold* if the whole interval lies on the other side, and is *undecided* otherwise. A claim holds if
all its parts hold, and does not hold if one part does not.

**The threshold.** Verdicts are taken at ε = 3 queries' worth of attention ([what that is](glossary.md#columns-and-sinks)). The last
column counts the verdicts that differ at nine other thresholds (ε = 1, 2, 5 and 8 queries' worth; 1, 2, 3, 5 and 8 percent). A dash
means that no other was measured. Every threshold and command, and numbers that decide nothing, are in
[results/claims](../results/claims/README.md).

**What was known before.** Moves and drift were known from earlier measurements when the bounds were chosen, group splits and over-mixing
from tries on two prompts. Bounds such as 0.5 for "most" and 0.1 for "can" are one reading of the papers' words. What hiding sinks costs
in accuracy (paper 1, Table 1) is told in [hiding.md](hiding.md).

`python experiments/claims_page.py` writes this page from `results/claims/*.json`; do not edit it.

"""
FULL_HEAD = """# Everything that was measured for the claims

`python experiments/claims_page.py` writes this page from the JSON files beside it; [docs/claims.md](../../docs/claims.md) says how
verdicts are reached. Parts marked *beside* do not decide. A verdict in brackets is that at another threshold.

"""


def page(documents: dict[str, dict[str, Any]]) -> str:
    """Return docs/claims.md as text."""
    known = [documents[name] for name in ORDER if name in documents]
    rows = ["| claim | source | verdict |", "|---|---|---|"]
    rows += [f"| [{one['title']}](#{anchor(one['title'])}) | {one['source']} | {told(one['verdict'])} |" for one in known]
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(section(one) for one in known)


def full(documents: dict[str, dict[str, Any]]) -> str:
    """Return results/claims/README.md as text."""
    return FULL_HEAD + "\n".join(full_section(documents[name]) for name in ORDER if name in documents)


def anchor(title: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def section(document: dict[str, Any]) -> str:
    """Return one claim with the parts that decide it."""
    lines = [
        f"## {document['title']}",
        "",
        f"{document['says']} ({document['source']}) **{told(document['verdict']).capitalize()}.**",
        "",
        "| part | found | wanted | verdict | other thresholds |",
        "|---|---|---|---|---|",
    ]
    for part in document["parts"]:
        if part["decides"]:
            found = f"{shown(part['found'])} {part['unit']}"
            lines.append(f"| {part['what']} | {found} | {part['expected']} | {part['verdict']} | {agreement(part)} |")
    return "\n".join([*lines, "", f"*What this cannot show.* {document['limits']}", ""])


def full_section(document: dict[str, Any]) -> str:
    """Return one claim with all its parts and its command."""
    lines = [
        f"## {document['title']}",
        "",
        f"`{document['command']} --prompts {document['prompts']}`. Expected: {document['expected']}.",
        "",
        "| part | found | wanted | verdict |",
        "|---|---|---|---|",
    ]
    return "\n".join([*lines, *(row(part, document["prompts"]) for part in document["parts"]), ""])


def told(verdict: str) -> str:
    """Return a claim's verdict, as far as it reaches."""
    return f"{verdict} at this size" if verdict == "does not hold" else verdict


def shown(found: dict[str, float | None]) -> str:
    """Return a number with its interval."""
    if found["value"] is None:
        return "–"
    around = "no interval" if found["low"] is None else f"{found['low']:.4g} to {found['high']:.4g}"
    return f"{found['value']:.4g} ({around})"


def agreement(part: dict[str, Any]) -> str:
    """Return how many of the other thresholds give another verdict."""
    elsewhere = list(part["verdicts_elsewhere"].values())
    other = [verdict for verdict in elsewhere if verdict != part["verdict"]]
    if not elsewhere:
        return "–"
    return "all ten agree" if not other else f"{len(other)} of {len(elsewhere)} differ"


def row(part: dict[str, Any], prompts: int) -> str:
    """Return one part as a row of the full table."""
    fewer = "" if part["prompts"] == prompts else f", {part['prompts']} prompts"
    what = part["what"] if part["decides"] else f"*beside:* {part['what']}"
    other = sorted({verdict for verdict in part["verdicts_elsewhere"].values() if verdict != part["verdict"]})
    elsewhere = "; ".join(
        f"{verdict} at ε = {', '.join(point for point, found in part['verdicts_elsewhere'].items() if found == verdict)}"
        for verdict in other
    )
    verdict = part["verdict"] + (f" ({elsewhere})" if elsewhere else "")
    return f"| {what}<br>{part['number']} | {shown(part['found'])} {part['unit']}{fewer} | {part['expected']} | {verdict} |"


def read() -> dict[str, dict[str, Any]]:
    """Return all results that are there, by name of the claim."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def write() -> None:
    """Write both pages."""
    documents = read()
    PAGE.write_text(page(documents))
    FULL.write_text(full(documents))


if __name__ == "__main__":
    write()
    print(PAGE, FULL, sep="\n")
