"""The accuracies that paper 1 (arXiv 2510.15731) published, and the runs of ours to which they correspond."""

import re

KS = (0, 1, 5, 10)
TABLE_1 = {
    ("gsm8k", "dream"): ((0.82, 0.01), (0.79, 0.01), (0.78, 0.01), (0.75, 0.01)),
    ("gsm8k", "llada"): ((0.76, 0.01), (0.75, 0.01), (0.73, 0.01), (0.55, 0.01)),
    ("gsm8k", "mmada"): ((0.54, 0.01), (0.53, 0.01), (0.54, 0.01), (0.37, 0.01)),
    ("gsm8k", "llama"): ((0.85, 0.01), (0.02, 0.00), (0.02, 0.00), (0.01, 0.03)),
    ("humaneval", "dream"): ((0.60, 0.03), (0.64, 0.03), (0.61, 0.03), (0.57, 0.03)),
    ("humaneval", "llada"): ((0.37, 0.03), (0.37, 0.03), (0.39, 0.03), (0.35, 0.03)),
    ("humaneval", "mmada"): ((0.16, 0.02), (0.16, 0.03), (0.18, 0.03), (0.09, 0.02)),
    ("humaneval", "llama"): ((0.66, 0.04), (0.00, 0.00), (0.00, 0.00), (0.00, 0.00)),
}
"""Version 2, Table 1: accuracy and standard error with that many (`KS`) of the top sinks hidden."""
_MODELS = {
    "dream": re.compile(r"dream-?(v0)?.*7b", re.I),
    "llada": re.compile(r"llada-8b", re.I),
    "mmada": re.compile(r"mmada-8b", re.I),
    "llama": re.compile(r"llama-3\.1-8b-instruct", re.I),
}
_TASKS = {"gsm8k": "gsm8k", "gsm8k_cot": "gsm8k", "humaneval": "humaneval", "humaneval_instruct": "humaneval"}
_BASES = re.compile(r"base|dream-?coder|moe", re.I)


def published_accuracy(model: str, task: str, hide: str) -> tuple[float, float] | None:
    """Return accuracy and standard error of Table 1 for a model's name, a task and a rule; None where the paper has
    none.

    The paper's rule is ``top:K``. It decides by the columns of the step before for diffusion models and by the last row
    for Llama; another ``observe``, ``decide`` or control is another experiment. The tables do not name variants of
    models. Base models have no published accuracy, nor has a Llama that is not called ``Instruct``.
    """
    name = model.rstrip("/").split("/")[-1]
    kind = next((kind for kind, pattern in _MODELS.items() if pattern.search(name)), None)
    rows = TABLE_1.get((_TASKS.get(task, ""), kind or ""))
    if rows is None or _BASES.search(name):
        return None
    rule = re.fullmatch(r"none|top:(\d+)(@last_row)?", hide)
    if rule is None or (rule[1] is not None and (rule[2] is not None) != (kind == "llama")):
        return None
    k = int(rule[1] or 0)
    return rows[KS.index(k)] if k in KS else None
