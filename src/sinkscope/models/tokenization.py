"""The tokenizer of a checkpoint folder, made from its data files; code in the folder is never run."""

import contextlib
import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinkscope.documents import describe, exists, files_in, read_json_object, read_text, shown
from sinkscope.errors import ModelError, first_line
from sinkscope.models.families import FAMILIES
from sinkscope.models.family import Family
from sinkscope.models.fetched_files import check_fetched, check_text
from sinkscope.models.folders import LARGEST_TEXT
from sinkscope.models.forked_trial import ends_within
from sinkscope.models.layouts import STOCK
from sinkscope.models.panics import panics_as_errors

_DATA_CLASSES = (
    None,
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)  # classes that do nothing but read tokenizer.json
_BYTE_PAIR_CLASSES = {name for family in FAMILIES.values() for name in family.tokenizer_classes} | {
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
}
_STOCK_CLASSES = (
    *_DATA_CLASSES,
    *_BYTE_PAIR_CLASSES,
    "LlamaTokenizer",
    "LlamaTokenizerFast",
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
)
CORE, SETTINGS, VOCABULARY, MERGES = "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"
PIECES = "tokenizer.model"
SPECIAL, ADDED, TEMPLATE = "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
PROBE = "Q: Tom has 7 apples.\nA: é …"
"""Text that every tokenizer is tried on."""
TRIAL = (PROBE + string.printable) * 8
"""Text with every letter that a rule may double."""
TRIAL_S, TRIAL_MB = 2.0, 1024
MOST_LONGER = 1000
"""How many times as long, in characters, a normalizer or decoder may make a text."""
_KEYS = frozenset(("content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"))
"""What an added token may say of itself."""


def load_tokenizer(folder: Path, family: Family, config: Mapping[str, Any]) -> Any:
    """Return a transformers tokenizer that has the mask token of ``config``.

    Raises:
        ModelError: no tokenizer loads, it needs code of the folder, or its mask token is another one.
    """
    _check_beginnings(folder)
    settings = _read_object(folder / SETTINGS) if (folder / SETTINGS).exists() else {}
    _check_settings(settings, family, config, folder)
    _check_files(folder)
    try:
        with panics_as_errors():
            tokenizer = _build(folder, config, settings)
            _try(tokenizer, folder)
    except ModelError:
        raise
    except Exception as error:  # the tokenizers library raises nothing narrower
        names = (
            [CORE]
            if (folder / CORE).exists()
            else [name for name in (VOCABULARY, MERGES, PIECES) if (folder / name).exists()]
        )
        more = [name for name in (SPECIAL, ADDED) if (folder / name).exists()]
        files = " and ".join([*names, SETTINGS, *more])
        raise ModelError(
            f"{folder}: expected a tokenizer in {files}, found none that loads ({first_line(error)}); fetch the files again"
        ) from error
    _check_ids(tokenizer, settings, folder)
    _check_mask(tokenizer, family, config, folder)
    return tokenizer


