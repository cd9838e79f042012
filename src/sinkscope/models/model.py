"""A loaded model: the network, its tokenizer, its family and its card."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

from sinkscope.errors import CallError, ModelError
from sinkscope.models.family import Family


@dataclass(frozen=True)
class ModelCard:
    """What identifies a model in every artefact.

    Attributes:
        name: as it was asked for.
        family: name of its family.
        weight_hash: sha256 over its safetensors files, in order of their names.
        parameters: how many numbers.
        layers, heads, kv_heads, hidden_size, vocabulary: its shape.
        stored_dtype, dtype: on disk, and in memory.
        mask_id, eos_id: special tokens, None where it has none.
        max_positions: the longest canvas it was made for.
        sink_token: name of the variant of its sink token, None without one.
    """

    name: str
    family: str
    weight_hash: str
    parameters: int
    layers: int
    heads: int
    kv_heads: int
    hidden_size: int
    vocabulary: int
    stored_dtype: str
    dtype: str
    mask_id: int | None
    eos_id: int | None
    max_positions: int
    sink_token: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for manifests."""
        return asdict(self)


@dataclass(frozen=True)
class Model:
    """A model that sinkscope can write with, watch and change.

    Attributes:
        network: the transformers module, typed Any because its attributes depend on the family;
            ``network(input_ids).logits`` is what the network says.
        tokenizer: a transformers tokenizer.
        family: what is known of its kind.
        card: what identifies it.
    """

    network: Any
    tokenizer: Any
    family: Family
    card: ModelCard

    @property
    def device(self) -> torch.device:
        """Where its embeddings lie."""
        return next(self.network.parameters()).device

    def encode(self, prompt: str | Sequence[int] | torch.Tensor) -> list[int]:
        """Token ids of a raw text, or the ids as they are.

        Raises:
            CallError: an empty prompt, a token outside the vocabulary, or a mask token in the prompt.
        """
        if isinstance(prompt, str):
            ids = list(self.tokenizer(prompt).input_ids)
            self._refuse_unknown(prompt, ids)
        else:
            ids = _read_ids(prompt)
            beyond = [token for token in ids if not 0 <= token < self.card.vocabulary]
            if beyond:
                raise CallError(f"prompt: token ids lie in 0…{self.card.vocabulary - 1}, found {beyond[:5]}")
        if not [token for token in ids if token != self.tokenizer.bos_token_id]:
            raise CallError("expected a prompt with at least one token, found an empty one")
        self._refuse_masks(ids)
        return ids

    def _refuse_masks(self, ids: list[int]) -> None:
        if self.card.mask_id is not None and self.card.mask_id in ids:
            place = ids.index(self.card.mask_id)
            raise CallError(f"prompt: holds the mask token {self.card.mask_id} at position {place}; a prompt must be without masks")

    def _refuse_unknown(self, prompt: str, ids: list[int]) -> None:
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is None or unknown not in ids:
            return
        pieces = self.tokenizer(prompt, return_offsets_mapping=True)
        words = [
            prompt[a:b].strip() or prompt[a:b]
            for token, (a, b) in zip(pieces.input_ids, pieces.offset_mapping, strict=True)
            if token == unknown
        ]
        shown = ", ".join(repr(word) for word in dict.fromkeys(words))
        raise CallError(
            f"prompt: {self.card.name} does not know {shown}; its vocabulary has {len(self.tokenizer)} words "
            "(`sinkscope problems` prints prompts it knows)"
        )

    def decode(self, ids: Sequence[int] | torch.Tensor) -> str:
        """Text of token ids, special tokens left out."""
        return self.tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)

    def answer_text(self, answer: torch.Tensor) -> str:
        """Text of an answer up to its first EOS, without masks."""
        ends = (answer == self.card.eos_id).nonzero() if self.card.eos_id is not None else torch.empty(0)
        answer = answer[: int(ends[0])] if len(ends) else answer
        return self.decode(answer if self.card.mask_id is None else answer[answer != self.card.mask_id]).strip()

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation by the tokenizer's chat template.

        Raises:
            ModelError: the tokenizer has none.
            CallError: no conversation, an unknown word, or a mask token in it.
        """
        if (
            isinstance(messages, str)
            or not messages
            or not all(isinstance(one, Mapping) and "role" in one and "content" in one for one in messages)
        ):
            raise CallError(f'expected messages as a list of {{"role": …, "content": …}}, found {messages!r}')
        if not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(f"{self.card.name}: its tokenizer has no chat template; pass the prompt as text")
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        ids = list(self.tokenizer(text, add_special_tokens=False).input_ids)
        self._refuse_unknown(text, ids)
        self._refuse_masks(ids)
        return ids


def _read_ids(prompt: Any) -> list[int]:
    if isinstance(prompt, torch.Tensor | np.ndarray):
        found = f"shape {tuple(prompt.shape)} of {prompt.dtype}"
        fits = prompt.ndim == 1 and str(prompt.dtype).removeprefix("torch.") in ("uint8", "int8", "int16", "int32", "int64")
    else:
        found = repr(prompt)
        fits = isinstance(prompt, Sequence) and all(isinstance(token, Integral) for token in prompt)
    if not fits:
        raise CallError(f"expected a prompt as text or as 1-D token ids, found {found}")
    return [int(token) for token in prompt]
