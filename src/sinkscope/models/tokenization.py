"""The tokenizer of a checkpoint folder, built from its data files; code in the folder is never run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.errors import ModelError
from sinkscope.models.family import Family
from sinkscope.models.layouts import STOCK
from sinkscope.models.quiet import quiet

_DATA_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")  # all there is lies in tokenizer.json
_BYTE_PAIR_CLASSES = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")


def load_tokenizer(folder: Path, family: Family, config: Mapping[str, Any]) -> Any:
    """A transformers tokenizer that knows the mask token of ``config``.

    Raises:
        ModelError: none that loads, one that needs code of the folder, or one whose mask is another.
    """
    settings = _settings(folder)
    try:
        with quiet():
            tokenizer = _build(folder, family, config, settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"{folder}: expected tokenizer.json and tokenizer_config.json, found no tokenizer that loads ({reason})"
        ) from error
    _check_ids(tokenizer, settings, folder)
    _check_mask(tokenizer, family, config, folder)
    return tokenizer


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.exists():
        return {}
    try:
        settings = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path}: expected JSON, found something else ({error})") from error
    if not isinstance(settings, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(settings).__name__}")
    return settings


def _build(folder: Path, family: Family, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    import transformers

    kind = settings.get("tokenizer_class")
    if family.name == "dream" and kind in _BYTE_PAIR_CLASSES:  # Dream's own class is remote code; it is Qwen2's byte pairs
        return transformers.Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    if config.get("model_type") in STOCK:
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if kind not in _DATA_CLASSES:
        raise ModelError(
            f"{folder}/tokenizer_config.json: tokenizer_class: expected PreTrainedTokenizerFast for {family.name}, found {kind!r}; "
            "it may need code of the folder, which sinkscope never runs"
        )
    if not (folder / "tokenizer.json").exists():
        raise OSError("tokenizer.json is missing")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def _check_ids(tokenizer: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """Added tokens must have kept the ids that the file gives them: a gap in the numbering moves all that follow."""
    added = settings.get("added_tokens_decoder") or {}
    for number, token in added.items():
        text = token["content"] if isinstance(token, Mapping) else str(token)
        found = tokenizer.convert_tokens_to_ids(text)
        if found != int(number):
            raise ModelError(f"{folder}/tokenizer_config.json: added_tokens_decoder: expected {text} to be token {number}, found {found}")


def _check_mask(tokenizer: Any, family: Family, config: Mapping[str, Any], folder: Path) -> None:
    """The mask of the tokenizer is that of the config; where it has none, the family's own mask token becomes it."""
    mask = config.get("mask_token_id")
    if mask is None or (family.causal and tokenizer.mask_token_id is None):
        return
    theirs = tokenizer.mask_token_id
    if theirs is None and family.tokens.mask_text in tokenizer.get_vocab():
        theirs = tokenizer.convert_tokens_to_ids(family.tokens.mask_text)
        if theirs == mask:
            tokenizer.mask_token = family.tokens.mask_text
    if theirs is None:
        text = tokenizer.convert_ids_to_tokens(mask) if mask < len(tokenizer) else None
        raise ModelError(
            f"{folder}: expected a tokenizer with a mask token, {mask} as config.json says, found none"
            + (f" (its token {mask} is {text!r})" if text is not None else f" (it has {len(tokenizer)} tokens)")
        )
    if theirs != mask:
        raise ModelError(
            f"{folder}: config.json says mask_token_id {mask}, its tokenizer says {theirs}; one of them belongs to another model"
        )
