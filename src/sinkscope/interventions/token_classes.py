"""What kind of token a token of a model is."""

from sinkscope.models import Model
from sinkscope.sinks.token_classes import token_class


def class_in(model: Model, token: int) -> str:
    """One of `sinks.token_classes.CLASSES`, by the model's own mask token, special tokens and texts."""
    special = token in model.tokenizer.all_special_ids or not 0 <= token < len(model.tokenizer)
    return token_class(None if special else model.tokenizer.decode([token]), token == model.card.mask_id, special)
