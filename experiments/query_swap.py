"""Why do masked and written queries have other sinks: because of what they are, or of where they stand?

Claim     Masked and unmasked queries of one head attend to different sinks (arXiv 2510.15731, Fig. 6a).
Command   python experiments/query_swap.py MODEL [--prompts FILE] [--count 12] --out FILE
Cost      on one core: lab-diffusion, 48 problems, two minutes; smollm2-diffusion, 12 prompts, ten minutes.

Method    Of each head, the main sink of the masked queries and that of the written ones, chosen on every other query of
          each kind. Heads are split where these are two keys that each take a twentieth of their queries' attention.
          The queries between are measured, on unchanged keys, in that layer alone, with the nearest query of the other
          kind, or any of them, as donor:
            content   the donor's query, turned to the position of the one that it replaces;
            position  its own query, turned to the position of the donor;
            donor     the donor's query where it stands: content and position;
            null      content and position of another query of its own kind.
          And from the input on: written tokens get the mask embedding, or another written token (null), and masked ones
          the nearest written token.
Measured  ``follows``: the share of the way from a query's own preference (attention on the masked queries' sink less
          that on the written ones') to the donor's: 1 where a swap makes it a query like the donor, 0 where it stays
          what it was. A null is measured over the way of the swap beside it, a changed input over that to the nearest
          donor. A ratio of means over prompts, with 95 % intervals over prompts.
Rule      Content is the cause where it follows by more than a half and position by less than a half, by their
          intervals; position the other way round; else both, or neither. Fixed before the first run, with a tenth in
          place of a twentieth, which left half a head a canvas in six prompts of lab-diffusion. Changed after results
          had been seen: the way is that to the donor's own preference (those six prompts), and of changed inputs that
          to the nearest donor (a first run of smollm2-diffusion).
Found     docs/transplant.md
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _settings import Arguments, made_by, run_script
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm
from transplant import probes_of, rounded

import sinkscope
from sinkscope.attention import subscribed
from sinkscope.roles.find import estimates
from sinkscope.roles.grafts import Keeper, turned
from sinkscope.roles.probes import Probe, as_written
from sinkscope.statistics.intervals import interval_of_means, known

LEAST = 0.05
"""Share of its queries' attention that a main sink takes."""
KINDS = ("masked", "written")
DRAWN = 4
"""Queries of a canvas whose input is changed, of each kind."""
SHORTEST = 0.02
"""Way between two preferences below which nothing can be said to follow."""


