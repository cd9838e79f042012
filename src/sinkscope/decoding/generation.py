"""`generate` writes with a model, using the sampler of its family."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, overload

import numpy as np
import torch

from sinkscope.decoding.caches.policy import CachePolicy, parse_cache
from sinkscope.decoding.canvas import Step, Work, make_batch
from sinkscope.decoding.captured import capturing
from sinkscope.decoding.projection import finite_steps
from sinkscope.decoding.settings import find_sampler, resolve_settings
from sinkscope.errors import CallError
from sinkscope.models import Model
from sinkscope.notebook_card import card


@dataclass(frozen=True, eq=False)
class Generation:
    """The result of one generation.

    Attributes:
        tokens: int64 [position], the final canvas with the prompt, without padding.
        text: the answer up to its first EOS, without special tokens.
        steps: number of forward calls.
        prompt_length: number of tokens of the prompt.
        work: the multiply-adds; None for a sampler that does not count them.
        graphs: whether steps were replayed as CUDA graphs (``used``), or in a word why not (`CapturedSteps.word`).
    """

    tokens: torch.Tensor
    text: str
    steps: int
    prompt_length: int
    work: Work | None = None
    graphs: str = "off"

    def _repr_html_(self) -> str:
        tokens = f"{self.prompt_length} of the prompt, {len(self.tokens) - self.prompt_length} written"
        return card("Generation", {"answer": self.text, "tokens": tokens, "steps": self.steps})


@overload
def generate(
    model: Model,
    prompt: str | torch.Tensor,
    *,
    on_step: Callable[[Step], object] | None = None,
    graphs: bool = False,
    **settings: Any,
) -> Generation: ...
@overload
def generate(model: Model, prompt: Sequence[Any] | None = None, *, messages: Any = None, **settings: Any) -> Any: ...
def generate(
    model: Model,
    prompt: Any = None,
    *,
    messages: Any = None,
    on_step: Any = None,
    graphs: bool = False,
    **settings: Any,
) -> Any:
    """Return a `Generation` by the published sampler of the model's family, or a list of them for a list of prompts.

    Args:
        prompt: raw text or 1-D token ids, or a list of either, which is written as one left-padded batch.
        messages: a conversation (a list of ``{"role", "content"}``) or a list of conversations, for the chat template;
            instead of ``prompt``.
        on_step: called after every step with the canvas as it then is (the published ``output_history``); it must not
            write into the tensors of a step, as the sampler goes on with them.
        graphs: on a GPU, whether steps that repeat a shape are replayed as CUDA graphs; results are the same. Not yet
            tried on a GPU.
        settings: settings of the family's sampler; an unknown one is a TypeError that names the right one. ``cache``
            takes a `CachePolicy` or its text.

    Raises:
        CallError: a prompt or settings that do not fit.
    """
    prompts, texts, single = _read_prompts(model, prompt, messages)
    if isinstance(policy := settings.get("cache"), CachePolicy):
        settings["cache"] = policy.text
        if parse_cache(policy.text) != policy:  # the text would name another class
            raise CallError(f"cache: declare {type(policy).__name__} as an entry point of the group sinkscope.caches")
    resolved = resolve_settings(model.family, **settings)
    batch = make_batch(model, prompts, texts, resolved.length)
    last: Step | None = None
    counts = torch.zeros(len(prompts), dtype=torch.long, device=model.device)
    # Closed, the sampler ends its generation at once where on_step raises.
    with (
        capturing(model, graphs) as captured,
        contextlib.closing(finite_steps(model, find_sampler(model.family.sampler)(model, batch, resolved))) as steps,
    ):
        for last in steps:
            counts += (last.written >= 0).any(-1) if model.family.causal else 1  # a diffusion step counts for every row
            if on_step is not None:
                on_step(last)
    assert last is not None  # a sampler makes at least one step
    width, written = batch.tokens.shape[1], counts.tolist()
    generations = []
    for row, own in enumerate(prompts):
        tokens = last.tokens[row, width - len(own) :].cpu()
        if model.family.causal:
            tokens = tokens[: len(own) + written[row]]
        if last.lengths is not None:
            tokens = tokens[: int(last.lengths[row])]
        work = None if last.meter is None else last.meter.work(row)
        steps = written[row] if work is None else work.forwards
        generations.append(
            Generation(tokens, model.answer_text(tokens[len(own) :]), steps, len(own), work, captured.word)
        )
    return generations[0] if single else generations


def _read_prompts(model: Model, prompt: Any, messages: Any) -> tuple[list[list[int]], list[str | None], bool]:
    """Return the token ids of each prompt, its text where there is one, and whether a single prompt was given."""
    if (prompt is None) == (messages is None):
        raise CallError("expected either prompt or messages, found both or neither")
    if messages is not None:
        single = all(isinstance(message, Mapping) for message in messages)
        encoded = [model.chat(conversation) for conversation in ([messages] if single else messages)]
        return encoded, [model.decode(ids) for ids in encoded], single
    if isinstance(prompt, str | torch.Tensor | np.ndarray):
        single = isinstance(prompt, str) or prompt.ndim < 2
    else:
        single = len(prompt) > 0 and all(isinstance(token, Integral) for token in prompt)
    prompts = [prompt] if single else list(prompt)
    return [model.encode(one) for one in prompts], [one if isinstance(one, str) else None for one in prompts], single