def _check_beginnings(folder: Path) -> None:
    """Raise an error for a file that was not fetched, or that transformers would not read as it stands."""
    whole = (folder / CORE).exists()
    for name in (SETTINGS, SPECIAL, ADDED, *((CORE,) if whole else (VOCABULARY, MERGES))):
        check_text(folder / name)
    if not whole:
        check_fetched(folder / PIECES)


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file."""
    return read_json_object(path, ModelError, "fetch the file again", most=LARGEST_TEXT, any_number=True)


def _check_settings(settings: Mapping[str, Any], family: Family, config: Mapping[str, Any], folder: Path) -> None:
    """Raise an error for damaged settings, and for a class that may need code of the folder."""
    kind, file = settings.get("tokenizer_class"), f"{folder}/{SETTINGS}"
    if kind is not None and not isinstance(kind, str):
        raise ModelError(f"{file}: tokenizer_class: expected the name of a class, found {kind!r}")
    longest = settings.get("model_max_length")
    if isinstance(longest, bool) or not isinstance(longest, int | float | None):
        raise ModelError(f"{file}: model_max_length: expected a number of tokens, found {describe(longest)}")
    _check_template(settings.get("chat_template"), file)
    added = settings.get("added_tokens_decoder") or {}
    if not isinstance(added, Mapping):
        raise ModelError(f"{file}: added_tokens_decoder: expected an object from id to token, found {added!r}")
    for number, token in added.items():
        if not number.isdecimal() or not isinstance(token, Mapping) or not isinstance(token.get("content"), str):
            raise ModelError(
                f"{file}: added_tokens_decoder: {number}: expected an id and a token with its content, found {token!r}"
            )
        if not token["content"]:
            raise ModelError(
                f"{file}: added_tokens_decoder: {number}: content: expected the text of a token, found none; remove it"
            )
    _check_tokens({f"added_tokens_decoder: {number}": token for number, token in added.items()} | dict(settings), file)
    if kind in family.tokenizer_classes:
        return
    stock = config.get("model_type") in STOCK
    if ("auto_map" in settings and kind not in _STOCK_CLASSES) if stock else (kind not in _DATA_CLASSES):
        raise ModelError(
            f"{file}: tokenizer_class: expected PreTrainedTokenizerFast for {family.name}, found {kind!r}; "
            "it may need code of the folder, which sinkscope never runs"
        )


def _check_tokens(tokens: Mapping[str, Any], file: str) -> None:
    """Raise an error for a token that says of itself what the tokenizers library, which prints that, does not know."""
    for name, token in tokens.items():
        if (
            isinstance(token, Mapping)
            and "content" in token
            and (unknown := [key for key in token if key not in _KEYS])
        ):
            raise ModelError(
                f"{file}: {name}: expected the keys {', '.join(sorted(_KEYS))}, found {shown(unknown[0])}; remove it"
            )


def _check_special(tokens: Mapping[str, Any], file: str) -> None:
    """Raise an error for special tokens that are neither texts nor objects with one; some fields hold several of them."""
    for name, found in tokens.items():
        several = name.endswith("special_tokens")
        if several and not isinstance(found, list | Mapping | None):
            raise ModelError(f"{file}: {name}: expected a list of texts, found {shown(found)}; fetch the file again")
        for one in found.values() if several and isinstance(found, Mapping) else (found or ()) if several else [found]:
            text = one.get("content") if isinstance(one, Mapping) else one
            if not (one is None or isinstance(text, str)):
                expected = "a list of texts" if several else "the text of a token"
                raise ModelError(f"{file}: {name}: expected {expected}, found {shown(one)}; fetch the file again")
    _check_tokens(tokens, file)


def _check_template(template: Any, file: str) -> None:
    """Raise an error for a chat template that is neither text nor a list of texts by name."""
    if template is None or isinstance(template, str):
        return
    if not isinstance(template, list):
        raise ModelError(f"{file}: chat_template: expected Jinja as text, found {template!r}")
    for one in template:
        if not isinstance(one, Mapping) or not all(isinstance(one.get(key), str) for key in ("name", "template")):
            raise ModelError(
                f"{file}: chat_template: expected templates with name and template as text, found {shown(one)}"
            )


def template_files(folder: Path) -> list[Path]:
    """Return the files of a tokenizer's chat templates."""
    return [path for path in (folder / TEMPLATE, *files_in(folder / TEMPLATES, "*.jinja", ModelError)) if exists(path)]


def _check_files(folder: Path) -> None:
    """Raise an error for damage that the tokenizers library would report without the name of the file."""
    for path in template_files(folder):
        check_text(path)
        read_text(path, ModelError, "save it as UTF-8 or fetch it again", most=LARGEST_TEXT)
    if (folder / SPECIAL).exists():
        _check_special(_read_object(folder / SPECIAL), f"{folder}/{SPECIAL}")
    if (folder / ADDED).exists():
        _read_numbers(folder / ADDED)
    if (folder / CORE).exists():
        core = _read_object(folder / CORE)
        if not isinstance(core.get("model"), dict):
            raise ModelError(
                f"{folder}/{CORE}: model: expected an object, found {core.get('model')!r}; fetch the file again"
            )
        for part in ("normalizer", "decoder"):
            if (times := _lengthens(core.get(part))) > MOST_LONGER:
                expected = f"expected replacements that make a text at most {MOST_LONGER:,} times as long"
                raise ModelError(
                    f"{folder}/{CORE}: {part}: {expected}, found some for {times:.3g} times; fetch the file again"
                )
        if core["model"].get("dropout"):
            found = f"found {shown(core['model']['dropout'])}, with which a text has other tokens each time"
            raise ModelError(f"{folder}/{CORE}: model: dropout: expected null or 0, {found}; write null there")
        return
    if (folder / VOCABULARY).exists():
        _read_numbers(folder / VOCABULARY)
    if (folder / MERGES).exists():
        try:
            lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
        except ValueError as error:
            raise ModelError(
                f"{folder}/{MERGES}: expected text, found something else ({error}); fetch the file again"
            ) from error
        for number, line in enumerate(lines):
            if line.strip() and not (number == 0 and line.startswith("#version")) and len(line.split(" ")) != 2:
                raise ModelError(
                    f"{folder}/{MERGES}: line {number + 1}: expected two pieces, found {line[:80]!r}; fetch the file again"
                )


def _lengthens(rule: Any) -> float:
    """Return how many times as long a text could become by the replacements of a normalizer or decoder, one after the other."""
    times, waiting = 1.0, [rule]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            waiting += [one[key] for key in ("normalizers", "decoders") if key in one]
            pattern, content = one.get("pattern"), one.get("content")
            if isinstance(pattern, dict) and isinstance(content, str):
                replaced = pattern.get("String")
                shortest = len(replaced) if isinstance(replaced, str) and replaced else 1
                times *= max(1.0, len(content) / shortest)
    return times


def _read_numbers(path: Path) -> dict[str, int]:
    """Return the ids of a file by token."""
    found = _read_object(path)
    for token, number in found.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ModelError(f"{path}: {token}: expected the id of a token, found {number!r}; fetch the file again")
    return found


