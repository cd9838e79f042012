"""The families: LLaDA, MMaDA, Dream, and causal Llama or Qwen2; and which of them claims a config.json."""

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.family import Family, Protocol, PublishedShape, SpecialTokens
from sinkscope.models.layouts import MARK, MMADA_KEYS

_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def _header_template(newlines: str) -> str:
    """Llama 3's turns as LLaDA and MMaDA write them; they differ in the newlines behind a header."""
    turn = "<|start_header_id|>{{ message['role'] }}<|end_header_id|>" + newlines + "{{ message['content'] | trim }}<|eot_id|>"
    opening = "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>" + newlines + "{% endif %}"
    return "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}" + turn + "{% endfor %}" + opening


_CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _blocks(length: int, block: int, **more: Any) -> dict[str, Any]:
    return {"length": length, "steps": length, "block": block, "temperature": 0.0, **more}


def _whole(length: int, temperature: float, top_p: float) -> dict[str, Any]:
    return {"length": length, "steps": length, "temperature": temperature, "top_p": top_p, "algorithm": "entropy"}


_PAPER_1 = "arXiv 2510.15731, Table 1 (steps, shots and the HumanEval prompt are not stated)"
_LLADA_EVAL = "ML-GSAI/LLaDA, EVAL.md"
_LLADA_EXAMPLES = "ML-GSAI/LLaDA, opencompass/examples"
_DREAM_EVAL = "DreamLM/Dream, eval/eval_dream_gen.sh"
_DREAM_INSTRUCT_EVAL = "DreamLM/Dream, eval_instruct/eval.sh"

LLADA = Family(
    "llada",
    causal=False,
    sampler="llada",
    recognised=("llada", "llama"),
    source="ML-GSAI/LLaDA, generate.py",
    architectures=("LLaDAModelLM",),
    tokens=SpecialTokens(mask=126336, eos=126081, pad=126081, bos=126080, end_of_turn=126348, mask_text="<|mdm_mask|>"),
    chat_template=_header_template("\n\n"),
    chat_tokens=_HEADERS,
    sampling=_blocks(128, 128, guidance=0.0, remasking="low_confidence"),
    shapes=(
        PublishedShape(
            ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"), 8_015_581_184, 32, 4096, vocabulary=126464
        ),
    ),
    protocols=(
        Protocol("LLaDA-8B-Base", "gsm8k", 5, _blocks(1024, 1024), 70.3, _LLADA_EVAL),
        Protocol("LLaDA-8B-Base", "humaneval", 0, _blocks(1024, 1024), 35.4, _LLADA_EVAL),
        Protocol("LLaDA-8B-Instruct", "gsm8k", None, _blocks(256, 32), 76.0, _PAPER_1),
        Protocol("LLaDA-8B-Instruct", "humaneval", None, _blocks(512, 32), 37.0, _PAPER_1),
        Protocol("LLaDA-8B-Instruct", "gsm8k (OpenCompass)", None, _blocks(512, 512, confidence_eos_eot_inf=True), 69.4, _LLADA_EVAL),
        Protocol("LLaDA-8B-Instruct", "humaneval (OpenCompass)", None, _blocks(512, 512, logits_eos_inf=True), 49.4, _LLADA_EVAL),
        Protocol("LLaDA-8B-Instruct", "gsm8k (semi-autoregressive)", None, _blocks(256, 8), 78.6, _LLADA_EVAL),
        Protocol("LLaDA-8B-Instruct", "humaneval (semi-autoregressive)", None, _blocks(512, 32), None, _LLADA_EXAMPLES),
        Protocol("LLaDA-1.5", "gsm8k", None, _blocks(256, 16, confidence_eos_eot_inf=True), 83.8, _LLADA_EVAL),
        Protocol("LLaDA-1.5", "humaneval", None, _blocks(512, 32, confidence_eos_eot_inf=True), 52.4, _LLADA_EVAL),
    ),
)

MMADA = Family(
    "mmada",
    causal=False,
    sampler="mmada",
    recognised=("mmada",),
    source="Gen-Verse/MMaDA, generate.py",
    architectures=("MMadaModelLM",),
    tokens=SpecialTokens(mask=126336, eos=126081, pad=126081, bos=126080, end_of_turn=126348, mask_text="<|mdm_mask|>"),
    chat_template=_header_template("\n"),
    chat_tokens=_HEADERS,
    sampling={"length": 128, "steps": 128, "block": 128, "temperature": 0.0, "guidance": 0.0, "remasking": "low_confidence"},
    shapes=(PublishedShape(("Gen-Verse/MMaDA-8B-Base", "Gen-Verse/MMaDA-8B-MixCoT"), 8_082_690_048, 32, 4096, vocabulary=134656),),
    protocols=(
        Protocol("MMaDA-8B-MixCoT", "gsm8k", 5, _blocks(256, 64), 73.4, "Gen-Verse/MMaDA (others measured 40–54: issues 29, 36, 40)"),
        Protocol("MMaDA-8B", "gsm8k", None, {}, 54.0, "arXiv 2510.15731, Table 1 (settings are not stated)"),
    ),
)

