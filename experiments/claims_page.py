"""Writes results/claims/README.md and results/claims-smollm2/README.md from the JSON files beside them; a test compares
them.

Command   python experiments/claims_page.py
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "claims"
PAIR = RESULTS.with_name("claims-smollm2")
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
PAIR_ORDER = tuple(name for name in ORDER if name not in ("drift", "learned-positions"))
FAMILY = 40  # deciding parts of all claims
SIGNS = {"holds": "+", "no more than a null": "0", "does not hold": "−", "undecided": "?", "not comparable": "≠"}
HEAD = """# Everything that was measured for the claims

`python experiments/claims_page.py` writes this page from the JSON files beside it; [docs/findings.md](../../docs/findings.md#the-papers-claims)
has the verdicts. Each claim has parts, which compare one number, a mean over prompts (each section says how many), with a bound that the
script fixed before it ran: one reading of the papers' words.

* **Signs** are at ε = 3 queries' worth of attention, one for each part. A part holds (+) if its interval lies wholly on the side that the
  claim wants, and beyond the intervals of both nulls; it is no more than a null (0) if a null's interval is not left behind, does not hold (−)
  if it lies wholly on the other side, and is undecided (?) otherwise. ≠: two runs that no equal number of queries makes comparable.
* **Nulls**, of the same prompts: *untrained*, a network of the same shape whose weights are redrawn (the entries of each trained weight
  shuffled; those of queries and keys × 2.5, so that about as many heads have sinks as in the trained model; with the scale left as it is, or
  at update 0, no head has one and there is nothing to compare); and *shuffled* attention: each column goes to another key of its step, layer
  and head; for how sinks move, a head's columns change steps; for how many sinks there are, each query's attention goes to other keys
  (steps 8, 32, 56). Of the autoregressive model only the newest queries' attention is shuffled. "–": no sink, so no number. How many parts
  a null meets itself, at ε = 3 with every number of shots, stands under *untrained / shuffled*. Where nulls were not run, a part that would
  hold is undecided.
* **Intervals** are 95 % over prompts for the {family} deciding parts together (Bonferroni: each is a {level} % one, its ends moved out as
  Student's t).
* **Shots**: the same problems follow some solved ones. Rotary positions are tested without shots alone, because learned positions end
  at 96 tokens.
* **All**: three other thresholds are tried too (1 and 8 queries, 5 %). A part *depends* on shots, on ε, or on both, if it holds somewhere and fails
  elsewhere. Otherwise it has the verdict that it has for all shots.

We knew before the run, from 12 problems or from tries, that drift and depth change with the shots; also moves, group splits and over-mixing. We
added the parts on output norms after the first run, with the bounds of the parts on values.

"""
PAIR_HEAD = """# The papers' claims on SmolLM2 and its diffusion sibling

`python experiments/claims_page.py` writes this page from the JSON files beside it. The claims, their parts, bounds, intervals ({level} %),
nulls, signs and prompts are those [of the lab's models](../claims/README.md), fixed before SmolLM2 was measured. In place of the lab's diffusion
model stands `smollm2-diffusion` (64 tokens in 64 steps, no blocks: the claim on drift with blocks is not tested), in place of its
autoregressive one `smollm2`, both in fp32. *Untrained* are their own weights, shuffled and not scaled.

"""
FULL_HEAD = """
Below, numbers have their interval over prompts and their verdict at ε = 3 queries' worth; behind it stand the thresholds with another
verdict, in queries' worth (q) and in percent (%); then the untrained network | shuffled attention. Parts marked *beside* do not decide.

"""


def summary(documents: dict[str, dict[str, Any]], head: str) -> str:
    """Return the head of the page: signs by shots and verdicts of all claims."""
    known = [documents[name] for name in ORDER if name in documents]
    family = {"{family}": str(FAMILY), "{level}": f"{100 - 5 / FAMILY:g}"}
    shots = sorted({one["shots"] for document in known for part in document["parts"] for one in part["at"]})
    rows = [
        f"| claim | {' | '.join(map(str, shots))} shots | all | untrained / shuffled | its parts |",
        f"|---|{'---|' * len(shots)}---|---|---|",
    ]
    rows += [row(one, shots) for one in known]
    return re.sub("{family}|{level}", lambda found: family[found[0]], head) + "\n".join(rows) + "\n"


def row(document: dict[str, Any], lengths: list[int]) -> str:
    """Return one claim as a row: signs by shots, verdict in all, parts that nulls meet, and what its parts are."""
    parts = [part for part in document["parts"] if part["decides"]]
    signs = [" ".join(filter(None, (sign(part, shots) for part in parts))) for shots in lengths]
    met = " / ".join(str(sum(null in part["met_by"] for part in parts)) for null in ("untrained", "shuffled"))
    met = f"{met} of {len(parts)}" if "untrained" in parts[0]["at"][0] else "not run"
    what = "; ".join(f"{part['short']} ({wanted(part)})" for part in parts)
    title = f"[{document['title']}](#{anchor(document['title'])})"
    return f"| {title} ({document['source']}) | {' | '.join(signs)} | {document['verdict']} | {met} | {what} |"


def wanted(part: dict[str, Any]) -> str:
    """Return where the claim wants a number."""
    return part["expected"].replace("above", ">").replace("below", "<")


def sign(part: dict[str, Any], shots: int) -> str:
    """Return the sign of a part's verdict; nothing where it was not measured with so many shots."""
    return "".join(SIGNS[one["verdict"]] for one in part["at"] if one["shots"] == shots)


def full(folder: Path) -> str:
    """Return the README.md of a folder of results as text."""
    documents = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    sections = "\n".join(full_section(documents[name]) for name in ORDER if name in documents)
    return summary(documents, PAIR_HEAD if folder == PAIR else HEAD) + FULL_HEAD + sections


def command_of(name: str, folder: Path) -> str:
    """Return the command that measures a claim."""
    return f"python experiments/claims.py {name}{' --pair' * (folder == PAIR)}"


def anchor(title: str) -> str:
    """Return the anchor that GitHub makes of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def full_section(document: dict[str, Any]) -> str:
    """Return one claim with all its parts, its command and its limits."""
    shots = sorted({one["shots"] for part in document["parts"] for one in part["at"]})
    lines = [
        f"## {document['title']}",
        "",
        f"{document['says']} ({document['source']}) Expected: {document['expected']}. **{document['verdict'].capitalize()}.**",
        f"`{document['command']} --prompts {document['prompts']} --shots {' '.join(map(str, shots))}`",
        "",
        f"| part | {' | '.join('1 shot' if number == 1 else f'{number} shots' for number in shots)} | wanted | all |",
        f"|---|{'---|' * len(shots)}---|---|",
        *(full_row(part, document["prompts"], shots) for part in document["parts"]),
    ]
    limits = ["", f"*What this cannot show.* {document['limits']}"] if document["limits"] else []
    return "\n".join([*lines, *limits, ""])


def full_row(part: dict[str, Any], prompts: int, shots: list[int]) -> str:
    """Return one part as a row of the full table."""
    what = part["what"] if part["decides"] else f"*beside:* {part['what']}"
    at = {one["shots"]: one for one in part["at"]}
    cells = [cell(at[number], prompts) if number in at else "" for number in shots]
    return f"| {what}<br>{part['number']}, in {part['unit']} | {' | '.join(cells)} | {part['expected']} | {part['verdict']} |"


def cell(one: dict[str, Any], prompts: int) -> str:
    """Return what was measured with one number of shots, with the thresholds that have another verdict."""
    fewer = "" if one["prompts"] == prompts else f", {one['prompts']} prompts"
    others = []
    for verdict, known in SIGNS.items():
        points = [point for point, found in one["verdicts_elsewhere"].items() if found == verdict != one["verdict"]]
        if points:
            others.append(
                f"{known} at {', '.join(point.replace(' queries', 'q').replace(' percent', '%') for point in points)}"
            )
    elsewhere = f" [{'; '.join(others)}]" if others else ""
    nulls = " \\| ".join(shown(one[null]) for null in ("untrained", "shuffled") if null in one)
    return f"{shown(one['found'])}{fewer} {SIGNS[one['verdict']]}{elsewhere}<br>{nulls or 'nulls not run'}"


def shown(found: dict[str, float | None]) -> str:
    """Return a number with its interval."""
    if found["value"] is None:
        return "–"
    around = "no interval" if found["low"] is None else f"{found['low']:.3g} to {found['high']:.3g}"
    return f"{found['value']:.3g} ({around})".replace("-", "−")


def write(folder: Path) -> None:
    """Write the page of a folder of results."""
    (folder / "README.md").write_text(full(folder))


if __name__ == "__main__":
    write(RESULTS)
    write(PAIR)
