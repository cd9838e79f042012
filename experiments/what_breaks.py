"""What goes wrong in an answer when keys are hidden: the form, the copying, or the arithmetic?

Claim     Accuracy says that an answer is wrong, not what the model can no longer do.
Command   python experiments/what_breaks.py FOLDER… --out results/hiding/what_breaks.json     # folders of `sinkscope
          evaluate`, lab-arith
Cost      seconds; it reads stored answers.
Expected  If the hidden keys carried nothing, whatever is lost is lost everywhere alike.
Found     docs/findings.md

Of every line ``a + b = c.`` of an answer: is it a line of that form at all; are a and b those of the worked answer's
first line (read off the question); is c what a and b give; does the next line go on with c; is the number behind ####
the last c.
"""

import json
import re
from itertools import pairwise
from pathlib import Path

from _settings import Arguments, made_by, run_script

from sinkscope.evaluation.paired_tests import wilson_interval
from sinkscope.lab.prompts import held_out

LINE = re.compile(r"(?:Then )?(\d+) ([-+*]) (\d+) = (\d+)\.")
RESULT = re.compile(r"#### (\d+)")
MEASURES = (
    "lines of the right form",
    "operands of the first line",
    "operation of the first line",
    "arithmetic",
    "going on with the result",
    "last number",
)


def examine(text: str, worked: str) -> dict[str, list[bool]]:
    """Return every chance of an answer to get something right, by kind."""
    lines = text.strip().splitlines()
    body = [line for line in lines if not line.startswith("####")]
    parsed = [LINE.fullmatch(line.strip()) for line in body]
    found: dict[str, list[bool]] = {name: [] for name in MEASURES}
    found["lines of the right form"] = [match is not None for match in parsed]
    first = LINE.match(worked)
    if parsed and parsed[0] is not None and first is not None:
        found["operands of the first line"] = [parsed[0][1] == first[1], parsed[0][3] == first[3]]
        found["operation of the first line"] = [parsed[0][2] == first[2]]
    for match in filter(None, parsed):
        a, b = int(match[1]), int(match[3])
        found["arithmetic"].append(int(match[4]) == {"+": a + b, "-": a - b, "*": a * b}[match[2]])
    for one, other in pairwise(parsed):
        if one is not None and other is not None:
            found["going on with the result"].append(one[4] in (other[1], other[3]))
    last = RESULT.search(text)
    if last is not None and parsed and parsed[-1] is not None:
        found["last number"] = [last[1] == parsed[-1][4]]
    return found


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=None, help="the first so many only")
    arguments = parser.parse_args()
    problems, rows = held_out("lab-arith"), []
    for folder in arguments.folders:
        asked = json.loads((folder / "lab-arith" / "task.json").read_text())
        model = json.loads((folder / "run.json").read_text())["model"]["name"]
        for arm in sorted(path for path in (folder / "lab-arith").iterdir() if path.is_dir()):
            items = [json.loads(path.read_text()) for path in sorted(arm.glob("??????.json"))][: arguments.problems]
            if not items:
                continue
            counts: dict[str, list[bool]] = {name: [] for name in MEASURES}
            for item in items:
                for name, chances in examine(item["text"], problems[item["index"]].worked).items():
                    counts[name] += chances
            row = {"model": model, "shots": asked["shots"], "hide": arm.name, "n": len(items)}
            row["accuracy"] = sum(item["correct"] for item in items) / len(items)
            row |= {
                name: {
                    "right": sum(one),
                    "of": len(one),
                    "share": sum(one) / len(one),
                    "interval": wilson_interval(sum(one), len(one)),
                }
                for name, one in counts.items()
                if one
            }
            rows.append(row)
    print(
        "| model | shots | hidden | n | correct | " + " | ".join(MEASURES) + " |\n" + "|---" * (5 + len(MEASURES)) + "|"
    )
    for row in rows:
        cells = [
            f"{row[name]['share']:.2f} ({row[name]['right']}/{row[name]['of']})" if name in row else "–"
            for name in MEASURES
        ]
        print(
            f"| {row['model']} | {row['shots']} | {row['hide']} | {row['n']} | {row['accuracy']:.2f} | "
            + " | ".join(cells)
            + " |"
        )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"experiment": "what_breaks", **made_by(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
