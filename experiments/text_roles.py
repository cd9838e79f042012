"""What the sinks of the models on text do, along their training, and how they move while a text is written.

Command   python experiments/text_roles.py RUN --data CORPUS --updates 3000 20000 --out results/emergence/roles-autoregressive.json
          RUN is a folder of `sinkscope train lab-text-autoregressive` or `lab-text-diffusion`; CORPUS its text.
Cost      2 to 4 minutes on a core for each update.
Rules     Those of `sinkscope roles`, on 24 held-out windows as `sinkscope watch-training` measures them; even windows choose the heads, odd
          ones judge. Movement is that of main sinks while a diffusion model writes 64 tokens behind 128 of a held-out window, one a step,
          beside the same with the steps shuffled.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _settings import Arguments, made_by, run_script
from text_knobs import WINDOWS, movement

from sinkscope.emergence import hold_out
from sinkscope.lab.corpus import Corpus, open_corpus
from sinkscope.lab.snapshots import TrainingRun, held_out_rows, network_at, open_run
from sinkscope.lab.starting_network import choose_tokenizer
from sinkscope.models.in_memory import model_of
from sinkscope.roles import ROLES, find_roles_on

TOLD = ("share", "norm_ratio", "kl.sink.zero", "kl.sink", "kl.rowmass", "kl.rowmass.zero", "kl.random")


def at_update(run: TrainingRun, update: int, corpus: Corpus) -> dict[str, Any]:
    """Return the roles of all heads with a lasting sink after an update, and the movement of the main sinks."""
    tokenizer = choose_tokenizer(run.recipe, corpus)
    model = model_of(network_at(run, update, tokenizer), tokenizer, name=run.recipe.name)
    rows, predictable = held_out_rows(run.recipe, tokenizer, corpus, WINDOWS)
    mask_id = None if run.recipe.objective == "next_token" else tokenizer.mask_token_id
    found = find_roles_on(model, [one.probe for one in hold_out(rows, predictable, mask_id=mask_id)])
    heads = [
        {
            "layer": one.layer,
            "head": one.head,
            "role": one.role,
            "reason": one.reason,
            "token": one.token,
            "removable": one.removable,
            **{name: known.mean for name in TOLD if (known := one.measured.get(name)) is not None},
        }
        for one in found.heads
    ]
    counts = {role: found.count(role) for role in ROLES}
    return {"update": update, "counts": counts, "heads": heads} | ({} if mask_id is None else movement(model, rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the updates asked for, and write them."""
    parser = Arguments(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--updates", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    run, corpus = open_run(given.run), open_corpus(given.data)
    moments = []
    for update in given.updates:
        moments.append(at_update(run, update, corpus))
        print(update, moments[-1]["counts"], flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    document = {**made_by(), "recipe": run.recipe.name, "windows": WINDOWS, "moments": moments}
    given.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run_script(main)
