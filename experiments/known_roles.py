"""Does `sinkscope roles` say what networks do whose weights were set by hand? 102 networks of six kinds, and untrained
ones.

    python experiments/known_roles.py --out results/roles/known.json

Rule      Every one of the 102 heads gets the role that its weights were set to, and the number of keys that must be
          hidden before the predictions change is the number of sources; every head of an untrained network is
          undecided. The rules ask whether all queries
          get the same, not whether other prompts would: a copier that all queries read evenly must be called broadcast,
          as a constant is.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import _networks_by_hand as by_hand
import _settings
import numpy as np
from _settings import Arguments, run_script
from tqdm import trange

from sinkscope.roles import Rules, find_roles

OF_A_KIND, UNTRAINED = 17, 9
EASY = Rules(excess=0.3, lasting=0.5)
"""An untrained network has no strong sinks, so that many weak ones are judged."""


def judge(number: int, folder: Path) -> dict[str, Any]:
    """Return kind, size, truth and verdict of one network."""
    kind = list(by_hand.KINDS)[number % len(by_hand.KINDS)]
    seed = number // len(by_hand.KINDS)
    layers, heads = by_hand.SIZES[seed % len(by_hand.SIZES)]
    model, place, prompts = by_hand.make(folder / f"{layers}-{heads}", kind, layers, heads, seed)
    found = find_roles(model, prompts, **by_hand.SETTINGS)
    told = {(one.layer, one.head): one for one in found.heads}
    mine = told.get(place)
    right = list(told) == [place] and mine is not None and mine.role == kind.partition(" ")[0]
    return {
        "kind": kind,
        "size": f"{layers} x {heads}",
        "role": mine and mine.role,
        "to_hide": mine and mine.substitutes,
        "right": right,
        "counted": mine is not None and mine.substitutes == by_hand.KINDS[kind].sources,
    }


def judge_untrained(seed: int, folder: Path) -> dict[str, Any]:
    """Return how many heads of an untrained network get each role."""
    layers, heads = by_hand.SIZES[seed % len(by_hand.SIZES)]
    model = by_hand.untrained(folder / f"untrained-{seed}", layers, heads, seed)
    prompts = np.random.default_rng(seed).integers(20, 40, (10, 8)).tolist()
    found = find_roles(model, prompts, rules=EASY, **by_hand.SETTINGS)
    return {"size": f"{layers} x {heads}", "roles": dict(Counter(one.role for one in found.heads))}


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        networks = [judge(number, Path(folder)) for number in trange(OF_A_KIND * len(by_hand.KINDS))]
        untrained = [judge_untrained(seed, Path(folder)) for seed in trange(UNTRAINED)]
    summary = {
        "right": sum(one["right"] for one in networks),
        "counted": sum(one["counted"] for one in networks),
        "networks": len(networks),
        "by_kind_and_size": {
            f"{kind}, {size}": f"{sum(one['right'] for one in mine)} of {len(mine)}"
            for kind in by_hand.KINDS
            for size in dict.fromkeys(one["size"] for one in networks)
            if (mine := [one for one in networks if (one["kind"], one["size"]) == (kind, size)])
        },
        "untrained_heads": sum(sum(one["roles"].values()) for one in untrained),
        "untrained_undecided": sum(one["roles"].get("undecided", 0) for one in untrained),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps({**_settings.made_by(), **summary, "each": networks, "untrained": untrained}, indent=1) + "\n"
    )
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    run_script(main)
