"""A loaded model: the network, its tokenizer, its family, and the card that identifies it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, get_type_hints

import numpy as np
import torch

from sinkscope.argument_types import check_argument
from sinkscope.attention import Hider, current_session
from sinkscope.attention.records import described
from sinkscope.documents import check_encodable, describe, shown
from sinkscope.errors import CallError, ModelError, first_line
from sinkscope.models.conversations import write_conversation
from sinkscope.models.family import Family
from sinkscope.models.weights import UsedTensors

MOST_IDS = 1 << 20
"""How many token ids, or characters, are looked at before a canvas that does not fit is refused."""
_PIECE = 1 << 22
"""From here on a number is no token of any tokenizer."""


@dataclass(frozen=True)
class ModelCard:
    """What identifies a model in every artefact.

    Attributes:
        name: the name that `load` was given.
        family: name of the family.
        weight_hash: sha256 over the safetensors files, in order of their names.
        parameters: the number of parameters.
        layers, heads, kv_heads, hidden_size, vocabulary: the shape of the network.
        stored_dtype, dtype: float type of the weights on disk, and in memory.
        mask_id, eos_id: special tokens, None where the model has none.
        max_positions: the longest canvas that the model was made for.
        eos_ids: all tokens that end an answer, where there are several (Llama 3.1 Instruct has three).
        sink_token: name of the variant of its sink token, None without one.
        config_hash: sha256 of its config.json, without what changes no logits, and without the float type (`fingerprints.hash_stored`);
            empty where it was not read from one.
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

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(ModelCard).items():
            check_argument(f"card: {name}", getattr(self, name), hint)
        for name in ("mask_id", "eos_id"):
            if (found := getattr(self, name)) is not None and not 0 <= found < self.vocabulary:
                raise CallError(
                    f"card: {name}: expected one of the {self.vocabulary} tokens of its vocabulary, found {describe(found)}"
                )

    @classmethod
    def of(cls, network: Any, **known: Any) -> "ModelCard":
        """Return the card of a transformers network, whose shape is read from it; ``known`` is what it does not say itself."""
        shape = network.config
        return cls(
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            layers=shape.num_hidden_layers,
            heads=shape.num_attention_heads,
            kv_heads=shape.num_key_value_heads,
            hidden_size=shape.hidden_size,
            vocabulary=shape.vocab_size,
            max_positions=shape.max_position_embeddings,
            **known,
        )

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end an answer."""
        return tuple(dict.fromkeys([*([] if self.eos_id is None else [self.eos_id]), *self.eos_ids]))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for manifests."""
        return asdict(self) | {"eos_ids": list(self.eos_ids)}


