"""The tables of docs/hiding.md, printed from results/hiding/*.json; nothing is computed anew.

Command   python experiments/hiding_page.py [results/hiding]
"""

import json
import sys
from pathlib import Path
from typing import Any


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |")


def head(*cells: str) -> None:
    line(*cells)
    print("|---" * len(cells) + "|")


def span(interval: list[float], digits: int = 2) -> str:
    return f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def points(row: dict[str, Any]) -> str:
    return f"{100 * row['mean']:+.1f} ({100 * row['low']:+.1f} to {100 * row['high']:+.1f}), p = {row['p_value']:.2g}"


def show_probe(document: dict[str, Any]) -> None:
    found = f"{document['problems']} problems, {document['settings']['shots']} shots"
    print(f"\n### Single tokens, lab-diffusion, {found}\n")
    means = document["top_keys"]["mean"]
    print(", ".join(f"{name} {value:.3f}" for name, value in means.items()) + "\n")
    head("hidden", "results kept", "other tokens kept", "attention removed")
    for name, cell in document["cells"].items():
        kept = f"{cell['kept']:.2f} ({span(cell['kept_interval'])})"
        line(name, kept, f"{cell['others_kept']:.2f} ({span(cell['others_kept_interval'])})", f"{cell['removed_share']:.1%}")
    for name, row in document["halves"].items():
        print(f"\nlarger minus smaller {name}: {row['difference']:+.3f} ({span(row['interval'], 3)})")
    if document["spared"]:
        print("\nspared:", json.dumps(document["spared"]))


def show_last_row(document: dict[str, Any]) -> None:
    print(f"\n### Single tokens, lab-autoregressive, {document['problems']} problems, {document['shots']} shots\n")
    head("hidden", "tokens kept", "answers kept whole", "attention removed", "share of the loss")
    for name, cell in document["arms"].items():
        kept = f"{cell['kept']:.3f} ({span(cell['kept_interval'], 3)})"
        line(name, kept, f"{cell['whole_answer_kept']:.2f}", f"{cell['removed_share']:.1%}", f"{cell['share_of_the_loss']:.2f}")
    print("\n" + ", ".join(f"{name} {value:.3f}" for name, value in document["keys"].items()))


def show_arms(document: dict[str, Any]) -> None:
    for model, found in document["models"].items():
        print(f"\n### Whole answers, {model}, {found['problems']} problems, {found['settings']['shots']} shots, {found['dtype']}\n")
        head("hidden", "accuracy", "change, points", "removed", "hit rate")
        for rule, arm in found["arms"].items():
            change = points(arm["change"]) if "change" in arm else ""
            removed = "" if arm["removed_share"] is None else f"{arm['removed_share']:.1%}"
            line(
                rule,
                f"{arm['accuracy']:.2f} ({span(arm['interval'])})",
                change,
                removed,
                "" if arm["hit_rate"] is None else f"{arm['hit_rate']:.2f}",
            )
        print()
        for row in found["pairs"]:
            print(f"* {row['arm']} minus {', '.join(row['against'])}: {points(row)}")


def show_order(document: dict[str, Any]) -> None:
    print(f"\n### Order of commitment, {document['problems']} problems, {document['shots']} shots\n")
    head("order", "nothing hidden", "top:1", "random:1", "loss by top:1", "beyond the own order's")
    for arm, loss in document["loss"].items():
        cells = [f"{document['accuracy'][f'{arm}, {rule}']['mean']:.2f}" for rule in ("none", "top:1", "random:1@seed=0")]
        beyond = document["loss_beyond_own_order"].get(arm)
        more = "" if beyond is None else f"{beyond['mean']:+.2f} ({span(beyond['interval'])})"
        line(arm, *cells, f"{loss['top:1']['mean']:+.2f} ({span(loss['top:1']['interval'])})", more)
    for name, row in document["reliance"].items():
        told = f"{row['mean']:+.3f} ({span(row['interval'], 3)}), n = {row['n']}"
        print(f"\nSpearman, attention to the hidden key with change of {name}: {told}")


def show_long(document: dict[str, Any]) -> None:
    for model, found in document["models"].items():
        print(f"\n### Long context, {model}, {found['problems']} problems, {document['shots']} shots, {found['dtype']}\n")
        head("hidden", "accuracy", "against", "difference, points", "removed")
        for arm, row in found["arms"].items():
            difference = points(row) if "mean" in row else ""
            line(arm, f"{row['accuracy']:.2f} ({span(row['interval'])})", row.get("against", ""), difference, f"{row['removed_share']:.1%}")


SHOW = {
    "why_hiding_hurts": show_probe,
    "why_last_row_hurts": show_last_row,
    "hiding_arms": show_arms,
    "commit_order": show_order,
    "long_context": show_long,
}


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "results/hiding")
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text())
        SHOW.get(document["experiment"], lambda _: None)(document)


if __name__ == "__main__":
    main()
