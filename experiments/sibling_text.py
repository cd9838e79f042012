"""How well smollm2-diffusion writes and predicts, beside written solutions and beside its causal network.

Claim     It writes English, and half masked it predicts text no worse than the causal network does.
Command   python experiments/sibling_text.py --texts gsm8k-test.jsonl
Cost      five minutes of a CPU core.
Expected  distinct-2 over .6, below 4 nats a token under SmolLM2, and half masked at most the causal network's nats.
Found     See results/adaptation/text.json.

The file holds problems that the model was not trained on, as {"text": "Question: … Answer: …"}. Losses are of 64 windows
of 128 tokens, once cut anywhere, as in its training, once from the beginning of a problem. Answers are sampled with
Dream's own schedule, a token a step.
"""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _settings import Arguments, run_script
from _windows import cut_anywhere

import sinkscope
from sinkscope.evaluation.text_likelihood import read_texts, text_likelihood
from sinkscope.lab.run_folder import read_recipe
from sinkscope.lab.starting_network import held_out_losses
from sinkscope.models.folders import find_folder

FILE = Path(__file__).parents[1] / "results" / "adaptation" / "text.json"
NAME, LENGTH = "smollm2-diffusion", 64
WINDOWS, WIDTH = 64, 128
HOW = {"length": LENGTH, "steps": LENGTH, "algorithm": "origin", "temperature": 0.8, "top_p": 0.9, "seed": 0}


def distinct_2(tokens: Sequence[int]) -> float:
    """Return the share of different ones among the pairs of neighbouring tokens."""
    pairs = list(itertools.pairwise(tokens))
    return len({*pairs}) / max(1, len(pairs))


def judge(causal: Any, questions: Sequence[str], answers: Sequence[str]) -> dict[str, Any]:
    """Return the distinct-2 of answers, and their nats a token under a causal model, behind their questions."""
    rows = []
    for question, answer in zip(questions, answers, strict=True):
        context = len(causal.tokenize(question))
        cut = {"context": context, "answer": len(causal.tokenize(question + answer)) - context}
        nats = text_likelihood(causal, [question + answer], [], **cut)["rows"][0]["nats"]
        rows.append({"text": answer, "tokens": cut["answer"], "nats": round(nats, 4)})
        rows[-1]["distinct-2"] = round(distinct_2(causal.tokenizer(answer).input_ids), 4)
    total = sum(one["tokens"] for one in rows)
    return {
        "distinct-2": round(sum(one["distinct-2"] for one in rows) / len(rows), 3),
        "nats": round(sum(one["nats"] * one["tokens"] for one in rows) / total, 3),
        "answers": rows,
    }


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=12)
    given = parser.parse_args()
    model, causal = (sinkscope.load(name, dtype=torch.float32) for name in (NAME, "smollm2"))
    recipe, texts = read_recipe(find_folder(NAME)), read_texts(given.texts)
    alone = (cut_anywhere(model.tokenizer, [text], 1, WIDTH) for text in texts)
    windows = {
        "cut anywhere": cut_anywhere(model.tokenizer, texts, WINDOWS, WIDTH).numpy(),
        "from the beginning": [one[0].numpy() for one in alone if len(one)][:WINDOWS],
    }
    found: dict[str, Any] = {name: held_out_losses(model.network, recipe, rows) for name, rows in windows.items()}
    print(found, flush=True)
    texts = [text.partition("Answer:") for text in texts[: given.answers]]
    questions = [question + mark for question, mark, _ in texts]
    written = [sinkscope.generate(model, question, **HOW).text for question in questions]
    solutions = [
        causal.decode(causal.tokenizer(solution).input_ids[:LENGTH]) for _, _, solution in texts
    ]  # as long as the answers
    for name, answers in (("written by the model", written), ("written solutions", solutions)):
        found[name] = judge(causal, questions, answers)
        print(name, found[name]["distinct-2"], found[name]["nats"], flush=True)
    FILE.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    run_script(main)
