"""Classes of tokens: mask, newline, white space, punctuation, special, digit or word."""

import re
from functools import cache
from typing import Any

CLASSES = ("mask", "newline", "white space", "punctuation", "special", "digit", "word")

_SPECIAL = re.compile(r"<\|?/?[A-Za-z_][\w .-]*\|?>|<\|[^|]*\|>|\[[A-Z]{2,}\]")
_BYTE_LEVEL = str.maketrans({"Ġ": " ", "Ċ": "\n", "ĉ": "\t", "▁": " "})


@cache
def class_of(text: str) -> str:
    """Return the class of a token by how it reads; `token_class` knows masks and special tokens better."""
    plain = text.translate(_BYTE_LEVEL)
    bare = plain.strip()
    if not bare:
        return "newline" if "\n" in plain else "white space"
    if _SPECIAL.fullmatch(bare):
        return "special"
    if bare.isdigit():
        return "digit"
    return "word" if any(character.isalnum() for character in bare) else "punctuation"


def text_of(tokenizer: Any, token: int) -> str:
    """Return how a token reads: a special one by its name, bytes that are no whole character as ``<0xE2>``."""
    text = tokenizer.decode([token])
    if text and "\ufffd" not in text:
        return str(text)
    name = str(tokenizer.convert_ids_to_tokens(token) or "")
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = {letter: byte for byte, letter in bytes_to_unicode().items()}
    if not {*name} <= letters.keys():
        return name
    read = bytes(letters[letter] for letter in name).decode(errors="surrogateescape")
    return "".join(f"<0x{ord(one) - 0xDC00:02X}>" if "\udc80" <= one <= "\udcff" else one for one in read)


def token_class(text: str | None, is_mask: bool, is_special: bool) -> str:
    """Return one of `CLASSES`, first by its id, then by how it reads; a token without a text is a word."""
    return "mask" if is_mask else "special" if is_special else class_of(text) if text else "word"
