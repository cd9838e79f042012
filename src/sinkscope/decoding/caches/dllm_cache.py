"""dLLM-Cache (Liu et al., 2025; maomaocun/dLLM-cache, dllm_cache/hooks/cache_hook_LLaDA.py,
utils/generate_function.py).

Every layer keeps keys, values, and the outputs of its attention and MLP. The prompt is computed in every Kp-th step,
the answer in every Kr-th. In between a layer computes the values of the answer, and all else only where these have
turned most (least cosine with the stored ones).

Quirk: the first layer computes everything in every step.
Quirk: steps are counted over the whole generation, so that a block may begin without a refresh.
Quirk: the stored values of the whole answer are renewed in every step, the keys of the chosen positions only.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import CachePolicy, Count, Moment, Plan, Share
from sinkscope.decoding.caches.store import LayerByLayer, at_places, replaced_forwards
from sinkscope.decoding.canvas import Layout, WorkMeter
from sinkscope.models import Model


@dataclass(frozen=True)
class DLLMCache(CachePolicy):
    """Computes the prompt seldom, the answer often, and in between the part of the answer whose values have turned.

    Attributes:
        prompt: the prompt is computed in every so many steps (published: ``prompt_interval_steps``, 100 in its
            example).
        answer: the answer is computed in every so many steps (published: ``gen_interval_steps``).
        ratio: share of the answer that is computed in between (published: ``transfer_ratio``).
    """

    name = "dllm-cache"
    by_layer = True
    own_places = True
    prompt: Count = 100
    answer: Count = 7
    ratio: Share = 0.25

    def plan(self, moment: Moment) -> Plan:
        return Plan()

    def whole_parts(self, layer: int, number: int) -> tuple[bool, bool]:
        """Return whether a layer computes the whole prompt, and the whole answer, in a step of the generation."""
        return layer == 0 or number % self.prompt == 0, layer == 0 or number % self.answer == 0


class DLLMReader(LayerByLayer):
    """Computes other positions in each layer; a row counts the steps in which it is written, alone or not."""

    def __init__(self, model: Model, layout: Layout, meter: WorkMeter, policy: DLLMCache, answer: int) -> None:
        super().__init__(model, layout, meter, policy)
        self.policy, self._prompt, self._answer = policy, self._real.shape[1] - answer, answer
        self._some = int(self._answer * policy.ratio)  # positions of the answer where a layer does not compute all
        self._attention: dict[int, Tensor] = {}
        self._mlp: dict[int, Tensor] = {}
        self._steps = [0] * len(self._real)

    def read(self, inputs: Tensor, rows: Sequence[int] | None = None, together: bool = False) -> Tensor:
        groups: dict[tuple[bool, bool], list[int]] = {}
        for row in range(len(inputs)) if rows is None else rows:
            groups.setdefault(self.policy.whole_parts(len(self._layers), self._steps[row]), []).append(row)
        for group in groups.values():
            number = self._steps[group[0]]  # the rows of a group are at steps that compute the same parts
            if not self._mlp:
                self._store.refresh(group)
            parts = [self.policy.whole_parts(layer, number) for layer in range(len(self._layers))]
            values = sum(self._answer - self._some for _, answer in parts if not answer and self._some)
            for row in group:
                own = self._lengths[row] - self._answer
                computed = [own * prompt + (self._answer if answer else self._some) for prompt, answer in parts]
                self.meter.add_layers(row, computed, self._lengths[row], values)
                self._steps[row] += 1
            layer = partial(self._layer, torch.tensor(group, device=self._real.device), parts)
            found = self._through(inputs[group], group, partial(partial, layer))
            if self._hidden is None:
                self._hidden = found
            else:
                self._hidden[group] = found
        assert self._hidden is not None
        return self._hidden

    def _layer(
        self, rows: Tensor, parts: list[tuple[bool, bool]], index: int, layer: Any, hidden: Tensor, **given: Any
    ) -> Tensor:
        entering = layer.input_layernorm(hidden)
        places, values = self._places(index, layer, entering, rows, *parts[index])
        if index in self._mlp:
            self._store.compute(places, None, rows)
        some = at_places(places, entering)
        attended = hidden.new_zeros(some.shape)
        if places.shape[1]:
            known = replaced_forwards([layer.self_attn.v_proj], lambda index, module: lambda entering: values)
            with nullcontext() if values is None else known:
                attended = self._attend(layer, some, rows, places, given)
        hidden = hidden + _renewed(self._attention, index, rows, places, attended)
        some = layer.post_attention_layernorm(at_places(places, hidden))
        return hidden + _renewed(self._mlp, index, rows, places, layer.mlp(some) if places.shape[1] else some)

    def _places(
        self, index: int, layer: Any, entering: Tensor, rows: Tensor, prompt: bool, answer: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the positions that a layer computes, int64 [row, chosen], with padding, and values known already."""
        place = torch.arange(entering.shape[1], device=entering.device).expand(len(rows), -1)
        front = place[:, : self._prompt if prompt else 0]
        if answer:
            return torch.cat([front, place[:, self._prompt :]], dim=1), None
        if not self._some:
            return front, None
        values = layer.self_attn.v_proj(entering[:, self._prompt :])
        held = self._store.values[index]
        before = held[rows, :, self._prompt :].transpose(1, 2).flatten(2)
        held[rows, :, self._prompt :] = values.unflatten(-1, (held.shape[1], -1)).transpose(1, 2)
        alike = torch.nn.functional.cosine_similarity(values, before, dim=-1)
        chosen = alike.topk(self._some, largest=False).indices
        values = at_places(chosen, values)
        if prompt:
            values = torch.cat([layer.self_attn.v_proj(entering[:, : self._prompt]), values], dim=1)
        return torch.cat([front, self._prompt + chosen], dim=1), values


def _renewed(held: dict[int, Tensor], index: int, rows: Tensor, places: Tensor, found: Tensor) -> Tensor:
    """Store a layer's outputs at the places that were computed, and return those of all places of the rows."""
    if index not in held:
        return held.setdefault(index, found)
    held[index][rows[:, None], places] = found
    return held[index][rows]
