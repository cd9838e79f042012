"""The body of paper 2's models: a Llama whose head has no row for the mask, which therefore is never predicted."""

from typing import Any

from torch import nn
from transformers import LlamaForCausalLM


class MasklessHeadLlama(LlamaForCausalLM):
    """`LlamaForCausalLM` with one row less in its head than in its embedding; the last row of that is the mask."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size - 1, bias=False)
