"""LLaDA's sampler as a generator of steps; it writes the tokens of the published loop, from the same random draws.

Confidences are scattered back into the full canvas before top-k, so that ties break as published. Each row draws, from
its own seed, what the published loop draws for it alone under that seed: noise for the whole canvas, then the uniform
confidences. The quirks are described in docs/quirks.md.

Quirk: ``confidence_eos_eot_inf`` sets EOS on the noisy logits and EoT on the plain ones in one chained assignment.
At temperature 0 both names are one tensor, so both tokens lose confidence; above 0 only EoT does.
Quirk: a model may predict the mask token itself; it is committed, stays a mask, and a block may end unfinished.
Quirk: above temperature 0 the candidate is drawn with noise, its confidence is read without.
"""

from collections.abc import Iterator

from sinkscope.decoding.blocks import BlockRule, block_steps
from sinkscope.decoding.canvas import Batch, Step
from sinkscope.decoding.settings import LLaDASettings
from sinkscope.models import Model


def llada_steps(model: Model, batch: Batch, settings: LLaDASettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens after each prompt, one `Step` for each forward call."""
    eos, eot = model.card.eos_id, _end_of_turn(model)
    lost = [] if not settings.confidence_eos_eot_inf else [eot] if settings.temperature > 0 else [eos, eot]
    rule = BlockRule(
        never=() if eos is None or not settings.logits_eos_inf else (eos,),
        late=tuple(token for token in lost if token is not None),
    )
    return block_steps(model, batch, settings, rule)


def _end_of_turn(model: Model) -> int | None:
    index = model.tokenizer.convert_tokens_to_ids("<|eot_id|>") if "<|eot_id|>" in model.tokenizer.get_vocab() else None
    return index if isinstance(index, int) else None
