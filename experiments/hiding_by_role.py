"""Where may the top key be hidden for nothing? Heads chosen by `sinkscope roles` on some problems, judged by answers to others.

Claim     Half of what `top:1` hides in the lab's diffusion model is idle, and the loss comes from the other heads (docs/findings.md).
Command   sinkscope roles lab-diffusion --problems 48 --length 32 --steps 32 --block 16 --out ROLES
          python experiments/hiding_by_role.py --roles ROLES --work DIR --out results/hiding/by_role-0.json [--problems 144] [--shots 0]
          The same command goes on where it stopped.
Cost      a sixth of a second of one core a problem and rule without shots.
Rule      Written down before the run. Free heads are those of which `sinkscope roles` says that the sink can be hidden without a change of
          the predictions; costly heads are those of which it says that it cannot. The problems that roles were found on do not count.
          The claim holds where hiding the top key of the free heads costs less than 5 points (upper end of the 95 % interval, paired by
          problem) and hiding that of the costly ones costs more than 5 (lower end), and more than `rowmass` in the same heads.
Found     docs/findings.md
"""

import json
from pathlib import Path
from typing import Any

import torch
from _settings import SETTINGS, Arguments, made_by, run_script, seeded

import sinkscope
from sinkscope.evaluation import evaluate
from sinkscope.evaluation.paired_tests import against_controls, holm, paired_difference
from sinkscope.roles import Roles, read_roles, roles_for

BATCH, LEAST = 48, 5.0


def heads_of(roles: Roles) -> dict[str, list[tuple[int, int]]]:
    """Return the heads by whether their sink can be hidden."""
    kinds = {"free": True, "costly": False, "unknown": None}
    return {
        kind: [(one.layer, one.head) for one in roles.heads if one.removable is wanted]
        for kind, wanted in kinds.items()
    }


def rules_for(heads: dict[str, list[tuple[int, int]]]) -> dict[str, list[str]]:
    """Return the rules of each arm; those of several seeds are averaged."""
    arms = {"none": ["none"], "top, all heads": ["top:1"]}
    for kind, mine in heads.items():
        if mine:
            where = "heads=" + "+".join(f"{layer}.{head}" for layer, head in mine)
            arms[f"top, {kind} heads"] = [f"top:1@{where}"]
            arms[f"rowmass, {kind} heads"] = seeded(f"rowmass:1@{where}")
    return arms


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--roles", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=144)
    parser.add_argument("--shots", type=int, default=0)
    given = parser.parse_args()
    model = sinkscope.load("lab-diffusion", dtype=torch.bfloat16)
    roles = roles_for(model.card.weight_hash, read_roles(given.roles))
    assert roles is not None
    heads = heads_of(roles)
    arms = rules_for(heads)
    outcomes: dict[str, list[int]] = {}
    removed: dict[str, tuple[float | None, float | None]] = {}
    for rule in [rule for rules in arms.values() for rule in rules]:
        (result,) = evaluate(
            model,
            tasks=["lab-arith"],
            hide=[rule],
            limit=given.problems,
            shots=given.shots,
            batch=BATCH,
            settings=SETTINGS["lab-diffusion"],
            out=given.work,
            progress=False,
        )
        outcomes[rule] = [int(one) for one in result.outcomes][roles.prompts :]
        removed[rule] = (result.removed_share, result.removed_share_committed)
        print(f"{rule[:60]:<62}{sum(outcomes[rule])} of {len(outcomes[rule])}  removed {removed[rule]}", flush=True)
    document = {
        **made_by(),
        "shots": given.shots,
        "chosen_on": roles.prompts,
        "judged_on": given.problems - roles.prompts,
        "heads": {kind: [f"{layer}.{head}" for layer, head in mine] for kind, mine in heads.items()},
        "arms": _told(arms, outcomes, removed),
    }
    document["verdict"] = verdict(document["arms"])
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["verdict"]))


def _told(
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


if __name__ == "__main__":
    run_script(main)