def _build(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Return the tokenizer; tokenizer.json is read as it stands, because transformers' own classes would replace its rules by theirs."""
    import transformers
    from transformers.utils import is_protobuf_available, is_sentencepiece_available

    if (folder / CORE).exists():
        return transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    if (
        settings.get("tokenizer_class") in _BYTE_PAIR_CLASSES
        and (folder / VOCABULARY).exists()
        and (folder / MERGES).exists()
    ):
        return transformers.Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
    needed = {"sentencepiece": is_sentencepiece_available(), "protobuf": is_protobuf_available()}
    lacking = [package for package, is_there in needed.items() if not is_there]
    if lacking and not (folder / VOCABULARY).exists() and (folder / PIECES).exists():
        raise ModelError(
            f"{folder}: expected {CORE}, found {PIECES}, which cannot be read without {' and '.join(lacking)}; "
            f"add {CORE}, or `pip install {' '.join(lacking)}`"
        )
    if config.get("model_type") not in STOCK or not ((folder / VOCABULARY).exists() or (folder / PIECES).exists()):
        raise ModelError(f"{folder}: expected {CORE} and {SETTINGS}, found no tokenizer that loads ({CORE} is missing)")
    return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _try(tokenizer: Any, folder: Path) -> None:
    """Encode and decode some text: some rules of tokenizer.json double a text again and again, or make the library panic, only then."""

    def read_much() -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = (
            "false"  # in the process of the trial; the library's threads are not there
        )
        tokenizer.decode(tokenizer(TRIAL).input_ids)

    if not ends_within(TRIAL_S, TRIAL_MB, read_much):
        expected = (
            f"expected a tokenizer that reads {len(TRIAL):,} letters within {TRIAL_S:g} seconds and {TRIAL_MB} MB"
        )
        raise ModelError(f"{folder}/{CORE}: {expected}, found none; fetch the file again")
    with contextlib.suppress(Exception):  # what it does not know is told by `Model.encode`, for the text itself
        tokenizer.decode(tokenizer(PROBE).input_ids)


def _check_ids(tokenizer: Any, settings: Mapping[str, Any], folder: Path) -> None:
    """Raise an error where an added token has another id than its file says: a gap in the numbering moves all tokens behind it."""
    unknown = tokenizer.unk_token
    if (
        unknown is not None and unknown not in tokenizer.get_vocab()
    ):  # looking up any other text would look up this one for ever
        raise ModelError(
            f"{folder}/{SETTINGS}: unk_token: expected one of the tokens, found {unknown!r}; fetch the file again"
        )
    for number, token in (settings.get("added_tokens_decoder") or {}).items():
        text = token["content"]
        found = tokenizer.convert_tokens_to_ids(text)
        if found != int(number):
            raise ModelError(
                f"{folder}/{SETTINGS}: added_tokens_decoder: expected {text} to be token {number}, found {found}"
            )
    for text, number in (_read_numbers(folder / ADDED) if (folder / ADDED).exists() else {}).items():
        found = tokenizer.convert_tokens_to_ids(text)
        if found != number:
            expected = f"{folder}/{ADDED}: expected {shown(text)} to be token {found}, as {CORE if (folder / CORE).exists() else VOCABULARY}"
            raise ModelError(f"{expected} and {SETTINGS} have it, found {describe(number)}; fetch the files again")


def _check_mask(tokenizer: Any, family: Family, config: Mapping[str, Any], folder: Path) -> None:
    """Raise an error where the tokenizer's mask token is not that of the config; a tokenizer without one gets the family's."""
    mask = config.get("mask_token_id")
    for key in ("bos_token_id", "eos_token_id") if mask is not None and not family.causal else ():
        if mask in (config[key] if isinstance(config.get(key), list) else [config.get(key)]):
            raise ModelError(
                f"{folder}/config.json: {key}: expected another token than the mask token {mask}, found the same"
            )
    if mask is None or (family.causal and tokenizer.mask_token_id is None):
        return
    theirs = tokenizer.mask_token_id
    if theirs is None and family.tokens.mask_text in tokenizer.get_vocab():
        theirs = tokenizer.convert_tokens_to_ids(family.tokens.mask_text)
        if theirs == mask:
            tokenizer.mask_token = family.tokens.mask_text
    if theirs is None and family.tokens.mask_text is None and mask not in tokenizer.get_vocab().values():
        return  # a mask without a text: paper 2's models have an embedding for it, their tokenizer has no token
    expected = f"{folder}/{SETTINGS}: mask_token: expected token {mask}, as mask_token_id in config.json says"
    if theirs is None:
        text = tokenizer.convert_ids_to_tokens(mask) if mask < len(tokenizer) else None
        found = f"its token {mask} is {text!r}" if text is not None else f"it has {len(tokenizer)} tokens"
        raise ModelError(f"{expected}, found none ({found}); name the mask token there")
    if theirs != mask:
        raise ModelError(
            f"{expected}, found {tokenizer.convert_ids_to_tokens(theirs)!r}, token {theirs}; one of the two files belongs to another model"
        )
    if tokenizer.eos_token_id == mask:
        raise ModelError(
            f"{folder}/{SETTINGS}: eos_token: expected another token than the mask token {mask}, found the same"
        )
