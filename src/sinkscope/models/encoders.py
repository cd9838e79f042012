"""BERT and ModernBERT under the two names that decoding uses: ``model``, the layers, and ``lm_head``, which makes their
outputs logits. Parameters, their names and what is computed are transformers'.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn


class BertForMaskedLM(transformers.BertForMaskedLM):
    """transformers' network of this name."""

    # Of the checkpoints that were trained to tell the next sentence, too.
    _keys_to_ignore_on_load_unexpected = (r"bert\.pooler\.", r"cls\.seq_relationship\.", r"position_ids$")

    model = property(lambda self: self.bert)
    lm_head = property(lambda self: self.cls)


class LocalModernBertModel(transformers.ModernBertModel):
    """ModernBERT's layers, whose windows stay where a mask for each query is given."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, use_cache: Any = None, **more: Any) -> Any:
        """Compute the layers; ``attention_mask`` is 0 on padding [batch, key], or [batch, 1, query, key]."""
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:  # transformers would take it as it is
            here = torch.arange(attention_mask.shape[-1], device=attention_mask.device)
            near = (here[:, None] - here).abs() <= self.config.sliding_window
            unseen = torch.finfo(attention_mask.dtype).min if attention_mask.is_floating_point() else False
            local = torch.where(near, attention_mask, unseen)
            attention_mask = {"full_attention": attention_mask, "sliding_attention": local}
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, **more)


class ModernBertForMaskedLM(transformers.ModernBertForMaskedLM):
    """transformers' network of this name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LocalModernBertModel(config)
        self.post_init()
        self.__dict__["lm_head"] = nn.Sequential(self.head, self.decoder)  # no module, whose parameters count twice
