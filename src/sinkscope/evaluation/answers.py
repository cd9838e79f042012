"""The text of an answer as lm-eval's tasks read it: unstripped, up to the first stop string."""

from collections.abc import Sequence

import torch

from sinkscope.models import Model


def answer_until(model: Model, answer: torch.Tensor, stops: Sequence[str]) -> str:
    """Text before the first EOS and the first of the stop strings.

    White space in front stays: a completion of a program needs it. A stop string that is a special token of the
    tokenizer ends the answer as a token, since special tokens are left out of the text.

    Args:
        model: who wrote.
        answer: int64 [position], without the prompt.
        stops: strings.
    """
    known = model.tokenizer.get_added_vocab()
    ends = {known[stop] for stop in stops if stop in known} | {model.card.eos_id, *getattr(model.card, "eos_ids", ())}
    ids: list[int] = answer.tolist()
    length = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    text = model.decode([token for token in ids[:length] if token != model.card.mask_id])
    for stop in filter(None, stops):
        text = text.split(stop, 1)[0]
    return text
