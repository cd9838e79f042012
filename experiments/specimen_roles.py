"""What does `sinkscope roles` say of the trained specimens, whose truth is known from their task and from zeroing their nulls?

    python experiments/specimen_roles.py --out results/substitutes/roles.json

Rule      Written down when three of the thirty had been seen. In the autoregressive specimens with K >= 1 nulls the sink is a null. It is
          *idle* where zeroing one null changes the predictions by less than 0.005 nats, else *broadcast* (all idle queries get the same
          of it), never *carrier*; and the number of keys to hide is K. Without nulls, and in the diffusion specimens, whose idle attention
          is spread over all masks, no head has a lasting sink on a null.
Cost      three minutes on a core.
"""

import json
from pathlib import Path

import _settings
from _settings import Arguments, run_script
from tqdm import tqdm

import sinkscope
from sinkscope.lab.nulls import NULL
from sinkscope.lab.prompts import problem_prompts, task_of
from sinkscope.models import SPECIMENS
from sinkscope.roles import find_roles

PROMPTS = 24
SETTINGS = {"autoregressive": {"length": 20}, "diffusion": {"length": 40, "steps": 20}}


def judge(name: str) -> dict[str, object]:
    """Return the verdict on one specimen and whether it is what the rule says."""
    kind, nulls, seed = name.removeprefix("lab-nulls-").split("-")
    prompts = [row["prompt"] for row in problem_prompts(task_of(name), PROMPTS)]
    found = find_roles(sinkscope.load(name), prompts, **SETTINGS[kind])
    sinks = [
        {
            "role": one.role,
            "token": one.token,
            "to_hide": one.substitutes,
            "adds": one.measured["kl.sink.zero"].mean,
            "costs": one.measured["kl.sink"].mean,
            "share": one.measured["committed_share"].mean,
        }
        for one in found.heads
    ]
    if kind == "autoregressive" and int(nulls):
        (sink,) = sinks
        wanted = "idle" if sink["adds"] < found.rules.changed else "broadcast"
        right = (sink["role"], sink["token"], sink["to_hide"]) == (wanted, NULL, int(nulls))
    else:
        right = all(one["token"] != NULL for one in sinks)
    return {"kind": kind, "nulls": int(nulls), "seed": int(seed), "sinks": sinks, "right": right}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = [judge(name) for name in tqdm(SPECIMENS)]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({**_settings.made_by(), "prompts": PROMPTS, "specimens": found}, indent=1, ensure_ascii=False) + "\n"
    )
    print(f"{sum(bool(one['right']) for one in found)} of {len(found)} as the rule says")


if __name__ == "__main__":
    run_script(main)
