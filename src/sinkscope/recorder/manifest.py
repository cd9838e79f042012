"""What the manifest of a trace says of the run that made it."""

import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sinkscope.attention import GenerationStart
from sinkscope.models import Model
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

    def of_run(self, start: GenerationStart, prompt: int, step: PartStep, level: str, hidden: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what is known of a prompt before its first step.

        Args:
            prompt: its number in the generation.
            step: the first step.
            level: what is kept.
            hidden: what is hidden from the model.
        """
        model = self.model
        sampler = dict(start.sampler)
        if "seed" in sampler:
            sampler["seed"] += prompt
        parameter = next(self.network.parameters(), torch.empty(0))
        return {
            "model": model.card.as_dict() if model is not None else {"name": type(self.network).__name__},
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
            "dtype": str(parameter.dtype).removeprefix("torch."),
            "versions": {
                "sinkscope": version("sinkscope"),
                "torch": torch.__version__,
                "transformers": version("transformers"),
                "python": platform.python_version(),
            },
        }

    def final_texts(self, canvas: np.ndarray, prompt_length: int) -> dict[str, Any]:
        """Return the answer on the last canvas, int32 [position], and the texts of its tokens."""
        if self.tokenizer is None:
            return {}
        answer = canvas[prompt_length:].astype(np.int64)
        if self.model is not None:
            text = self.model.answer_text(torch.from_numpy(answer))
        else:
            ends = np.flatnonzero(answer == self._eos_id)
            text = self.tokenizer.decode(answer[: ends[0] if len(ends) else None].tolist(), skip_special_tokens=True)
        return {"text": text, **self.vocabulary(canvas)}

    def vocabulary(self, canvas: np.ndarray) -> dict[str, Any]:
        """Return the texts of the tokens of a canvas, so that a trace can be read without its model."""
        if self.tokenizer is None:
            return {}
        mask_id = None if self.model is None else self.model.card.mask_id
        special = [token for token in (mask_id, self._eos_id) if token is not None]
        tokens = sorted({int(token) for token in canvas if token >= 0} | set(special))
        for token in tokens:
            if token not in self._texts:  # special tokens have no text, they go by their name
                self._texts[token] = self.tokenizer.decode([token]) or str(self.tokenizer.convert_ids_to_tokens(token))
        return {"vocabulary": {str(token): self._texts[token] for token in tokens}}

    @property
    def _eos_id(self) -> int | None:
        return self.model.card.eos_id if self.model is not None else getattr(self.tokenizer, "eos_token_id", None)


def command_line() -> str | None:
    """Return the running ``sinkscope`` command as it was typed; None where sinkscope is used as a library."""
    program = Path(sys.argv[0]) if sys.argv else Path()
    called = program.stem == "sinkscope" or program.parts[-2:] == ("sinkscope", "__main__.py")
    return shlex.join(["sinkscope", *sys.argv[1:]]) if called else None