DREAM = Family(
    "dream",
    causal=False,
    sampler="dream",
    recognised=("Dream",),
    source="DreamLM/Dream, generation_utils.py",
    shift=True,
    architectures=("DreamModel",),
    tokens=SpecialTokens(mask=151666, eos=151643, pad=151643, end_of_turn=151645, mask_text="<|mask|>"),
    chat_template=_CHATML,
    chat_tokens=("<|im_start|>", "<|im_end|>"),
    sampling={"steps": 512, "temperature": 0.0, "algorithm": "origin", "eps": 1e-3},
    shapes=(PublishedShape(("Dream-org/Dream-v0-Base-7B", "Dream-org/Dream-v0-Instruct-7B"), 7_615_616_512, 28, 3584, vocabulary=152064),),
    protocols=(
        Protocol("Dream-v0-Base-7B", "gsm8k_cot", 8, _whole(256, 0.0, 0.95), 77.2, _DREAM_EVAL),
        Protocol("Dream-v0-Base-7B", "humaneval", 0, _whole(512, 0.2, 0.95), 57.9, _DREAM_EVAL),
        Protocol("Dream-v0-Instruct-7B", "gsm8k_cot", 0, _whole(256, 0.1, 0.9), 81.0, _DREAM_INSTRUCT_EVAL),
        Protocol("Dream-v0-Instruct-7B", "humaneval_instruct", 0, _whole(768, 0.1, 0.9), 55.5, _DREAM_INSTRUCT_EVAL),
    ),
)

LLAMA = Family(
    "llama",
    causal=True,
    sampler="autoregressive",
    recognised=("llama", "qwen2"),
    source="transformers, LlamaForCausalLM",
    tokens=SpecialTokens(eos=128001, bos=128000, end_of_turn=128009),
    sampling={"temperature": 0.0, "top_p": 1.0, "top_k": 0},
    shapes=(PublishedShape(("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"), 8_030_261_248, 32, 4096, vocabulary=128256),),
    protocols=(
        Protocol("Llama-3.1-8B-Instruct", "gsm8k_cot", 8, {"temperature": 0.0}, 84.5, "Llama 3.1 model card"),
        Protocol("Llama-3.1-8B-Instruct", "humaneval", 0, {"temperature": 0.0}, 72.6, "Llama 3.1 model card"),
    ),
)

FAMILIES = (LLADA, MMADA, DREAM, LLAMA)


def recognise(config: Mapping[str, Any], where: str) -> Family:
    """The family of a ``config.json``.

    Raises:
        ModelError: no family claims it.
    """
    if config.get("quantization_config") is not None:
        raise ModelError(f"{where}: expected plain weights, found quantization_config in its config.json; convert them to bf16 first")
    model_type = config.get("model_type")
    if model_type in ("llama", "qwen2"):
        return _stock(config, where)
    for family in (LLADA, MMADA, DREAM):
        if model_type in family.recognised:
            return _published(family, config, where)
    code = " Its config.json names remote code (auto_map), which sinkscope never runs." if "auto_map" in config else ""
    raise ModelError(
        f"{where}: config.json: expected model_type llada, mmada, Dream, llama or qwen2 (causal), or one of the last two with "
        f"is_causal false and a mask_token_id; found model_type {model_type!r}, is_causal {config.get('is_causal', True)}, "
        f"architectures {config.get('architectures')}.{code}"
    )


def _published(family: Family, config: Mapping[str, Any], where: str) -> Family:
    """MMaDA is LLaDA with image codes behind the text: known by its class, its keys or its vocabulary."""
    found = config.get("architectures") or []
    rows = {config.get("embedding_size"), config.get("vocab_size"), config.get("new_vocab_size")}
    image_codes = MMADA.shapes[0].vocabulary in rows or MMADA_KEYS & set(config)
    if family is LLADA and (image_codes or found == list(MMADA.architectures)):
        family = MMADA
    allowed = {*family.architectures, *(LLADA.architectures if family is MMADA else ())}
    if not set(found) <= allowed:
        raise ModelError(
            f"{where}: config.json: expected architectures {sorted(allowed)} for model_type {config['model_type']!r}, "
            f"found {found}; that network is another one, and sinkscope never runs remote code"
        )
    return family


def _stock(config: Mapping[str, Any], where: str) -> Family:
    """Folders in transformers' own layout: causal models, the lab's, and families that were saved again."""
    model_type, causal = config["model_type"], config.get("is_causal", True)
    if not isinstance(causal, bool):
        raise ModelError(f"{where}: is_causal in config.json is true or false, found {causal!r}")
    if causal:
        return LLAMA
    known = {family.name: family for family in FAMILIES if not family.causal}
    name = config.get(MARK, LLADA.name if model_type == "llama" else None)
    if name not in known:
        raise ModelError(
            f"{where}: config.json: expected {MARK} to be one of {', '.join(known)} in a bidirectional {model_type}, found {name!r}; "
            f"found model_type {model_type!r}, is_causal {causal}"
        )
    if not isinstance(config.get("mask_token_id"), int):
        raise ModelError(f"{where}: a bidirectional model needs mask_token_id in its config.json, found {config.get('mask_token_id')!r}")
    return known[name]
