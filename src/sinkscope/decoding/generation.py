"""`generate` writes with a model, using the sampler of its family."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, overload

import numpy as np
import torch

from sinkscope.decoding.caches.parsing import parse_cache
from sinkscope.decoding.caches.policy import CachePolicy
from sinkscope.decoding.canvas import Step, make_batch
from sinkscope.decoding.projection import NotFiniteError
from sinkscope.decoding.samplers import find_sampler, resolve_settings
from sinkscope.decoding.work import Work
from sinkscope.errors import CallError, ModelError
from sinkscope.models import Model
from sinkscope.notebook_card import card

Prompt = str | Sequence[int] | torch.Tensor


@dataclass(frozen=True, eq=False)
class Generation:
    """The result of one generation.

    Attributes:
        tokens: int64 [position], the final canvas with the prompt, without padding.
        text: the answer up to its first EOS, without special tokens.
        steps: number of forward calls.
        prompt_length: number of tokens of the prompt.
        work: the multiply-adds that it took; None for a sampler that does not count them.
    """

    tokens: torch.Tensor
    text: str
    steps: int
    prompt_length: int
    work: Work | None = None

    def _repr_html_(self) -> str:
        """Return a summary for notebooks."""
        tokens = f"{self.prompt_length} of the prompt, {len(self.tokens) - self.prompt_length} written"
        return card("Generation", {"answer": self.text, "tokens": tokens, "steps": self.steps})


@overload
def generate(
    model: Model, prompt: str | torch.Tensor, *, on_step: Callable[[Step], object] | None = None, **settings: Any
) -> Generation: ...
@overload
def generate(
    model: Model,
    prompt: Sequence[Any] | None = None,
    *,
    messages: Any = None,
    on_step: Callable[[Step], object] | None = None,
    **settings: Any,
) -> Any: ...
def generate(
    model: Model,
    prompt: Any = None,
    *,
    messages: Any = None,
    on_step: Callable[[Step], object] | None = None,
    **settings: Any,
) -> Generation | list[Generation]:
    """Generate an answer with the published sampler of the model's family.

    Args:
        prompt: raw text or 1-D token ids, or a list of either, which is written as one left-padded batch.
        messages: a conversation (a list of ``{"role", "content"}``) or a list of conversations, for the chat template;
            instead of ``prompt``.
        on_step: called after every step with the canvas as it then is (the published ``output_history``); it reads the
            tensors of a step and does not write into them, as the sampler goes on with them.
        settings: settings of the family's sampler; an unknown one is a TypeError that names the right one. ``cache``
            takes a `CachePolicy` or its text.

    Returns:
        A `Generation`, or a list of them for a list of prompts.

    Raises:
        CallError: a prompt or settings that do not fit.
    """
    prompts, texts, single = _read_prompts(model, prompt, messages)
    if isinstance(policy := settings.get("cache"), CachePolicy):
        settings["cache"] = policy.text
        if parse_cache(policy.text) != policy:
            raise CallError(
                f"cache: expected a policy of a class that is found by its name, as traces and results name it, found "
                f"{type(policy).__name__}; declare it as an entry point of the group sinkscope.caches in an installed "
                f"package"
            )
    resolved = resolve_settings(model.family, **settings)
    batch = make_batch(model, prompts, texts, resolved.length)
    canvas, lengths = batch.tokens, None
    counts, meter = [0] * len(prompts), None
    # Closed, the sampler ends its generation at once where on_step raises.
    with contextlib.closing(_finite_steps(model, find_sampler(model.family.sampler)(model, batch, resolved))) as steps:
        for step in steps:
            canvas, meter, lengths = step.tokens, step.meter, step.lengths
            # A diffusion step counts for every row; reading it from a GPU would wait.
            wrote = (step.written >= 0).any(-1).tolist() if model.family.causal else [True] * len(counts)
            counts = [count + wrote[row] for row, count in enumerate(counts)]
            if on_step is not None:
                on_step(step)
    width = batch.tokens.shape[1]
    generations = []
    for row, own in enumerate(prompts):
        tokens = canvas[row, width - len(own) :].cpu()
        if model.family.causal:
            tokens = tokens[: len(own) + counts[row]]
        if lengths is not None:
            tokens = tokens[: int(lengths[row])]
        work = None if meter is None else meter.work(row)
        steps = counts[row] if work is None else work.forwards
        generations.append(Generation(tokens, model.answer_text(tokens[len(own) :]), steps, len(own), work))
    return generations[0] if single else generations


def _finite_steps(model: Model, steps: Iterable[Step]) -> Generator[Step, None, None]:
    """Yield the steps of a sampler.

    Raises:
        ModelError: logits that are not finite; the message names the step. On a GPU it is raised after the last step.
    """
    number, flaws = 0, []
    try:
        for step in steps:
            if step.confidence.device.type != "cpu":
                flaws.append(has_flaw(step, model.card.mask_id))
            yield step
            number += 1
    except NotFiniteError as error:
        raise ModelError(f"{model.card.name}, step {number}: {error}") from error
    if flaws and bool((flawed := torch.stack(flaws)).any()):
        raise ModelError(
            f"{model.card.name}, step {int(flawed.int().argmax())}: expected finite logits, found others; see "
            f"`sinkscope check`"
        )


def has_flaw(step: Step, mask_id: int | None) -> torch.Tensor:
    """Return whether a token was committed without a finite confidence, bool []; masks that are put back have none."""
    commits = step.written >= 0 if mask_id is None else (step.written >= 0) & (step.written != mask_id)
    return (commits & ~step.confidence.isfinite()).any()


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