@dataclass(frozen=True)
class Model:
    """A model that sinkscope can write with, watch and change.

    Attributes:
        network: the transformers module; ``network(input_ids).logits`` are its logits, before any shift. It is typed Any because its
            attributes depend on the family.
        tokenizer: a transformers tokenizer.
        family: the record of its family.
        card: what identifies it.
        tensors: which tensors of its files were used; None for a network that was not read from files.
        positions_key: the key of its config.json that gives ``card.max_positions``.
        commit: of its hub repository, None for a folder.
    """

    network: Any
    tokenizer: Any
    family: Family
    card: ModelCard
    tensors: UsedTensors | None = None
    positions_key: str = "max_position_embeddings"
    commit: str | None = None

    def __hash__(self) -> int:
        """Return the hash of the network, which equal models share."""
        return hash(self.network)

    @property
    def device(self) -> torch.device:
        """The device of its embeddings."""
        return next(self.network.parameters()).device

    @property
    def limit(self) -> str:
        """The longest canvas and the key that says so, for an error message."""
        return f"{self.card.name} was made for {self.card.max_positions} ({self.positions_key} in its config.json)"

    @property
    def most_ids(self) -> int:
        """How many token ids of a caller's are looked at: many times what a canvas holds, so that a context may be cut to fit."""
        return max(MOST_IDS, self.card.max_positions)

    def encode(self, prompt: str | Sequence[int] | np.ndarray | torch.Tensor) -> list[int]:
        """Return the token ids of a raw text, or checked ids as they are.

        Raises:
            CallError: an empty prompt, a token outside the vocabulary, or a mask token in the prompt.
            ModelError: a tokenizer whose tokens the network does not have.
        """
        if isinstance(prompt, str):
            ids = self.tokenize(prompt)
            empty = all(
                token == self.tokenizer.bos_token_id for token in ids
            )  # which the tokenizer puts in front of nothing, too
        else:
            ids = _read_ids(prompt, "a prompt as text or as 1-D token ids", self.most_ids)
            beyond = [token for token in ids if not 0 <= token < self.card.vocabulary]
            if beyond:
                raise CallError(f"prompt: token ids lie in 0…{self.card.vocabulary - 1}, found {beyond[:5]}")
            empty = not ids
        if empty:
            raise CallError("expected a prompt with at least one token, found an empty one")
        self._refuse_masks(ids)
        return ids

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Return the token ids of a text, every word of which the tokenizer knows; ``special`` adds what it puts around a text.

        Raises:
            CallError: an unknown word, or a lone surrogate.
            ModelError: a damaged tokenizer, or one whose tokens the network does not have.
        """
        most = max(MOST_IDS, 16 * self.card.max_positions)
        if len(text) > most:
            raise CallError(f"prompt: expected at most {most:,} characters, found {len(text):,}; {self.limit}")
        check_encodable(text, "prompt")
        try:
            ids = list(self.tokenizer(text, add_special_tokens=special, verbose=False).input_ids)
        except Exception as error:  # the tokenizers library raises nothing narrower
            raise ModelError(
                f"{self.card.name}: expected a tokenizer for any text, found one that fails at {shown(text)} ({first_line(error)}); "
                "correct its tokenizer.json (its unk_token must be in its vocabulary) or fetch it again"
            ) from error
        self._refuse_unknown(text, ids, special)
        self._refuse_foreign(ids)
        return ids

    def _refuse_masks(self, ids: list[int]) -> None:
        """Raise an error where a prompt holds the mask token."""
        if self.card.mask_id is not None and self.card.mask_id in ids:
            place = ids.index(self.card.mask_id)
            raise CallError(
                f"prompt: holds the mask token {self.card.mask_id} at position {place}; a prompt must be without masks"
            )

    def _refuse_foreign(self, ids: list[int]) -> None:
        """Raise an error where the tokenizer makes a token that the network does not have."""
        beyond = [token for token in ids if not 0 <= token < self.card.vocabulary]
        if beyond:
            raise ModelError(
                f"{self.card.name}: expected a tokenizer with the {self.card.vocabulary} tokens of the network, found that it makes "
                f"{self.tokenizer.convert_ids_to_tokens(beyond[0])!r} token {beyond[0]}; its tokenizer belongs to another model"
            )

    def _refuse_unknown(self, prompt: str, ids: list[int], special: bool) -> None:
        """Raise an error that names the words of a text that the tokenizer does not know."""
        unknown, own_text = _unknown_token(self.tokenizer)
        if unknown is None or unknown not in ids:
            return
        pieces = self.tokenizer(prompt, add_special_tokens=special, return_offsets_mapping=True, verbose=False)
        found = zip(pieces.input_ids, pieces.offset_mapping, strict=True)
        spans = [(a, b) for token, (a, b) in found if token == unknown and b > a]  # others are put around the text
        words = [word for a, b in spans if (word := prompt[a:b].strip() or prompt[a:b]) != own_text]
        if not words:
            return
        unknown_words = ", ".join(shown(word) for word in list(dict.fromkeys(words))[:8])
        raise CallError(
            f"prompt: {self.card.name} does not know {unknown_words}; its vocabulary has {len(self.tokenizer)} words "
            "(`sinkscope problems` prints prompts it knows; a published model, such as GSAI-ML/LLaDA-8B-Instruct, takes any text)"
        )

    def decode(self, ids: Sequence[int] | torch.Tensor) -> str:
        """Return the text of token ids, without special tokens.

        Raises:
            CallError: they are no row of token ids of the model.
        """
        found = _read_ids(ids, "1-D token ids", self.most_ids)
        wrong = next((token for token in found if not 0 <= token < self.card.vocabulary), None)
        if wrong is not None:
            raise CallError(
                f"ids: expected token ids from 0 upwards, below {self.card.vocabulary}, found {describe(wrong)}"
            )
        return self.tokenizer.decode(found, skip_special_tokens=True)

    def answer_text(self, answer: torch.Tensor) -> str:
        """Return the text of the token ids of an answer up to its first EOS, without masks.

        Raises:
            CallError: see `decode`.
        """
        ids = _read_ids(answer, "the 1-D token ids of an answer", self.most_ids)
        end = next((at for at, token in enumerate(ids) if token in self.card.ends), len(ids))
        return self.decode([token for token in ids[:end] if token != self.card.mask_id]).strip()

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the token ids of a conversation, by the tokenizer's chat template or, where it has none, by the family's.

        Raises:
            ModelError: neither has a template, the template is damaged, or the tokenizer lacks its control tokens.
            CallError: this is no conversation, or it holds an unknown word or a mask token.
        """
        return self.encode(self.tokenize(self.chat_text(messages), special=False))

    def chat_text(
        self, messages: Sequence[dict[str, str]], *, begun: bool = False, instead: str = "pass the prompt as text"
    ) -> str:
        """Return a conversation as text, up to where the assistant begins.

        Args:
            begun: whether the last message is the beginning of the assistant's answer, which goes on behind it.
            instead: what an error advises to do without a template.

        Raises:
            ModelError, CallError: see `chat`.
        """
        if not isinstance(messages, Sequence) or not messages or not all(map(_is_message, messages)):
            raise CallError(f'expected messages as a list of {{"role": …, "content": …}}, found {shown(messages)}')
        return write_conversation(self.card.name, self.tokenizer, messages, begun, self._template(instead), instead)

    def _template(self, instead: str) -> str | None:
        """Return the family's chat template; None where the tokenizer has its own."""
        own = getattr(self.tokenizer, "chat_template", None)
        if isinstance(own, Mapping) and own and "default" not in own:
            raise ModelError(
                f"{self.card.name}: expected a chat template named 'default' in its tokenizer, found {', '.join(map(shown, own))}; "
                f"name one of them so, or {instead}"
            )
        if own:
            return None
        if self.family.chat_template is None:
            raise ModelError(f"{self.card.name}: its tokenizer has no chat template; {instead}")
        lacking = [token for token in self.family.chat_tokens if token not in self.tokenizer.get_vocab()]
        if lacking:
            raise ModelError(
                f"{self.card.name}: its tokenizer has no chat template; {instead} "
                f"(for {self.family.name}'s own template it lacks {', '.join(lacking)}: this is a base model)"
            )
        return self.family.chat_template


