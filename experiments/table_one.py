"""Table 1 in small: what hiding sinks costs the lab's models and SmolLM2's problem pair, beside every control.

Claim     Hiding the top sink takes an autoregressive model from .85 to .02 on GSM8K and hardly touches diffusion models
          (arXiv 2510.15731, Table 1).
Command   python experiments/table_one.py --out DIR [--minutes M] [--until ROUND] [--model NAME]; the same command goes
          on where it stopped.
          Then: python experiments/table_one.py --add DIR/MODEL DIR/MODEL
Cost      on one core with bf16 units, a problem under one rule: diffusion about 0.8 s, autoregressive about 0.15 s. All
          rounds: a day.
Expected  As claimed.
Found     See results/table-1 and, of the pair, results/table-1-smollm2.

The lab's prompts have the tasks' own shots (196 to 325 tokens), the pair's none. The lab's answers get 32 positions, in as many steps, blocks of 16: the
longest worked answer among the 1,319 problems has 32 tokens, so none is cut short, and a run costs half of one with 64.
The lab's models compute in bfloat16, as they are stored, the pair in fp32.
Rounds go from what is most worth knowing to what is less, and each only asks more problems or more rules of the same
folders.

``results/table-1/MODEL/results.json.gz`` holds the outcomes of a model, one character a problem; table.md and
table.json are computed from them. ``--add`` takes outcomes from the folders of finished evaluations first, or none, and
writes both.
"""

import gzip
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _settings import SETTINGS, Arguments, run_script, seeded

import sinkscope
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.results import FORMAT, Result, read_results
from sinkscope.evaluation.tables import table, write_table
from sinkscope.runs.files import with_checksum

FOLDER = Path(__file__).parents[1] / "results" / "table-1"
PAIR = FOLDER.with_name("table-1-smollm2")
Cell = tuple[str, str, str]
BATCH = {"lab-diffusion": 8, "lab-autoregressive": 64, "smollm2-problems": 101, "smollm2-problems-diffusion": 12}


def top(k: int, options: str = "") -> list[str]:
    return [f"top:{k}{options}", *seeded(f"random:{k}{options}")]


def controls(k: int, options: str = "", kinds: Sequence[str] = ("mass", "rowmass", "persistent", "class")) -> list[str]:
    return [f"ranks:{k}{options}", *(rule for kind in kinds for rule in seeded(f"{kind}:{k}{options}"))]


MAIN = ["none", *top(1)]
CURRENT = top(1, "@current")
LAST_ROW = [*top(1, "@last_row"), *top(1, "@current,last_row")]
MORE = [*top(5), *top(10)]
CONTROLS = controls(1)
MORE_LAST_ROW = [*top(5, "@last_row"), *top(10, "@last_row"), *controls(1, "@last_row", ("mass", "rowmass"))]
MANY = [*top(5, "@current"), *top(10, "@current"), *controls(5), *controls(10)]


@dataclass(frozen=True)
class Round:
    """So many problems of a task, under these rules."""

    model: str
    task: str
    rules: list[str]
    problems: int
    shots: int | None = None


def settings_of(one: Round) -> dict[str, Any]:
    """Return the settings of the sampler; the longest worked answer has 16 of SmolLM2's tokens in lab-sums, else 41."""
    if one.model in SETTINGS:
        return SETTINGS[one.model]
    given: dict[str, Any] = {"length": 32 if one.task == "lab-sums" else 44}
    if "diffusion" in one.model:  # with Dream's own eps the result and its copy, the least sure, come in one step
        given |= {"steps": given["length"], "algorithm": "maskgit_plus", "eps": -1e-4}
    return given


def pair_rounds() -> list[Round]:
    d, a, sums = "smollm2-problems-diffusion", "smollm2-problems", "lab-sums"
    drawn = [f"{kind}:{k}" for k in (1, 5, 10) for kind in ("random", "rowmass")]
    tops, last = [f"top:{k}" for k in (1, 5, 10)], "@last_row"
    first = [f"{rule}@seed=0" for rule in drawn]
    return [
        Round(a, sums, ["none", *(f"{rule}{last}" for rule in tops)], 303),
        Round(d, sums, ["none", "top:1", "random:1@seed=0", "rowmass:1@seed=0", *tops[1:], *first[2:]], 303),
        Round(a, sums, [one for rule in drawn for one in seeded(f"{rule}{last}")], 303),
        Round(d, sums, [one for rule in drawn for one in seeded(rule) if one not in first], 303),
        Round(d, sums, ["top:1@layers=3-10", "top:1@layers=11-29"], 303),
        Round(
            d,
            sums,
            [f"{kind}:1@seed=0,layers={part}" for part in ("11-29", "3-10") for kind in ("rowmass", "random")],
            303,
        ),
        Round(a, "lab-arith", ["none"], 300, 0),
        Round(d, "lab-arith", ["none"], 100, 0),
        Round(a, sums, tops, 303),
    ]


