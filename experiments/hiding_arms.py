"""What part of hiding the top key costs answers: which keys, queries, layers, steps; value or mass; and for which kind of model.

Claim     Hiding the top sink ruins an autoregressive model and spares diffusion models (arXiv 2510.15731, Table 1). The lab's models say
          the opposite; why, is looked into here by whole answers, and in why_hiding_hurts.py and why_last_row_hurts.py by single tokens.
Command   python experiments/hiding_arms.py --work DIR --out results/hiding/arms.json [--problems 48] [--model lab-diffusion]; the same
          command goes on where it stopped. Then, for another number of problems, the same with --problems N. The control that holds as
          much attention of the queries being committed came later: --model lab-diffusion --rules none top:1 rowmass:1@seed=0
          rowmass:1@seed=1 rowmass:1@seed=2 --out results/hiding/arms-rowmass.json
Cost      a sixth of a second of one core a problem and rule without shots (diffusion), an eighth with 5 shots (autoregressive). Only
          whole answers are scored: all is bfloat16, as the checkpoints are stored and as in table_one.py.
Expected  Written down with the hypotheses in why_hiding_hurts.py. Decision rule: an arm differs from another when the 95 % interval of
          their difference, paired by problem, leaves out 0 and the exact test agrees (p < .05 after Holm over the arms of a model).
Found     docs/findings.md
"""

import json
from pathlib import Path

import torch
from _settings import SETTINGS, Arguments, made_by, run_script, seeded

import sinkscope
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.paired_tests import against_controls, holm, paired_difference

SHOTS = {"lab-diffusion": 0, "lab-autoregressive": 5}
BATCH = 48

DIFFUSION = [
    *(
        "none",
        "top:1",
        "top:1@layers=4",
        "top:1@layers=0-3+5",
        "mass:1@seed=0",
        "random:1@seed=0",
        "top:1@zero",
        "top:1@only_sinks",
    ),
    *("top:1@queries=masked", "top:1@queries=prompt", "ranks:1", "top:1@steps=1-15", "top:1@steps=16-31"),
    *(f"top:1@layers={layer}" for layer in (0, 1, 2, 3, 5)),
    *(
        "top:1@keys=masked",
        "top:1@keys=prompt",
        "top:1@current",
        "top:1@hidden",
        "mass:1@zero,seed=0",
        "above:3",
        "above:6",
    ),
    *(
        "random:1@seed=1",
        "random:1@seed=2",
        "mass:1@seed=1",
        "mass:1@seed=2",
        "top:1@clean",
        "top:1@layer",
        "top:1@last_row",
    ),
]
AUTOREGRESSIVE = [
    *(
        "none",
        "top:1",
        "top:1@last_row",
        "random:1@last_row,seed=0",
        "mass:1@last_row,seed=0",
        "top:1@last_row,zero",
        "ranks:1@last_row",
    ),
    *(
        "top:1@current,last_row",
        "top:1@last_row,only_sinks",
        "top:1@last_row,keys=0",
        *(f"top:1@last_row,layers={layer}" for layer in range(6)),
    ),
    *(
        "top:5",
        "top:10",
        "top:5@last_row",
        "top:10@last_row",
        "top:1@zero",
        "random:1@seed=0",
        "mass:1@seed=0",
        "ranks:1",
        "above:3",
    ),
    *("mass:1@last_row,seed=1", "mass:1@last_row,seed=2", "random:1@last_row,seed=1", "random:1@last_row,seed=2"),
]
PAIRS = [  # arm, what it is held against; several seeds are averaged
    *(("top:1", seeded(one)) for one in ("random:1", "mass:1", "rowmass:1")),
    *(("top:1", [one]) for one in ("ranks:1", "top:1@zero", "top:1@only_sinks", "top:1@last_row")),
    *(("top:1@last_row", seeded(f"{one}@last_row")) for one in ("random:1", "mass:1")),
    *(("top:1@last_row", [one]) for one in ("ranks:1@last_row", "top:1@last_row,zero")),
    ("top:1@queries=masked", ["top:1@queries=prompt"]),
    ("top:1@steps=1-15", ["top:1@steps=16-31"]),
]


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--model", action="append", choices=list(SETTINGS), default=None)
    parser.add_argument("--rules", nargs="+", default=None, help="all of the model's")
    arguments = parser.parse_args()
    for name in arguments.model or list(SETTINGS):
        model, results = sinkscope.load(name, dtype=torch.bfloat16), {}
        for rule in arguments.rules or (DIFFUSION if name == "lab-diffusion" else AUTOREGRESSIVE):
            (results[rule],) = evaluate(
                model,
                tasks=["lab-arith"],
                hide=[rule],
                limit=arguments.problems,
                shots=SHOTS[name],
                batch=BATCH,
                settings=SETTINGS[name],
                out=arguments.work / name,
                progress=False,
            )
            removed = results[rule].removed_share
            print(
                f"{name:<20}{rule:<28}{results[rule].accuracy:.3f}  removed {0 if removed is None else removed:.4f}",
                flush=True,
            )
            write(arguments.out, name, results)


def write(out: Path, name: str, results: dict) -> None:
    """Write the arms that are done to the file that holds the other model's arms too."""
    document = json.loads(out.read_text()) if out.exists() else {"experiment": "hiding_arms", "models": {}}
    outcomes = {rule: [int(one) for one in result.outcomes] for rule, result in results.items()}
    changes = {rule: paired_difference(found, outcomes["none"]) for rule, found in outcomes.items() if rule != "none"}
    adjusted = dict(zip(changes, holm([change.p_value for change in changes.values()]), strict=True))
    pairs = [(one, others) for one, others in PAIRS if {one, *others} <= outcomes.keys()]
    document["models"][name] = {
        **made_by(),
        "settings": dict(results["none"].settings),
        "weight_hash": results["none"].weight_hash,
        "dtype": results["none"].dtype,
        "problems": results["none"].n,
        "seconds": round(sum(result.seconds for result in results.values()), 1),
        "arms": {
            rule: {
                "accuracy": result.accuracy,
                "interval": result.interval,
                "removed_share": result.removed_share,
                "removed_share_committed": result.removed_share_committed,
                "hit_rate": result.hit_rate,
                **({} if rule == "none" else {"change": told(changes[rule]), "p_holm": adjusted[rule]}),
            }
            for rule, result in results.items()
        },
        "pairs": [
            {
                "arm": one,
                "against": others,
                **told(against_controls(outcomes[one], [outcomes[other] for other in others])),
            }
            for one, others in pairs
        ],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(document, indent=1) + "\n")


def told(difference: object) -> dict:
    return {key: getattr(difference, key) for key in ("mean", "low", "high", "p_value", "n")}


if __name__ == "__main__":
    run_script(main)
