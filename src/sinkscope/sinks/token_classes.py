"""Classes of tokens: mask, newline, white space, punctuation, special, digit or word."""

import re
from functools import cache

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


def token_class(text: str | None, is_mask: bool, is_special: bool) -> str:
    """Return one of `CLASSES`, first by its id, then by how it reads; a token without a text is a word."""
    return "mask" if is_mask else "special" if is_special else class_of(text) if text else "word"
