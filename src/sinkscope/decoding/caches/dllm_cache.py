"""dLLM-Cache (Liu et al., 2025; maomaocun/dLLM-cache, dllm_cache/hooks/cache_hook_LLaDA.py,
utils/generate_function.py).

Every layer keeps keys, values, and the outputs of its attention and MLP. The prompt is computed in every Kp-th step,
the answer in every Kr-th. In between a layer computes the values of the whole answer, and everything else only of those
positions of the answer whose values have turned most (least cosine with the stored ones).

Quirk: the first layer computes everything in every step.
Quirk: steps are counted over the whole generation, so that a block may begin without a refresh.
Quirk: the stored values of the whole answer are renewed in every step, the keys of the chosen positions only.
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from sinkscope.decoding.caches.policy import LayeredPolicy


@dataclass(frozen=True)
class DLLMCache(LayeredPolicy):
    """Computes the prompt seldom, the answer often, and in between the part of the answer whose values have turned.

    Attributes:
        prompt: the prompt is computed in every so many steps (published: ``prompt_interval_steps``, 100 in its
            example).
        answer: the answer is computed in every so many steps (published: ``gen_interval_steps``).
        ratio: share of the answer that is computed in between (published: ``transfer_ratio``).
    """

    name = "dllm-cache"
    own_places = True

    prompt: int = 100
    answer: int = 7
    ratio: float = 0.25

    ranges = {"prompt": (1, inf), "answer": (1, inf), "ratio": (0, 1)}  # noqa: RUF012

    def whole_parts(self, layer: int, number: int) -> tuple[bool, bool]:
        return layer == 0 or number % self.prompt == 0, layer == 0 or number % self.answer == 0

    def share(self, length: int) -> int:
        return int(length * self.ratio)

    def choose(self, values: Tensor, before: Tensor) -> Tensor:
        alike = torch.nn.functional.cosine_similarity(values, before, dim=-1)
        return alike.topk(self.share(values.shape[1]), largest=False).indices
