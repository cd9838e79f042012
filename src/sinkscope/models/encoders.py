"""BERT and ModernBERT under the two names that decoding uses: ``model``, the layers, and ``lm_head``, which makes logits
of their outputs. Parameters, their names and what is computed are transformers'.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import ModernBertModel


class BertForMaskedLM(transformers.BertForMaskedLM):
    """transformers' network of this name."""

    # Of the checkpoints that were trained to tell the next sentence, too.
    _keys_to_ignore_on_load_unexpected = (r"bert\.pooler\.", r"cls\.seq_relationship\.", r"position_ids$")

    @property
    def model(self) -> nn.Module:
        """The layers."""
        return self.bert

    @property
    def lm_head(self) -> nn.Module:
        """Makes logits of hidden states."""
        return self.cls


class LocalModernBertModel(ModernBertModel):
    """ModernBERT's layers, whose windows stay where a mask for each query is given."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute the forward pass of the layers.

        Args:
            attention_mask: 0 on padding [batch, key], or for each query [batch, 1, query, key].
        """
        if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:  # transformers would take it as it is
            here = torch.arange(attention_mask.shape[-1], device=attention_mask.device)
            near = (here[:, None] - here).abs() <= self.config.sliding_window
            unseen = torch.finfo(attention_mask.dtype).min if attention_mask.is_floating_point() else False
            local = torch.where(near, attention_mask, unseen)
            attention_mask = {"full_attention": attention_mask, "sliding_attention": local}
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


class ModernBertForMaskedLM(transformers.ModernBertForMaskedLM):
    """transformers' network of this name."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = LocalModernBertModel(config)
        self.post_init()
        self.__dict__["lm_head"] = nn.Sequential(self.head, self.decoder)  # no module, whose parameters count twice