def maps_of(queries: Float[Tensor, "head query dim"], keys: Float[Tensor, "kv_head key dim"]) -> Tensor:
    """Return attention maps, [head, query, key]."""
    keys = keys.repeat_interleave(len(queries) // len(keys), dim=0)
    return (queries @ keys.mT * queries.shape[-1] ** -0.5).softmax(-1)


def nearest(at: Int[Tensor, " query"], among: Int[Tensor, " other"]) -> Int[Tensor, " query"]:
    """Return the nearest of some positions to each query, not its own; the earlier of two."""
    far = (at[:, None] - among[None]).abs()
    return among[far.masked_fill(far == 0, 10**9).argmin(-1)]


def drawn(at: Int[Tensor, " query"], among: Int[Tensor, " other"], rng: np.random.Generator) -> Int[Tensor, " query"]:
    """Return one of some positions for each query, not its own."""
    return torch.tensor([rng.choice([one for one in among.tolist() if one != mine]) for mine in at.tolist()])


def split_heads(
    maps: Float[Tensor, "head query key"], choosing: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Bool[Tensor, " head"], Bool[Tensor, " head"]]:
    """Return the main sink of each kind of queries by head, in which heads both are strong, and in which of these they
    differ.
    """
    tops = {kind: maps[:, choosing[kind]].mean(1).max(-1) for kind in KINDS}
    strong = (tops["masked"].values >= LEAST) & (tops["written"].values >= LEAST)
    sinks = {kind: tops[kind].indices for kind in KINDS}
    return sinks, strong, strong & (sinks["masked"] != sinks["written"])


def on_sinks(maps: Float[Tensor, "head query key"], sinks: dict[str, Tensor], heads: Tensor) -> Float[Tensor, "head 2"]:
    """Return the mean share of the attention on both sinks in some heads."""
    chosen = maps[heads].mean(1)
    return torch.stack([chosen.gather(-1, sinks[kind][heads][:, None])[:, 0] for kind in KINDS], dim=-1)


def swaps(
    model: Any, queries: Float[Tensor, "head query dim"], at: Tensor, own: Tensor, other: Tensor, rng: Any
) -> dict[str, Tensor]:
    """Return queries of each arm at positions ``at``: donors are the nearest, or any, of ``other`` or (null) ``own``."""
    found = {"before": queries[:, at]}
    for how, pick in (("nearest", nearest), ("any", lambda mine, among: drawn(mine, among, rng))):
        donor, null = pick(at, other), pick(at, own)
        found[f"donor of {how}"] = queries[:, donor]
        found[f"content of {how}"] = turned(model, queries[:, donor], at - donor)
        found[f"position of {how}"] = turned(model, queries[:, at], donor - at)
        found[f"null content of {how}"] = turned(model, queries[:, null], at - null)
        found[f"null position of {how}"] = turned(model, queries[:, at], null - at)
    return found


def looked(model: Any, tokens: Tensor, probe: Probe) -> list[tuple[Tensor, Tensor]]:
    """Return queries and keys of every layer for one canvas."""
    with torch.no_grad(), as_written(model, probe), subscribed(model.network, keeper := Keeper()):
        model.network.model(input_ids=tokens[None], use_cache=False)
    return list(zip(keeper.queries, keeper.keys, strict=True))


@torch.no_grad()
def measure(model: Any, probe: Probe, rng: np.random.Generator) -> dict[str, float]:
    """Return the numbers of one canvas by name; none where it has too few masked or written queries."""
    tokens = torch.from_numpy(probe.tokens.astype(np.int64))
    masked = tokens == model.card.mask_id
    places = {"masked": masked.nonzero()[:, 0], "written": (~masked).nonzero()[:, 0]}
    if min(map(len, places.values())) < 4:
        return {}
    choosing, judged = ({kind: places[kind][start::2] for kind in KINDS} for start in (0, 1))
    changes = input_changes(tokens, judged, places, model.card.mask_id, rng)
    before, rows = looked(model, tokens, probe), dict[str, list[Tensor]]()
    strong = differ = 0
    per_layer: list[tuple[dict[str, Tensor], Tensor]] = []
    found: dict[str, float] = {}
    for layer, (queries, keys) in enumerate(before):
        sinks, are_strong, heads = split_heads(maps_of(queries, keys), choosing)
        strong, differ = strong + int(are_strong.sum()), differ + int(heads.sum())
        per_layer.append((sinks, heads))
        if not heads.any():
            continue
        for kind, other in (KINDS, KINDS[::-1]):
            for arm, some in swaps(model, queries, judged[kind], places[kind], places[other], rng).items():
                shares = on_sinks(maps_of(some, keys), sinks, heads)
                rows.setdefault(f"{kind}|{arm}", []).append(shares)
                found |= {
                    f"layer {layer}|{kind}|{arm}|{name}": float(one)
                    for name, one in zip(KINDS, shares.mean(0), strict=True)
                }
    for name, kind, changed, at in changes:
        for (sinks, heads), (queries, keys), (new_queries, new_keys) in zip(
            per_layer, before, looked(model, changed, probe), strict=True
        ):
            for arm, one, some in ((f"{name}, before", queries, keys), (name, new_queries, new_keys)):
                if heads.any():
                    rows.setdefault(f"{kind}|{arm}", []).append(on_sinks(maps_of(one[:, [at]], some), sinks, heads))
    for name, some in rows.items():
        found |= {f"{name}|{kind}": float(one) for kind, one in zip(KINDS, torch.cat(some).mean(0), strict=True)}
    return found | {"heads|strong": float(strong), "heads|split": float(differ), "heads|share": differ / max(1, strong)}


def input_changes(
    tokens: Tensor, judged: dict[str, Tensor], places: dict[str, Tensor], mask: int, rng: np.random.Generator
) -> list[tuple[str, str, Tensor, int]]:
    """Return changed canvases: name, kind of the query, tokens, and the one position that differs."""
    found = []
    for kind in KINDS:
        some = rng.choice(judged[kind].numpy(), min(DRAWN, len(judged[kind])), replace=False)
        for at in some.tolist():
            here = torch.tensor([at])
            near, far = nearest(here, places["written"]), drawn(here, places["written"], rng)
            new = {"input masked": mask, "input of another": int(tokens[far])}
            for name, token in (new if kind == "written" else {"input written": int(tokens[near])}).items():
                changed = tokens.clone()
                changed[at] = token
                found.append((name, kind, changed, at))
    return found


def target_of(arm: str, kind: str) -> tuple[str, str]:
    """Return the kind and arm whose preference a swap is measured against."""
    return kind, f"donor of {'nearest' if arm.startswith('input') else arm.rpartition(' ')[2]}"


def follows(by_prompt: list[dict[str, float]]) -> dict[str, list[float | None]]:
    """Return by kind and arm, and by layer too, which share of the way a swap goes: ratio, low, high."""
    names = {name.rpartition("|")[0] for rows in by_prompt for name in rows if name.endswith("|masked")}
    nan = float("nan")
    preference = {
        name: np.array([rows.get(f"{name}|masked", nan) - rows.get(f"{name}|written", nan) for rows in by_prompt])
        for name in names
    }
    found = {}
    for name in sorted(names):
        *layer, kind, arm = name.split("|")
        if arm.startswith(("before", "donor")) or arm.endswith(", before"):
            continue
        start = preference["|".join([*layer, kind, f"{arm}, before" if arm.startswith("input") else "before"])]
        gone, way = preference[name] - start, preference["|".join([*layer, *target_of(arm, kind)])] - start
        there = ~np.isnan(gone + way)
        if there.any() and abs(mean := way[there].mean()) > SHORTEST:
            ratio = gone[there].mean() / mean
            ends = interval_of_means((ratio + (gone[there] - ratio * way[there]) / mean)[:, None])  # linearised
            found[name] = [float(ratio), *(known(float(one[0])) for one in (ends.low, ends.high))]
    return found


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("model")
    parser.add_argument("--prompts", type=Path, help='JSON lines with a "prompt" each; problems of the lab without')
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--canvases", type=int, default=2, help="of each prompt")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    model = sinkscope.load(given.model, dtype="float32")
    settings, probes = probes_of(model, given)
    by_prompt = []
    for number, of_prompt in enumerate(tqdm(probes)):
        rng = np.random.default_rng(number)
        canvases = [one for probe in of_prompt if (one := measure(model, probe, rng))]
        names = dict.fromkeys(name for one in canvases for name in one)
        by_prompt.append({name: float(np.mean([one[name] for one in canvases if name in one])) for name in names})
    means = estimates([[one] for one in by_prompt])
    shares = {name: [one.mean, one.low, one.high] for name, one in means.items() if not name.startswith("layer")}
    found = {"shares": shares, "follows": follows(by_prompt)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    head = {**made_by(), "model": Path(model.card.name).name, "settings": settings, "prompts": len(by_prompt)}
    given.out.write_text(json.dumps(rounded({**head, **found})) + "\n")
    for what, rows in found.items():
        for name, (mean, low, high) in rows.items():
            if not name.startswith("layer"):
                print(f"{what:9}{name:50}{mean:8.3f} ({low or 0:.3f} to {high or 0:.3f})")


if __name__ == "__main__":
    run_script(main)
