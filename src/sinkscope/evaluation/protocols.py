"""The settings under which published models were evaluated, and which of them are assumed; the call's override them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkscope.errors import CallError

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Protocol:
    """The published settings of one kind of checkpoint (`variant_of`) on one task; ``published``: accuracy, 0…1."""

    family: str
    variant: str
    task: str
    name: str
    shots: int
    chat: bool
    settings: Mapping[str, Any] = field(hash=False)
    source: str
    published: float | None = None

    def line(self) -> str:
        settings = ", ".join(f"{key} {value}" for key, value in self.settings.items())
        chat = "chat template" if self.chat else "raw text"
        published = "" if self.published is None else f"; published {100 * self.published:.1f} %"
        return f"{self.task}: {self.name} ({self.shots} shots, {chat}, {settings}{published}); source: {self.source}"


def _blocks(length: int, block: int, **more: Any) -> dict[str, Any]:
    return {"length": length, "steps": length, "block": block, "temperature": 0.0, **more}


def _dream(length: int, temperature: float, top_p: float) -> dict[str, Any]:
    return {"length": length, "steps": length, "algorithm": "entropy", "temperature": temperature, "top_p": top_p}


_EVAL = "ML-GSAI/LLaDA, EVAL.md"
_LATE_EOS = {"confidence_eos_eot_inf": True}
_DREAM = "DreamLM/Dream, eval"
_UNCUT = "; its answers are not cut at lm-eval's stop strings but cleaned by a script, ours are cut"
_DREAM_CODER = "DreamLM/Dream-Coder, base/eval_code_base.sh (which begins prompts with EOS; ours do not)"
_DREAM_CODER_DEMO = "DreamLM/Dream-Coder, README (its own evaluation cleans answers by a script)"
_DIFFUCODER = "apple/ml-diffucoder, README and inference_demo.py (settings of its examples; none are given for a task)"
_MMADA = (
    "Gen-Verse/MMaDA; others measured 40 to 54 %; temperature 0 (its own example samples at 1) "
    "and the chat template are assumed"
)
_PAPER1 = "arXiv 2510.15731, appendix; steps = length, lm-eval's shots and, for GSM8K, the chat template are assumed"
_LLAMA = "Llama 3.1 evaluation details; greedy, length assumed"
_PAPER2 = "arXiv 2601.19657 and skywalker0523/OneTokenIsEnough; without shots"
_FAST = "NVlabs/Fast-dLLM, llada/eval_{}.sh and README, without a cache; {}"
_FAST_GSM8K = _FAST.format("gsm8k", "its chat is one turn with all shots, ours a pair of turns a shot")
_FAST_HUMANEVAL = _FAST.format("humaneval", _UNCUT.removeprefix("; "))
_INSTRUCT = f"{_EVAL} (their own toolkit; OpenCompass gives nearly the same); shots and prompt assumed to be lm-eval's"
_GREEDY = {"length": 512, "temperature": 0.0}
_ASSUMED = "not published; LLaDA's of arXiv 2510.15731 is assumed"
_TWO_PASSES = _blocks(256, 256) | {"temperature": 0.1}


def _likelihood(task: str, method: str, guidance: float, said: str = "") -> tuple[Any, ...]:
    settings = {"method": method, "samples": 1024, "guidance": guidance}
    return task, "paper2", 0, False, settings, _PAPER2 + said


_PUBLISHED: dict[tuple[str, str], list[tuple[Any, ...]]] = {
    ("llada", "base"): [
        ("gsm8k", "authors", 5, False, _blocks(1024, 1024), _EVAL, 0.703),
        ("humaneval", "authors", 0, False, _blocks(1024, 1024), _EVAL, 0.354),
    ],
    ("llada", "instruct"): [
        ("gsm8k", "paper1", 5, True, _blocks(256, 32), _PAPER1, 0.76),
        ("humaneval", "paper1", 0, False, _blocks(512, 32), _PAPER1, 0.37),
        ("gsm8k", "authors", 5, True, _blocks(512, 512, **_LATE_EOS), _INSTRUCT, 0.694),
        ("humaneval_instruct", "authors", 0, True, _blocks(512, 512, logits_eos_inf=True), _INSTRUCT, 0.494),
        ("gsm8k", "semi-autoregressive", 5, True, _blocks(256, 8), _INSTRUCT, 0.786),
        ("gsm8k", "fast-dllm", 5, True, _blocks(256, 32), _FAST_GSM8K, 0.793),
        ("gsm8k", "fast-dllm-512", 5, True, _blocks(512, 32), _FAST_GSM8K, 0.775),
        ("humaneval", "fast-dllm", 0, True, _blocks(256, 32), _FAST_HUMANEVAL, 0.415),
        ("humaneval", "fast-dllm-512", 0, True, _blocks(512, 32), _FAST_HUMANEVAL, 0.439),
    ],
    ("llada", "1.5"): [
        ("gsm8k", "authors", 5, True, _blocks(256, 16, **_LATE_EOS), _INSTRUCT, 0.838),
        ("humaneval_instruct", "authors", 0, True, _blocks(512, 32, **_LATE_EOS), _INSTRUCT, 0.524),
    ],
    ("mmada", "mixcot"): [
        ("gsm8k", "authors", 5, True, _blocks(256, 64), _MMADA, 0.734),
        ("humaneval", "paper1", 0, False, _blocks(512, 32), _ASSUMED, 0.16),
    ],
    ("dream", "base"): [
        ("gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM, 0.772),
        ("humaneval", "authors", 0, False, _dream(512, 0.2, 0.95), _DREAM + _UNCUT, 0.579),
    ],
    ("dream", "instruct"): [
        ("gsm8k_cot", "authors", 0, True, _dream(256, 0.1, 0.9), _DREAM + "_instruct", 0.81),
        ("humaneval_instruct", "authors", 0, True, _dream(768, 0.1, 0.9), _DREAM + "_instruct", 0.555),
    ],
    ("dream", "coder-base"): [
        ("humaneval", "authors", 0, False, _dream(512, 0.2, 0.9), _DREAM_CODER),
        ("gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM_CODER),
    ],
    ("dream", "coder-instruct"): [
        ("humaneval_instruct", "authors", 0, True, _dream(768, 0.1, 0.95), _DREAM_CODER_DEMO),
    ],
    ("dream", "diffucoder-base"): [("humaneval", "authors", 0, False, _dream(256, 0.2, 0.95), _DIFFUCODER)],
    ("dream", "diffucoder-instruct"): [
        ("humaneval_instruct", "authors", 0, True, _dream(256, 0.3, 0.95), _DIFFUCODER),
    ],
    ("llama", "instruct"): [
        ("gsm8k_cot", "authors", 8, True, _GREEDY, _LLAMA, 0.845),
        ("humaneval_instruct", "authors", 0, True, _GREEDY, _LLAMA, 0.726),
    ],
    ("smdm", ""): [
        _likelihood("arc_easy", "monte_carlo", 0.6),
        _likelihood("arc_challenge", "monte_carlo", 0.6, "; not stated for ARC-c, ARC-e's are assumed"),
        _likelihood("hellaswag", "monte_carlo", 0.7),
        _likelihood("piqa", "chain_rule", 0.6),
        _likelihood("race", "monte_carlo", 0.7),
        _likelihood("social_iqa", "monte_carlo", 0.6),
        _likelihood("lambada", "chain_rule", 1.1),
        ("gsm8k_two_pass", "paper2", 0, False, _TWO_PASSES, _PAPER2),
    ],
}
PROTOCOLS = tuple(Protocol(*kind, *row) for kind, rows in _PUBLISHED.items() for row in rows)


def variant_of(family: str, model: str) -> str:
    """Return ``base``, ``instruct``, ``1.5``, ``mixcot`` or ``coder-base`` …, from a model's name, else an empty text."""
    name = model.rstrip("/").split("/")[-1].lower()
    coder = "diffucoder" if "diffucoder" in name else "coder" if "dream-coder" in name else ""
    if family == "dream" and coder:
        return f"{coder}-{'base' if 'base' in name else 'instruct'}"
    if family == "llada" and "1.5" in name:
        return "1.5"
    return next((variant for variant in ("mixcot", "instruct", "base") if variant in name), "")


def find_protocol(family: str, model: str, task: str, wanted: str = AUTO) -> Protocol | None:
    """Return the protocol of a model on a task: of that name, with ``auto`` the first one, None where there is none."""
    kind = (family, variant_of(family, model), task)
    found = {one.name: one for one in PROTOCOLS if (one.family, one.variant, one.task) == kind}
    if wanted in (AUTO, NONE):
        return next(iter(found.values()), None) if wanted == AUTO else None
    if wanted not in found:
        names = ", ".join([AUTO, NONE, *found])
        raise CallError(f"protocol: {model} has no protocol {wanted!r} for {task}; expected one of {names}")
    return found[wanted]
