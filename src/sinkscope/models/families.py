"""The families: LLaDA, MMaDA, Dream, and causal Llama or Qwen2; and which of them claims a config.json."""

from collections.abc import Mapping
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.family import Family, PublishedShape, SpecialTokens
from sinkscope.models.layouts import MARK, MARK_POSITIONS, MMADA_KEYS

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
    shapes=(
        PublishedShape(
            ("GSAI-ML/LLaDA-8B-Base", "GSAI-ML/LLaDA-8B-Instruct", "GSAI-ML/LLaDA-1.5"), 8_015_581_184, 32, 4096, vocabulary=126464
        ),
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
    shapes=(PublishedShape(("Gen-Verse/MMaDA-8B-Base", "Gen-Verse/MMaDA-8B-MixCoT"), 8_082_690_048, 32, 4096, vocabulary=134656),),
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
    shapes=(PublishedShape(("Dream-org/Dream-v0-Base-7B", "Dream-org/Dream-v0-Instruct-7B"), 7_615_616_512, 28, 3584, vocabulary=152064),),
)

LLAMA = Family(
    "llama",
    causal=True,
    sampler="autoregressive",
    recognised=("llama", "qwen2"),
    source="transformers, LlamaForCausalLM",
    tokens=SpecialTokens(eos=128001, bos=128000, end_of_turn=128009),
    shapes=(PublishedShape(("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"), 8_030_261_248, 32, 4096, vocabulary=128256),),
)

SMDM = Family(
    "smdm",
    causal=False,
    sampler="llada",
    recognised=("llama",),
    source="skywalker0523/OneTokenIsEnough, lit_gpt/diffmodel_extratoken.py",
    architectures=("MasklessHeadLlama",),
    tokens=SpecialTokens(mask=32000, eos=2, bos=1),
)

FAMILIES = (LLADA, MMADA, DREAM, SMDM, LLAMA)


def recognise(config: Mapping[str, Any], where: str) -> Family:
    """The family of a ``config.json``.

    Raises:
        ModelError: no family claims it.
    """
    if config.get("quantization_config") is not None:
        raise ModelError(f"{where}: expected plain weights, found quantization_config in its config.json; convert them to bf16 first")
    model_type = config.get("model_type")
    architectures = config.get("architectures")
    if architectures is not None and not (isinstance(architectures, list) and all(isinstance(one, str) for one in architectures)):
        raise ModelError(f"{where}/config.json: architectures: expected a list of names or null, found {architectures!r}")
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
    allowed = {"llama": ["LlamaForCausalLM"], "qwen2": ["Qwen2ForCausalLM"]}[model_type]
    allowed += ["FullPrecisionLlama"] if model_type == "llama" and MARK in config else []  # saved again by transformers
    allowed = [*SMDM.architectures] if model_type == "llama" and config.get(MARK) == SMDM.name else allowed
    allowed = ["LearnedPositionsLlama"] if model_type == "llama" and config.get(MARK_POSITIONS) is True else allowed
    found = config.get("architectures") or []
    if not set(found) <= set(allowed):
        why = "that network is another one"
        if "auto_map" in config:
            why = "a model that only remote code could run, and sinkscope never runs any"
        raise ModelError(
            f"{where}/config.json: architectures: expected {' or '.join(allowed)} for model_type {model_type!r}, found {found}; {why}"
        )
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
