"""Windows of text on which the experiments measure SmolLM2 and what is made of it."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor


def cut_anywhere(tokenizer: Any, texts: Sequence[str], windows: int, length: int) -> Tensor:
    """Return the first windows [row, position] of texts joined between the tokenizer's BOS and EOS."""
    ids = (tokenizer(text, add_special_tokens=False).input_ids for text in texts)
    joined = [*chain.from_iterable((tokenizer.bos_token_id, *one, tokenizer.eos_token_id) for one in ids)]
    rows = min(windows, len(joined) // length)
    return torch.tensor(joined[: rows * length]).view(rows, length)


def half_of(tokens: Tensor) -> Tensor:
    """Return which tokens are masked, always the same for one shape: half of them, never the first of a row."""
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    chosen[:, 0] = False
    return chosen
