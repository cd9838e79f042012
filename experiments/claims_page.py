"""Writes docs/claims.md from results/claims/*.json; a test compares the two.

Command   python experiments/claims_page.py
"""

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "claims.md"
RESULTS = Path(__file__).parents[1] / "results" / "claims"
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
HEAD = """# The papers' claims, one by one, on two small models

Written by `python experiments/claims_page.py` from `results/claims/*.json`; do not edit. *Paper 1* is *Attention Sinks in
Diffusion Language Models* (arXiv 2510.15731), *paper 2* is *One Token Is Enough* (arXiv 2601.19657). They speak of models of 7 to 8
billion parameters; what follows was measured on [lab models](lab.md) of 2.8 million. A claim that does not hold here may hold
there, and the other way round: each script takes the statistics that `sinkscope analyse` gives for any model.

Every number is a mean over prompts with a 95 % interval over prompts ([how](statistics.md)). Each claim is cut into parts, with a bound
that was written into the script before it was run. A part *holds* if its whole interval lies where the claim wants it, *does not hold* if
the whole interval lies elsewhere, and is *undecided* otherwise. A claim holds if all its parts do, and does not hold if one of them
does not. Parts marked *beside* have no say. Verdicts are taken at ε = 3 queries' worth; where a part comes out otherwise at one of the nine
other points (ε = 1, 2, 3, 5, 8, in queries' worth and in percent), that is said.

The bounds were not chosen blind: moves and drift were known from the README, group splits and over-mixing from tries on two prompts.
In that try of over-mixing the rule could choose other keys for the changed canvas; now the same keys are hidden in both, and nothing of
the try is kept. Bounds like 0.5 for "most" or 0.1 for "can" are one reading of the papers' words.

Robustness against hiding sinks (paper 1, §5.1 and Table 1) is a question of accuracy, not of traces:
[why hiding hurts here](hiding.md), [how keys are hidden](interventions.md).

"""


def page(documents: dict[str, dict[str, Any]]) -> str:
    """The page as text."""
    known = [name for name in ORDER if name in documents]
    rows = ["| claim | source | verdict |", "|---|---|---|"]
    for name in known:
        title = documents[name]["title"]
        rows.append(f"| [{title}](#{anchor(title)}) | {documents[name]['source']} | {told(documents[name]['verdict'])} |")
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(section(documents[name]) for name in known)


def anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def section(document: dict[str, Any]) -> str:
    """One claim."""
    lines = [
        f"## {document['title']}",
        "",
        f"* **Claim** ({document['source']}). {document['says']}",
        f"* **Command.** `{document['command']} --prompts {document['prompts']}`",
        f"* **Expected.** {document['expected'][0].upper()}{document['expected'][1:]}.",
        f"* **Verdict.** {told(document['verdict']).capitalize()}.",
        "",
        "| part | found | wanted | verdict |",
        "|---|---|---|---|",
    ]
    lines += [row(part, document["prompts"]) for part in document["parts"]]
    return "\n".join([*lines, "", f"**What this cannot show.** {document['limits']}", ""])


def told(verdict: str) -> str:
    """A claim's verdict, as far as it reaches."""
    return f"{verdict} at this size" if verdict == "does not hold" else verdict


def shown(found: dict[str, float | None]) -> str:
    """A number with its interval."""
    if found["value"] is None:
        return "–"
    around = "no interval" if found["low"] is None else f"{found['low']:.4g} to {found['high']:.4g}"
    return f"{found['value']:.4g} ({around})"


def row(part: dict[str, Any], prompts: int) -> str:
    """One part as a row of the table."""
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
    """All results that are there."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


if __name__ == "__main__":
    PAGE.write_text(page(read()))
    print(PAGE)
