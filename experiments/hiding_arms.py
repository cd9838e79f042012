"""What part of hiding the top key costs answers: which keys, queries, layers, steps; value or mass; and for which kind
of model.

Claim     Hiding the top sink ruins an autoregressive model and spares diffusion models (arXiv 2510.15731, Table 1). The
          lab's models say the opposite; why, is looked into here by whole answers, and in why_hiding_hurts.py and
          why_last_row_hurts.py by single tokens.
Command   python experiments/hiding_arms.py --work DIR --out results/hiding/arms.json [--problems 48] [--model
          lab-diffusion]; the same command goes on where it stopped. Then, for another number of problems, the same with
          --problems N. The control that holds as
          much attention of the queries being committed came later: --model lab-diffusion --rules none top:1
          rowmass:1@seed=0
          rowmass:1@seed=1 rowmass:1@seed=2 --out results/hiding/arms-rowmass.json
Cost      a sixth of a second of one core a problem and rule without shots (diffusion), an eighth with 5 shots
          (autoregressive). Only
          whole answers are scored: all is bfloat16, as the checkpoints are stored and as in table_one.py.
Expected  Written down with the hypotheses in why_hiding_hurts.py. Decision rule: an arm differs from another when the
          95 % interval of their difference, paired by problem, leaves out 0 and the exact test agrees (p < .05 after
          Holm over the arms of a model).

Heads     Where may the top key be hidden for nothing? Heads chosen by `sinkscope roles` on some problems, judged by
          answers to others. sinkscope roles lab-diffusion --problems 48 --length 32 --steps 32 --block 16 --out ROLES
          python experiments/hiding_arms.py --roles ROLES --work DIR --out results/hiding/by_role-0.json --problems 144
Rule      Written down before the run. Free heads are those of which `sinkscope roles` says that the sink can be hidden
          without a change of the predictions; costly heads are those of which it says that it cannot. The problems that
          roles were found on do not count. The claim, that half of what `top:1` hides is idle and the loss comes from
          the other heads, holds where hiding the top key of the free heads costs less than 5 points (upper end of the
          95 % interval, paired by problem) and hiding that of the costly ones costs more than 5 (lower end), and more
          than `rowmass` in the same heads.
Found     docs/findings.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _settings import SETTINGS, Arguments, made_by, run_script, seeded

import sinkscope
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.paired_tests import against_controls, holm, paired_difference
from sinkscope.roles import Roles, read_roles, roles_for

SHOTS = {"lab-diffusion": 0, "lab-autoregressive": 5}
BATCH, LEAST = 48, 5.0

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


def answered(model: Any, rule: str, problems: int, shots: int, settings: dict[str, Any], out: Path) -> Any:
    """Return the answers under a rule; those that are there are not written again."""
    more = {"tasks": ["lab-arith"], "limit": problems, "shots": shots, "settings": settings}
    (result,) = evaluate(model, hide=[rule], batch=BATCH, out=out, progress=False, **more)
    return result


def by_role(given: argparse.Namespace) -> None:
    """Hide the top key of heads by their role, and judge it by the problems that the roles were not found on."""
    model = sinkscope.load("lab-diffusion", dtype=torch.bfloat16)
    roles = roles_for(model.card.weight_hash, read_roles(given.roles))
    assert roles is not None
    heads = heads_of(roles)
    arms = rules_for(heads)
    outcomes: dict[str, list[int]] = {}
    removed: dict[str, tuple[float | None, float | None]] = {}
    for rule in [rule for rules in arms.values() for rule in rules]:
        result = answered(model, rule, given.problems, 0, SETTINGS["lab-diffusion"], given.work)
        outcomes[rule] = [int(one) for one in result.outcomes][roles.prompts :]
        removed[rule] = (result.removed_share, result.removed_share_committed)
        print(f"{rule[:60]:<62}{sum(outcomes[rule])} of {len(outcomes[rule])}  removed {removed[rule]}", flush=True)
    document = {
        **made_by(),
        "shots": 0,
        "chosen_on": roles.prompts,
        "judged_on": given.problems - roles.prompts,
        "heads": {kind: [f"{layer}.{head}" for layer, head in mine] for kind, mine in heads.items()},
        "arms": told_by_role(arms, outcomes, removed),
    }
    document["verdict"] = verdict(document["arms"])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["verdict"]))


def heads_of(roles: Roles) -> dict[str, list[tuple[int, int]]]:
    """Return the heads by whether their sink can be hidden."""
    kinds = {"free": "dispensable", "costly": "needed", "unknown": "open"}
    return {kind: [(one.layer, one.head) for one in roles.heads if one.need == need] for kind, need in kinds.items()}


def rules_for(heads: dict[str, list[tuple[int, int]]]) -> dict[str, list[str]]:
    """Return the rules of each arm; those of several seeds are averaged."""
    arms = {"none": ["none"], "top, all heads": ["top:1"]}
    for kind, mine in heads.items():
        if mine:
            where = "heads=" + "+".join(f"{layer}.{head}" for layer, head in mine)
            arms[f"top, {kind} heads"] = [f"top:1@{where}"]
            arms[f"rowmass, {kind} heads"] = seeded(f"rowmass:1@{where}")
    return arms


def told_by_role(
    arms: dict[str, list[str]], outcomes: dict[str, list[int]], removed: dict[str, tuple[float | None, float | None]]
) -> dict[str, Any]:
    plain = outcomes["none"]
    changes = {
        arm: against_controls(plain, [outcomes[rule] for rule in rules])
        if len(rules) > 1
        else paired_difference(plain, outcomes[rules[0]])
        for arm, rules in arms.items()
        if arm != "none"
    }
    adjusted = dict(zip(changes, holm([change.p_value for change in changes.values()]), strict=True))
    told: dict[str, Any] = {}
    for arm, rules in arms.items():
        shares, committed = (
            [share for share in found if share is not None]
            for found in zip(*(removed[rule] for rule in rules), strict=True)
        )
        told[arm] = {
            "rules": rules,
            "correct": [sum(outcomes[rule]) for rule in rules],
            "of": len(plain),
            "removed_share": sum(shares) / len(shares) if shares else 0.0,
            "removed_share_committed": sum(committed) / len(committed) if committed else 0.0,
        }
        if arm in changes:
            lost = {name: 100 * getattr(changes[arm], name) for name in ("mean", "low", "high")}
            told[arm] |= {"points_lost": lost, "p_holm": adjusted[arm]}
    for arm in [arm for arm in told if arm.startswith("rowmass")]:
        top = arms[arm.replace("rowmass", "top")][0]
        over = against_controls(outcomes[top], [outcomes[rule] for rule in arms[arm]])
        told[arm]["points_more_than_top"] = {name: 100 * getattr(over, name) for name in ("mean", "low", "high")}
    return told


def verdict(arms: dict[str, Any]) -> dict[str, bool | None]:
    """Return what the rule says of each part; None where there are no such heads."""

    def part(arm: str, check: Any) -> bool | None:
        return bool(check(arms[arm])) if arm in arms else None

    return {
        "free heads cost less than 5 points": part("top, free heads", lambda one: one["points_lost"]["high"] < LEAST),
        "costly heads cost more than 5 points": part(
            "top, costly heads", lambda one: one["points_lost"]["low"] > LEAST
        ),
        "costly heads cost more than rowmass there": part(
            "rowmass, costly heads", lambda one: one["points_more_than_top"]["high"] < 0
        ),
    }


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=48)
    parser.add_argument("--model", action="append", choices=list(SETTINGS), default=None)
    parser.add_argument("--rules", nargs="+", default=None, help="all of the model's")
    parser.add_argument("--roles", type=Path, default=None, help="hides by role, in the heads that this folder tells")
    arguments = parser.parse_args()
    if arguments.roles is not None:
        by_role(arguments)
        return
    for name in arguments.model or list(SETTINGS):
        model, results = sinkscope.load(name, dtype=torch.bfloat16), {}
        for rule in arguments.rules or (DIFFUSION if name == "lab-diffusion" else AUTOREGRESSIVE):
            where = arguments.work / name
            results[rule] = answered(model, rule, arguments.problems, SHOTS[name], SETTINGS[name], where)
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