def _unknown_token(tokenizer: Any) -> tuple[int | None, str | None]:
    """Return the token that stands for unknown words, and its text where it is an ordinary word as well.

    Where the settings of a tokenizer name none, its tokenizer.json may.
    """
    named = getattr(tokenizer, "unk_token_id", None)
    if named is not None:
        return named, None
    core = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    text = getattr(core, "unk_token", None)
    return (None, None) if core is None or text is None else (core.token_to_id(text), text)


def _read_ids(ids: Any, expected: str, most: int) -> list[int]:
    """Return token ids that are a sequence or a 1-D array of whole numbers.

    Args:
        expected: what they are, for the message of an error.
        most: how many there may be.
    """
    if isinstance(ids, range) and ids[most:]:  # its length may be no number of the machine
        raise CallError(f"expected {expected}, at most {most:,}, found {ids}")
    if isinstance(ids, torch.Tensor | np.ndarray):
        found = described(ids) if isinstance(ids, torch.Tensor) else f"shape {ids.shape} of {ids.dtype}"
        if (
            ids.ndim == 1
            and str(ids.dtype).removeprefix("torch.")
            in ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64")
        ):
            if len(ids) > most:
                raise CallError(f"expected {expected}, at most {most:,}, found {len(ids):,}")
            return [int(token) for token in ids.tolist()]
    elif isinstance(ids, Sequence) and not isinstance(ids, str | bytes | bytearray | memoryview):
        if len(ids) > most:
            raise CallError(f"expected {expected}, at most {most:,}, found {len(ids):,}")
        wrong = next(
            (number for number, token in enumerate(ids) if not isinstance(token, Integral) or isinstance(token, bool)),
            None,
        )
        if wrong is None:
            return [int(token) for token in ids]
        found = f"{describe(ids[wrong])} among them, at {wrong}"
    else:
        found = describe(ids) if isinstance(ids, str | int | float | None) else type(ids).__name__
    raise CallError(f"expected {expected}, found {found}")


def _is_message(message: Any) -> bool:
    """Return whether this is a message of a conversation, which has a role and says something, or calls tools instead."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if isinstance(content, list):
        return bool(content) and all(
            isinstance(part, Mapping) and isinstance(part.get("type"), str) for part in content
        )
    return isinstance(content, str) or ("content" in message and "tool_calls" in message)


def expect_model(model: Any, unhidden: bool = False, unwatched: bool = False) -> None:
    """Raise an error for something that is no `Model`, such as the name of one or its network alone.

    Args:
        unhidden: also refuses a model while a rule hides its keys.
        unwatched: also refuses it while anything records or changes it, for work that runs it on texts of its own.

    Raises:
        CallError: it is something else.
    """
    if not isinstance(model, Model):
        raise CallError(f"model: expected what sinkscope.load returns, found {type(model).__name__}")
    if model.device.type == "meta":
        raise CallError(
            f"model: expected the weights of {model.card.name}, found it on the device meta, which holds none; load it again"
        )
    table = getattr(model.network.get_input_embeddings(), "num_embeddings", model.card.vocabulary)
    if table < model.card.vocabulary:
        raise CallError(
            f"model: expected the {model.card.vocabulary} tokens of {model.card.name}, found a network of {table}; load it again"
        )
    shape = model.network.config
    for name, key in (
        ("layers", "num_hidden_layers"),
        ("heads", "num_attention_heads"),
        ("hidden_size", "hidden_size"),
    ):
        if (found := getattr(model.card, name)) != (has := getattr(shape, key, found)):
            raise CallError(f"card: {name}: expected {has}, as the network has it, found {found}")
    if model.card.family != model.family.name:
        raise CallError(
            f"card: family: expected {model.family.name!r}, as the family has it, found {model.card.family!r}"
        )
    if model.card.mask_id is None and not model.family.causal:
        raise CallError(f"card: mask_id: expected the mask token of a {model.family.name}, found None")
    session = current_session(model.network)
    subscribers = [] if session is None else session.subscribers
    if (unhidden or unwatched) and any(isinstance(one, Hider) for one in subscribers):
        raise CallError(
            f"model: expected {model.card.name} as it is, found it under a rule that hides keys; call this outside of the rule"
        )
    if unwatched and subscribers:
        raise CallError(
            f"model: expected {model.card.name} as it is, found it recorded or changed; call this outside of that with block"
        )