def rounds() -> list[Round]:
    d, a, arith, code = "lab-diffusion", "lab-autoregressive", "lab-arith", "lab-code"
    return [
        Round(d, arith, MAIN[:3], 104),
        Round(a, arith, MAIN + LAST_ROW, 512),
        Round(d, arith, MAIN, 504),
        Round(a, arith, MAIN + LAST_ROW, 1319),
        Round(a, code, MAIN + LAST_ROW, 164),
        Round(d, code, MAIN, 164),
        Round(a, arith, CURRENT + MORE + CONTROLS + MORE_LAST_ROW, 512),
        Round(a, code, CURRENT + MORE + CONTROLS + MORE_LAST_ROW, 164),
        Round(d, arith, CURRENT + MORE + CONTROLS, 504),
        Round(d, code, CURRENT + MORE + CONTROLS, 164),
        Round(d, arith, MAIN, 1319),
        Round(a, arith, [*controls(1, "@current", ("mass",)), *controls(1, "@current,last_row", ("mass",))], 512),
        Round(d, arith, controls(1, "@current", ("mass",)), 504),
        Round(a, arith, MANY, 512),
        Round(d, arith, MANY, 504),
        Round(d, arith, CURRENT, 1319),
        *pair_rounds(),
    ]


def add(folders: Sequence[Path], to: Path) -> None:
    """Take outcomes from folders of evaluations into the compressed file of each model."""
    found = {cell_of(one): one for one in (*with_outcomes(to), *read_results(*folders))}
    for model in dict.fromkeys(one.model for one in found.values()):
        results = [asdict(one) for one in found.values() if one.model == model]
        text = json.dumps(
            with_checksum({"format": FORMAT, "results": results}), ensure_ascii=False, separators=(",", ":")
        )
        (to / model).mkdir(parents=True, exist_ok=True)
        (to / model / "results.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def with_outcomes(folder: Path = FOLDER) -> list[Result]:
    """Return the results of all cells that have outcomes."""
    kept = sorted(path.parent for path in folder.glob("*/results.json.gz"))
    return read_results(*kept) if kept else []


def cell_of(result: Result) -> Cell:
    return result.model, result.task, result.hide


def documents(folder: Path = FOLDER) -> tuple[dict[str, Any], str]:
    """Return table.json and table.md as they follow from the outcomes."""
    results = with_outcomes(folder)
    return table(results), write_table(results) + "\n"


def write(folder: Path) -> None:
    """Write both files."""
    document, text = documents(folder)
    (folder / "table.json").write_text(json.dumps(document, ensure_ascii=False) + "\n")
    (folder / "table.md").write_text(text)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--add", type=Path, nargs="*", default=None, metavar="FOLDER", help="of a finished evaluation")
    parser.add_argument("--minutes", type=float, default=None, help="no round is begun after so many")
    parser.add_argument("--until", type=int, default=None, help="rounds, from the first; all when not given")
    parser.add_argument(
        "--model", choices=list(BATCH), default=None, help="one model's rounds only; the other's may run beside"
    )
    arguments = parser.parse_args()
    if arguments.out is None:
        for folder in (FOLDER, PAIR):
            here = [one for one in arguments.add or () if one.name.startswith("smollm2") == (folder == PAIR)]
            if here:
                add(here, folder)
            if here or not arguments.add:
                write(folder)
        return
    began, models = time.monotonic(), {}
    for number, one in enumerate(rounds()[: arguments.until]):
        if arguments.minutes is not None and time.monotonic() - began > 60 * arguments.minutes:
            break
        if arguments.model not in (None, one.model):
            continue
        dtype = torch.bfloat16 if one.model in SETTINGS else torch.float32
        model = models.setdefault(one.model, None) or sinkscope.load(one.model, dtype=dtype)
        models[one.model] = model
        for rule in one.rules:
            (result,) = evaluate(
                model,
                tasks=[one.task],
                hide=[rule],
                limit=one.problems,
                shots=one.shots,
                batch=BATCH[one.model],
                settings=settings_of(one),
                out=arguments.out / one.model,
                allow_code_execution=one.task == "lab-code",
                progress=False,
            )
            line = f"round {number}: {one.model}, {one.task}, {rule}: {result.correct}/{result.n}"
            print(
                line,
                "" if result.removed_share is None else f"removed {result.removed_share:.3f}",
                f"{result.seconds:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    run_script(main)
