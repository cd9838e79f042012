"""What kind of token a token is."""

from sinkscope.models import Model

CLASSES = ("special", "mask", "newline", "space", "digit", "punctuation", "word")


def token_class(model: Model, token: int) -> str:
    """One of `CLASSES`: the mask token, other special tokens, newlines, other white space, digits, punctuation, all else."""
    if token == model.card.mask_id:
        return "mask"
    if token in model.tokenizer.all_special_ids or not 0 <= token < len(model.tokenizer):
        return "special"
    text = model.tokenizer.decode([token])
    bare = text.strip()
    if not bare:
        return "newline" if "\n" in text else "space"
    if bare.isdigit():
        return "digit"
    return "word" if any(character.isalnum() for character in bare) else "punctuation"
