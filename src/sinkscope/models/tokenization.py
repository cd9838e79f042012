"""The tokenizer of a checkpoint folder, made from its data files; code in the folder is never run."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.any_causal import GGUF, NAME, reading_gguf
from sinkscope.models.families import FAMILIES
from sinkscope.models.families.basic_family import ENCODER
from sinkscope.models.family import STOCK, Family
from sinkscope.runs.files import read_json_object

CORE, SETTINGS, VOCABULARY, MERGES = "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"
PIECES = "tokenizer.model"
SPECIAL, ADDED, TEMPLATE = "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
_DATA_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")  # they do nothing but read tokenizer.json
_BYTE_PAIR_CLASSES = {name for family in FAMILIES.values() for name in family.tokenizer_classes}
_OTHERS = ("LlamaTokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast")


def load_tokenizer(folder: Path, family: Family, config: Mapping[str, Any]) -> Any:
    """Return a transformers tokenizer; raise ModelError where it needs code, or its mask token is not the config's."""
    if folder.suffix == GGUF:
        import transformers

        with reading_gguf(folder):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder.parent, gguf_file=folder.name, local_files_only=True, trust_remote_code=False
            )
        if config.get("mask_token_id") is not None and not family.causal:  # of an adapter that taught it to diffuse
            tokenizer.mask_token = tokenizer.convert_ids_to_tokens(config["mask_token_id"])
        return tokenizer
    path = folder / SETTINGS
    settings = read_json_object(path, ModelError, "fetch the file again") if path.exists() else {}
    kind = settings.get("tokenizer_class")
    stock = config.get("model_type") in STOCK or family.name in (NAME, ENCODER.name)
    known = (*_DATA_CLASSES, *family.tokenizer_classes, *((*_BYTE_PAIR_CLASSES, *_OTHERS) if stock else ()))
    if kind not in known and not (stock and "auto_map" not in settings):
        raise ModelError(
            f"{path}: tokenizer_class: expected PreTrainedTokenizerFast for {family.name}, found {kind!r}; "
            "it may need code of the folder, which sinkscope never runs"
        )
    tokenizer = _build(folder, kind, stock)
    if family.name == ENCODER.name:  # as dllm writes: no tokens around a text, which end where padding begins
        from tokenizers.processors import TemplateProcessing

        tokenizer.backend_tokenizer.post_processor = TemplateProcessing("$A", "$A $B:1", [])
        tokenizer.eos_token = tokenizer.eos_token or tokenizer.pad_token
    added = {one["content"]: int(number) for number, one in (settings.get("added_tokens_decoder") or {}).items()}
    by_file = {SETTINGS: added}
    if (folder / ADDED).exists():
        by_file[ADDED] = read_json_object(folder / ADDED, ModelError, "fetch the file again")
    for name, ids in by_file.items():  # a gap in the numbering moves all tokens behind it
        for text, number in ids.items():
            if (found := tokenizer.convert_tokens_to_ids(text)) != number:
                raise ModelError(f"{folder}/{name}: expected {text!r} to be token {number}, found {found}")
    _check_mask(tokenizer, family, config, folder)
    return tokenizer


def copy_files(files: Iterable[Path], folder: Path, place: Path) -> None:
    """Copy files of a folder, and its chat templates, to the same places in another."""
    templates = [path for path in (folder / TEMPLATE, *(folder / TEMPLATES).glob("*.jinja")) if path.exists()]
    for path in {*files, *templates}:
        copy = place / path.relative_to(folder)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)


def _build(folder: Path, kind: Any, stock: bool) -> Any:
    """Return the tokenizer. Classes of transformers would replace the rules in a tokenizer.json, so none reads it."""
    import transformers

    if (folder / CORE).exists():
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if kind in _BYTE_PAIR_CLASSES and (folder / VOCABULARY).exists() and (folder / MERGES).exists():
        return transformers.Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    if not stock or not ((folder / VOCABULARY).exists() or (folder / PIECES).exists()):
        raise ModelError(f"{folder}: expected {CORE} and {SETTINGS}, found no tokenizer that loads ({CORE} is missing)")
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _check_mask(tokenizer: Any, family: Family, config: Mapping[str, Any], folder: Path) -> None:
    """Raise ModelError where the mask token is not that of the config; a tokenizer without one gets the family's."""
    mask, theirs, text = config.get("mask_token_id"), tokenizer.mask_token_id, family.mask_text
    if mask is None or (family.causal and theirs is None):
        return
    if theirs is None and text in tokenizer.get_vocab():
        theirs = tokenizer.convert_tokens_to_ids(text)
        if theirs == mask:
            tokenizer.mask_token = text
    if theirs is None and text is None and mask not in tokenizer.get_vocab().values():
        return  # a mask without a text: paper 2's models have an embedding for it, their tokenizer has no token
    if theirs != mask:
        held = tokenizer.convert_ids_to_tokens(mask if theirs is None else theirs)
        has = f"none (its token {mask} is {held!r})" if theirs is None else f"{held!r}, token {theirs}"
        said = f"token {mask}, as mask_token_id in config.json says"
        raise ModelError(f"{folder}/{SETTINGS}: mask_token: expected {said}, found {has}; correct one of them")
    ends = config.get("eos_token_id")
    if mask in (config.get("bos_token_id"), tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])):
        raise ModelError(f"{folder}: expected another end and beginning of texts than the mask token {mask}, found it")
