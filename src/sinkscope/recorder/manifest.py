"""What the manifest of a trace says of the run that made it."""

import json
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sinkscope.attention import GenerationStart
from sinkscope.models import Model
from sinkscope.models.fingerprints import were_changed
from sinkscope.recorder.prompt_steps import PartStep


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
        sampler = plain_values(dict(start.sampler))
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
            text = self.tokenizer.decode(answer[: ends[0] if len(ends) else None].tolist(), skip_special_tokens=True)
        return {"text": text, **self.vocabulary(tokens)}

    def vocabulary(self, found: Iterable[int]) -> dict[str, Any]:
        """Return the texts of tokens, so that a trace can be read without its model; a token without a text is left
        out.
        """
        if self.tokenizer is None:
            return {}
        mask_id = None if self.model is None else self.model.card.mask_id
        special = [token for token in (mask_id, self._eos_id) if token is not None]
        tokens = sorted({int(token) for token in found if token >= 0} | set(special))
        for token in tokens:
            if token not in self._texts:  # special tokens have no text, they go by their name
                text = self.tokenizer.decode([token]) or self.tokenizer.convert_ids_to_tokens(token)
                self._texts[token] = "" if text is None else str(text)
        return {"vocabulary": {str(token): self._texts[token] for token in tokens if self._texts[token]}}

    @property
    def _eos_id(self) -> int | None:
        return self.model.card.eos_id if self.model is not None else getattr(self.tokenizer, "eos_token_id", None)


def plain_values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name as a manifest holds them, NumPy's numbers as Python's."""
    return json.loads(json.dumps(found, allow_nan=False, default=lambda number: number.item()))


def command_line() -> str | None:
    """Return the running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
