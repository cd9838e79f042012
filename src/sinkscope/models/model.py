"""A loaded model: the network, its tokenizer, its family, and the card that identifies it."""

import inspect
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from sinkscope.attention import Hider, current_session
from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models.family import Family
from sinkscope.models.weights import UsedTensors

UNBOUNDED = 1 << 20  # the longest canvas of a network whose config names none, as of one without positions


@dataclass(frozen=True)
class ModelCard:
    """The identity of a model in every artefact, and the shape of its network.

    Attributes:
        weight_hash: sha256 over the safetensors files, in order of their names.
        stored_dtype, dtype: float type of the weights on disk, and in memory.
        max_positions: the longest canvas that the model was made for.
        eos_ids: all tokens that end an answer, where there are several (Llama 3.1 Instruct has three).
        sink_token: name of the variant of its sink token, None without one.
        config_hash: sha256 of its config.json without the float type and other keys that change no logits.
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
    eos_ids: tuple[int, ...] = ()
    sink_token: str | None = None
    config_hash: str = ""

    @classmethod
    def of(cls, network: Any, **known: Any) -> "ModelCard":
        """Return the card of a transformers network, whose shape is read from it, with the other fields."""
        shape = network.config.get_text_config()
        heads = shape.num_attention_heads
        return cls(
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            layers=shape.num_hidden_layers,
            heads=heads,
            kv_heads=getattr(shape, "num_key_value_heads", None) or heads,
            hidden_size=shape.hidden_size,
            vocabulary=shape.vocab_size,
            max_positions=getattr(shape, "max_position_embeddings", None) or UNBOUNDED,
            **known,
        )

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys([*([] if self.eos_id is None else [self.eos_id]), *self.eos_ids]))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"eos_ids": list(self.eos_ids)}


@dataclass(frozen=True)
class Model:
    """A model that sinkscope can write with, watch and change.

    Attributes:
        network: the transformers module; ``network(input_ids).logits`` are its logits, before any shift.
        tokenizer: a transformers tokenizer.
        tensors: the tensors of its files that were used; None for a network that was not read from files.
        positions_key: the key of its config.json that gives ``card.max_positions``.
        commit: of its hub repository, None for a folder.
        unread_keys: keys of its config.json that neither transformers nor sinkscope reads.
    """

    network: Any
    tokenizer: Any
    family: Family
    card: ModelCard
    tensors: UsedTensors | None = None
    positions_key: str = "max_position_embeddings"
    commit: str | None = None
    unread_keys: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.network)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def mask_id(self) -> int:
        """The mask token of a model for diffusion."""
        assert self.card.mask_id is not None
        return self.card.mask_id

    @property
    def limit(self) -> str:
        """The longest canvas and the key that says so, for an error message."""
        return f"{self.card.name} was made for {self.card.max_positions} ({self.positions_key} in its config.json)"

    def expect_room(self, tokens: int, what: str, advice: str = "") -> None:
        """Raise CallError where a canvas, which ``what`` describes, is longer than the network was made for."""
        if tokens > self.card.max_positions:
            raise CallError(f"the canvas does not fit: {what}, {self.limit}{advice}")

    def logits(self, tokens: torch.Tensor, keep: int | torch.Tensor, **arguments: Any) -> torch.Tensor:
        """Return the logits [batch, kept, vocabulary] at the last ``keep`` tokens of a canvas, or at given positions;
        ``arguments`` that the network does not take are left out.
        """
        takes = inspect.signature(self.network.forward).parameters
        given = {name: value for name, value in arguments.items() if value is not None and name in takes}
        if "logits_to_keep" in takes:
            return self.network(input_ids=tokens, logits_to_keep=keep, **given).logits
        logits = self.network(input_ids=tokens, **given).logits
        return logits[:, -keep:] if isinstance(keep, int) else logits[:, keep.to(logits.device)]

    def encode(self, prompt: str | Sequence[int] | np.ndarray | torch.Tensor) -> list[int]:
        """Return the token ids of a raw text, or checked ids as they are; raise CallError for an empty prompt, a mask,
        or a token or word that is unknown, ModelError for a tokenizer whose tokens the network does not have.
        """
        if isinstance(prompt, str):
            ids = self.tokenize(prompt)
            empty = all(token == self.tokenizer.bos_token_id for token in ids)  # also stands in front of nothing
        else:
            ids = _whole_numbers(prompt)
            if beyond := [token for token in ids if not 0 <= token < self.card.vocabulary]:
                raise CallError(f"prompt: token ids lie in 0…{self.card.vocabulary - 1}, found {beyond[:5]}")
            empty = not ids
        if empty or (self.card.mask_id is not None and self.card.mask_id in ids):
            found = "an empty one" if empty else f"the mask token {self.card.mask_id} in {str(ids)[:60]}"
            raise CallError(f"expected a prompt with at least one token and without masks, found {found}")
        return ids

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Return the token ids of a text; ``special`` adds the tokenizer's own tokens around it. Errors as `encode`."""
        ids = list(self.tokenizer(text, add_special_tokens=special, verbose=False).input_ids)
        if unknown := self._unknown_words(text, ids, special):
            raise CallError(
                f"prompt: {self.card.name} does not know {', '.join(map(repr, unknown[:8]))}; its vocabulary has "
                f"{len(self.tokenizer)} words (`sinkscope problems` prints prompts it knows; a published model takes "
                "any text)"
            )
        if beyond := [token for token in ids if not 0 <= token < self.card.vocabulary]:
            found = f"{self.tokenizer.convert_ids_to_tokens(beyond[0])!r} token {beyond[0]}"
            raise ModelError(
                f"{self.card.name}: expected a tokenizer with the {self.card.vocabulary} tokens of the network, found "
                f"that it makes {found}; its tokenizer belongs to another model"
            )
        return ids

    def _unknown_words(self, text: str, ids: list[int], special: bool) -> list[str]:
        unknown, spelled = getattr(self.tokenizer, "unk_token_id", None), None
        core = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "model", None)
        if unknown is None and core is not None and (spelled := getattr(core, "unk_token", None)) is not None:
            unknown = core.token_to_id(spelled)  # an ordinary word that stands for others
        if unknown is None or unknown not in ids:
            return []
        pieces = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
        found = zip(pieces.input_ids, pieces.offset_mapping, strict=True)
        words = [text[a:b].strip() or text[a:b] for token, (a, b) in found if token == unknown and b > a]
        return [word for word in dict.fromkeys(words) if word != spelled]

    def decode(self, ids: Sequence[int] | torch.Tensor) -> str:
        """Return the text of token ids, without special tokens."""
        return self.tokenizer.decode(_whole_numbers(ids), skip_special_tokens=True)

    def answer_text(self, answer: Sequence[int] | torch.Tensor) -> str:
        """Return the text of the token ids of an answer up to its first EOS, without masks."""
        ids = _whole_numbers(answer)
        end = next((at for at, token in enumerate(ids) if token in self.card.ends), len(ids))
        return self.decode([token for token in ids[:end] if token != self.card.mask_id]).strip()

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of a conversation, by the tokenizer's chat template or, without one, by the family's;
        raise ModelError where neither is there or tokens for it lack, CallError where it refuses. See `encode`.
        """
        return self.encode(self.tokenize(self.chat_text(messages), special=False))

    def chat_text(
        self, messages: Sequence[dict[str, str]], *, begun: bool = False, instead: str = "pass the prompt as text"
    ) -> str:
        """Return a conversation as text, up to where the assistant begins; ``begun``, its last message is that of the
        assistant and goes on; ``instead`` is advice in errors, which are those of `chat`.
        """
        from jinja2 import TemplateError

        name, family, template = self.card.name, self.family, None
        if not getattr(self.tokenizer, "chat_template", None):
            template = family.chat_template
            lacking = [token for token in family.chat_tokens if token not in self.tokenizer.get_vocab()]
            base = f" (for {family.name}'s own template it lacks {', '.join(lacking)}: this is a base model)"
            if template is None or lacking:
                raise ModelError(f"{name}: its tokenizer has no chat template; {instead}{base if lacking else ''}")
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                chat_template=template,
                tokenize=False,
                add_generation_prompt=not begun,
                continue_final_message=begun,
            )
        except TemplateError as error:
            why = first_line(error)
            raise CallError(f"messages: the chat template of {name} refuses them ({why}); {instead}") from error


def _whole_numbers(ids: Any) -> list[int]:
    return [operator.index(token) for token in (ids.tolist() if isinstance(ids, torch.Tensor | np.ndarray) else ids)]


def expect_model(model: Any, unwatched: bool = False) -> None:
    """Raise CallError for an object that is no `Model`, and for one under a rule that hides keys or, ``unwatched``,
    under anything that records or changes it.
    """
    if not isinstance(model, Model):
        raise CallError(f"model: expected what sinkscope.load returns, found {type(model).__name__}")
    session = current_session(model.network)
    subscribers = [] if session is None else session.subscribers
    hidden = any(isinstance(one, Hider) for one in subscribers)
    if hidden or (unwatched and subscribers):
        found = "under a rule that hides keys" if hidden else "recorded or changed"
        raise CallError(f"model: expected {model.card.name} as it is, found it {found}; call this outside that block")
