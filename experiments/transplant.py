"""Does what a sink stores matter? Sinks get the value of other sinks, beside keys that are no sinks.

Command   python experiments/transplant.py MODEL [--prompts FILE] [--count 12] [--by layer|head] --out FILE
Cost      on one core: lab-diffusion, 48 problems, two minutes; SmolLM2, 12 prompts, a few minutes; its diffusion
          sibling half an hour.
Rule      of each group, fixed before the first run: *nothing* where a sink's value can go (below 0.005 nats), *constant*
          where another prompt's does as well, *content* where it does not, *open* where an interval holds 0.005 nats.
Found     docs/transplant.md
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from _lab_runs import WORK
from _settings import SETTINGS, Arguments, made_by, run_script
from tqdm import tqdm

import sinkscope
from sinkscope.lab.prompts import problem_prompt
from sinkscope.roles import Probe, transplant_on
from sinkscope.roles.probes import make_probes

ARRAYS = ("tokens", "readers", "committed")
REAL = {"smollm2": {"length": 32}, "smollm2-diffusion": {"length": 32, "steps": 32}}
"""Settings of the samplers of models that are not the lab's."""


def probes_of(model: Any, given: Any) -> tuple[dict[str, Any], list[list[Probe]]]:
    """Return settings of the sampler, and the canvases of the first prompts of a file, or problems of the lab; canvases
    that were written before are read.
    """
    settings = next((some for name, some in (SETTINGS | REAL).items() if given.model.endswith(name)), {})
    if given.prompts is None:
        prompts = [problem_prompt("lab-arith", number)["prompt"] for number in range(given.count)]
    else:
        prompts = [json.loads(line)["prompt"] for line in given.prompts.read_text().splitlines()[: given.count]]
    found = []
    for number, prompt in enumerate(tqdm(prompts)):
        made = [model.card.weight_hash, prompt, given.canvases, settings]
        path = WORK / "probes" / f"{hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]}.npz"
        if not path.exists():
            some = make_probes(model, prompt, number, given.canvases, **settings)
            path.parent.mkdir(parents=True, exist_ok=True)
            arrays: dict[str, Any] = {name: [getattr(one, name) for one in some] for name in ("step", *ARRAYS)}
            np.savez(path, **arrays)
        with np.load(path) as kept:
            rows = zip(kept["step"].tolist(), *(kept[name] for name in ARRAYS), strict=True)
            found.append([Probe(number, *row) for row in rows])
    return settings, found


def rounded(value: Any) -> Any:
    """Return numbers with five digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, help='JSON lines with a "prompt" each; problems of the lab without')
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--by", choices=("layer", "head"), default="layer")
    parser.add_argument("--canvases", type=int, default=2, help="of each prompt of a diffusion model")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model = sinkscope.load(given.model, dtype="float32")
    settings, probes = probes_of(model, given)
    with tqdm(total=2 * len(probes)) as bar:
        folder = WORK / "transplant" / given.out.stem
        found = transplant_on(model, probes, by=given.by, out=folder, on_prompt=bar.update)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(
        json.dumps(rounded({**made_by(), "settings": settings, **found.as_dict(), "model": Path(found.model).name}))
        + "\n"
    )
    for one in found.rows:
        if one.group == "model" or one.donor == "prompt":
            numbers = (one.sink, one.plain, one.sink_over_plain, one.sink_over_zero)
            told = "  ".join(f"{e.mean or 0:.4f} ({e.low or 0:.4f} to {e.high or 0:.4f})" for e in numbers)
            print(f"{one.group:10}{one.donor + ' ' + one.what:21}{found.stores[one.group]:9}{told}")


if __name__ == "__main__":
    run_script(main)
