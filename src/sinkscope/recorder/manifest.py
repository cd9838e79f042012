"""What the manifest of a trace says of the run that made it."""

import json
import platform
import shlex
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sinkscope.argument_types import fits, in_words
from sinkscope.attention import GenerationStart
from sinkscope.documents import parse_json
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.models.fingerprints import were_changed
from sinkscope.recorder.prompt_steps import PartStep

MOST_TOKENS = 1 << 31
"""Token ids that a trace can hold."""


class Description:
    """Describes the generations of one model in plain values.

    Args:
        network: the module that is watched.
        model: what `load` gave, for the card and the tokenizer; None for another module.
        tokenizer: of another module; its tokens have no texts without one.
    """

    def __init__(self, network: nn.Module, model: Model | None, tokenizer: Any = None) -> None:
        self.network, self.model = network, model
        self.tokenizer = tokenizer if model is None else model.tokenizer
        self._texts: dict[int, str] = {}  # of tokens that were met

    def of_run(
        self, start: GenerationStart, prompt: int, step: PartStep, level: str, hidden: list[dict[str, Any]], layers: int
    ) -> dict[str, Any]:
        """Return what is known of a prompt before its first step.

        Args:
            prompt: its number in the generation.
            step: the first step.
            level: what is kept.
            hidden: what is hidden from the model.
            layers: how many were measured.
        """
        model = self.model
        sampler = plain_values("sampler", dict(start.sampler))
        if isinstance(sampler.get("seed"), int):
            sampler["seed"] += prompt
        parameter = next(self.network.parameters(), torch.empty(0))
        dtype = str(parameter.dtype).removeprefix("torch.")  # that of the card is of loading
        card: dict[str, Any] = (
            {"name": type(self.network).__name__} if model is None else {**model.card.as_dict(), "dtype": dtype}
        )
        if model is not None and were_changed(model.network, model.card.weight_hash):
            parameters = sum(one.numel() for one in model.network.parameters())
            card |= {"weight_hash": None, "parameters": parameters, "layers": layers}
        return {
            "model": card,
            "command": command_line(),
            "causal": step.causal,
            "sampler": sampler,
            "seed": sampler.get("seed"),
            "prompt": start.prompts[prompt],
            "prompt_length": (step.context.prompt_lengths or start.prompt_lengths)[prompt],
            "mask_id": start.mask_id,
            "eos_id": self._eos_id,
            "level": level,
            "hidden": hidden,
            "device": str(parameter.device),
            "dtype": dtype,
            "versions": {
                "sinkscope": version("sinkscope"),
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
        }

    def final_texts(self, canvas: np.ndarray, prompt_length: int, tokens: Iterable[int]) -> dict[str, Any]:
        """Return the answer on the last canvas, int32 [position], and the texts of the tokens of all canvases."""
        if self.tokenizer is None:
            return {}
        answer = canvas[prompt_length:].astype(np.int64)
        if self.model is not None:
            text = self.model.answer_text(torch.from_numpy(answer))
        else:
            ends = np.flatnonzero(answer == self._eos_id)
            text = self._decoded(answer[: ends[0] if len(ends) else None].tolist(), skip_special_tokens=True)
        return {"text": text, **self.vocabulary(tokens)}

    def vocabulary(self, found: Iterable[int]) -> dict[str, Any]:
        """Return the texts of tokens, so that a trace can be read without its model; a token without a text is left out."""
        if self.tokenizer is None:
            return {}
        mask_id = None if self.model is None else self.model.card.mask_id
        special = [token for token in (mask_id, self._eos_id) if token is not None]
        tokens = sorted({int(token) for token in found if token >= 0} | set(special))
        for token in tokens:
            if token not in self._texts:  # special tokens have no text, they go by their name
                piece = None if (text := self._decoded([token])) else self.tokenizer.convert_ids_to_tokens(token)
                self._texts[token] = text or ("" if piece is None else _readable(f"{piece}"))
        return {"vocabulary": {str(token): self._texts[token] for token in tokens if self._texts[token]}}

    def _decoded(self, tokens: list[int], **more: Any) -> str:
        """Return the text of some tokens.

        Raises:
            CallError: the tokenizer gives no text.
        """
        text = self.tokenizer.decode(tokens, **more)
        if not isinstance(text, str):
            raise CallError(f"tokenizer: expected text from decode({tokens[:5]}), found {in_words(text)}")
        return _readable(text)

    @property
    def _eos_id(self) -> int | None:
        return self.model.card.eos_id if self.model is not None else getattr(self.tokenizer, "eos_token_id", None)


def check_tokenizer(tokenizer: Any) -> None:
    """Raise an error for what cannot give tokens their texts.

    Raises:
        CallError: no tokenizer as transformers has them.
    """
    verbs = ("decode", "convert_ids_to_tokens")
    if isinstance(tokenizer, type) or not all(callable(getattr(tokenizer, verb, None)) for verb in verbs):
        raise CallError(
            f"tokenizer: expected a tokenizer of transformers, with {' and '.join(verbs)}, found {in_words(tokenizer)}"
        )
    end = getattr(tokenizer, "eos_token_id", None)
    if end is not None and not (fits(end, int) and 0 <= end < MOST_TOKENS):
        raise CallError(f"tokenizer: expected its eos_token_id to be a token id or None, found {in_words(end)}")


def plain_values(name: str, found: Any) -> dict[str, Any]:
    """Return values by name as the manifest of a trace holds them.

    Raises:
        CallError: no such values: no mapping, what JSON does not know, or numbers that are not finite.
    """
    expected = f"{name}: expected plain values (text, numbers, lists, objects) for the manifest"

    def refuse(value: Any) -> None:
        raise CallError(f"{expected}, found {in_words(value)} among them")

    try:
        content = json.dumps(found, ensure_ascii=False, default=refuse)
    except (TypeError, ValueError, RecursionError):  # names that are none, or values within themselves
        raise CallError(f"{expected}, found others") from None
    values = parse_json(content, name, CallError, "a manifest holds plain values")
    if not isinstance(values, dict):
        raise CallError(f"{name}: expected an object by name for the manifest, found {in_words(found)}")
    return values


def _readable(text: str) -> str:
    """Return a text without lone surrogates, which no file can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def command_line() -> str | None:
    """Return the running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
