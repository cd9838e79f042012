"""Protocols: the settings under which published models were evaluated, one frozen `Protocol` each.

A protocol applies to published tasks only, and to models that are recognised by family and name. Its source says which
settings are assumed, where the publication does not state them. Settings of the call override it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkscope.errors import CallError
from sinkscope.evaluation.tasks import PUBLISHED

AUTO, NONE = "auto", "none"


@dataclass(frozen=True)
class Protocol:
    """The published settings of one kind of checkpoint on one task.

    Attributes:
        family, variant: of the models it is for; see `variant_of`.
        task: name of the task.
        name: distinguishes protocols for the same models and task; the first of them is the default.
        shots: examples in the prompt.
        chat: whether the prompt goes through the chat template, each shot as a pair of turns.
        settings: of the sampler.
        source: where it was published, and which settings are assumed.
        published: accuracy that the source reports, 0…1.
    """

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
        """Return the protocol as one line of text."""
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
_FAST_PROMPTS = {
    "gsm8k": "its chat is one turn with all shots, ours a pair of turns a shot",
    "humaneval": "its answers are not cut at lm-eval's stop strings but cleaned by a script, ours are cut",
}
_INSTRUCT = " (their own toolkit; OpenCompass gives nearly the same); shots and prompt assumed to be lm-eval's"

PROTOCOLS = (
    Protocol("llada", "base", "gsm8k", "authors", 5, False, _blocks(1024, 1024), _EVAL, 0.703),
    Protocol("llada", "base", "humaneval", "authors", 0, False, _blocks(1024, 1024), _EVAL, 0.354),
    Protocol("llada", "instruct", "gsm8k", "paper1", 5, True, _blocks(256, 32), _PAPER1, 0.76),
    Protocol("llada", "instruct", "humaneval", "paper1", 0, False, _blocks(512, 32), _PAPER1, 0.37),
    Protocol(
        "llada", "instruct", "gsm8k", "authors", 5, True, _blocks(512, 512, **_LATE_EOS), _EVAL + _INSTRUCT, 0.694
    ),
    Protocol(
        "llada",
        "instruct",
        "humaneval_instruct",
        "authors",
        0,
        True,
        _blocks(512, 512, logits_eos_inf=True),
        _EVAL + _INSTRUCT,
        0.494,
    ),
    Protocol("llada", "instruct", "gsm8k", "semi-autoregressive", 5, True, _blocks(256, 8), _EVAL + _INSTRUCT, 0.786),
    *(
        Protocol(
            "llada",
            "instruct",
            task,
            name,
            shots,
            chat,
            _blocks(length, 32),
            _FAST.format(task, _FAST_PROMPTS[task]),
            published,
        )
        for task, shots, chat, name, length, published in (
            ("gsm8k", 5, True, "fast-dllm", 256, 0.793),
            ("gsm8k", 5, True, "fast-dllm-512", 512, 0.775),
            ("humaneval", 0, True, "fast-dllm", 256, 0.415),
            ("humaneval", 0, True, "fast-dllm-512", 512, 0.439),
        )
    ),
    Protocol("llada", "1.5", "gsm8k", "authors", 5, True, _blocks(256, 16, **_LATE_EOS), _EVAL + _INSTRUCT, 0.838),
    Protocol(
        "llada",
        "1.5",
        "humaneval_instruct",
        "authors",
        0,
        True,
        _blocks(512, 32, **_LATE_EOS),
        _EVAL + _INSTRUCT,
        0.524,
    ),
    Protocol("mmada", "mixcot", "gsm8k", "authors", 5, True, _blocks(256, 64), _MMADA, 0.734),
    Protocol(
        "mmada",
        "mixcot",
        "humaneval",
        "paper1",
        0,
        False,
        _blocks(512, 32),
        "not published; LLaDA's of arXiv 2510.15731 is assumed",
        0.16,
    ),
    Protocol("dream", "base", "gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM, 0.772),
    Protocol("dream", "base", "humaneval", "authors", 0, False, _dream(512, 0.2, 0.95), _DREAM + _UNCUT, 0.579),
    Protocol("dream", "instruct", "gsm8k_cot", "authors", 0, True, _dream(256, 0.1, 0.9), _DREAM + "_instruct", 0.81),
    Protocol(
        "dream",
        "instruct",
        "humaneval_instruct",
        "authors",
        0,
        True,
        _dream(768, 0.1, 0.9),
        _DREAM + "_instruct",
        0.555,
    ),
    Protocol("dream", "coder-base", "humaneval", "authors", 0, False, _dream(512, 0.2, 0.9), _DREAM_CODER),
    Protocol("dream", "coder-base", "gsm8k_cot", "authors", 8, False, _dream(256, 0.0, 0.95), _DREAM_CODER),
    Protocol(
        "dream", "coder-instruct", "humaneval_instruct", "authors", 0, True, _dream(768, 0.1, 0.95), _DREAM_CODER_DEMO
    ),
    Protocol("dream", "diffucoder-base", "humaneval", "authors", 0, False, _dream(256, 0.2, 0.95), _DIFFUCODER),
    Protocol(
        "dream", "diffucoder-instruct", "humaneval_instruct", "authors", 0, True, _dream(256, 0.3, 0.95), _DIFFUCODER
    ),
    Protocol("llama", "instruct", "gsm8k_cot", "authors", 8, True, {"length": 512, "temperature": 0.0}, _LLAMA, 0.845),
    Protocol(
        "llama",
        "instruct",
        "humaneval_instruct",
        "authors",
        0,
        True,
        {"length": 512, "temperature": 0.0},
        _LLAMA,
        0.726,
    ),
    *(
        Protocol(
            "smdm",
            "",
            task,
            "paper2",
            0,
            False,
            {"method": method, "samples": 1024, "guidance": guidance},
            _PAPER2 + said,
        )
        for task, method, guidance, said in (
            ("arc_easy", "monte_carlo", 0.6, ""),
            ("arc_challenge", "monte_carlo", 0.6, "; not stated for ARC-c, ARC-e's are assumed"),
            ("hellaswag", "monte_carlo", 0.7, ""),
            ("piqa", "chain_rule", 0.6, ""),
            ("race", "monte_carlo", 0.7, ""),
            ("social_iqa", "monte_carlo", 0.6, ""),
            ("lambada", "chain_rule", 1.1, ""),
        )
    ),
    Protocol("smdm", "", "gsm8k_two_pass", "paper2", 0, False, _blocks(256, 256) | {"temperature": 0.1}, _PAPER2),
)


def variant_of(family: str, model: str) -> str:
    """Return ``base``, ``instruct``, ``1.5`` or ``mixcot``, from the last part of a model's name; an empty text where
    it names none.

    Dream's code models have names of their own (``coder-base``, ``diffucoder-instruct``), because their settings are
    others.
    """
    name = model.rstrip("/").split("/")[-1].lower()
    coder = "diffucoder" if "diffucoder" in name else "coder" if "dream-coder" in name else ""
    if family == "dream" and coder:
        return f"{coder}-{'base' if 'base' in name else 'instruct'}"
    if family == "llada" and "1.5" in name:
        return "1.5"
    return next((variant for variant in ("mixcot", "instruct", "base") if variant in name), "")


def find_protocol(family: str, model: str, task: str, wanted: str = AUTO) -> Protocol | None:
    """Return the protocol of a model on a task; None for the lab's tasks, for models without one, and for ``none``.

    Args:
        family, model: of the card.
        task: of `find_task`.
        wanted: ``auto`` for the first one, ``none``, or a name.

    Raises:
        CallError: a name that is no protocol of this model for the task.
    """
    if wanted == NONE:
        return None
    variant = variant_of(family, model)
    found = [one for one in PROTOCOLS if (one.family, one.variant, one.task) == (family, variant, task)]
    if wanted == AUTO:
        return found[0] if found else None
    known = sorted({one.name for one in PROTOCOLS})
    if task not in PUBLISHED and wanted in known:
        return None
    for one in found:
        if one.name == wanted:
            return one
    names = ", ".join([AUTO, NONE, *(one.name for one in found)])
    raise CallError(f"protocol: {model} has no protocol {wanted!r} for {task}; expected one of {names}")
