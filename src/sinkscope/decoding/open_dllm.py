"""Open-dLLM's sampler as a generator of steps, over the whole canvas; token for token and draw for draw the published
loop.

It is Dream's with another draw of places, an end when no mask is left, and p2 (path planning), which chooses the whole
answer anew in each step and masks its least probable tokens again, fewer in each step. Source: pengzhangzhi/Open-dLLM,
veomni/models/transformers/qwen2/generation_utils.py.

Quirk: p2 draws a token at every position, of the prompt too, and compares what a written token's place would take now,
not the token that stands there.
Quirk: int(masks · (1 − s/t)) rounds down, as in Dream.

Not modelled: padding in a published batch, and prompts that hold masks.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.decoding.canvas import Batch, Step, WorkMeter, masked_canvas, publishing, row_generators, scattered
from sinkscope.decoding.dream import choose, commit_shares, masks_by_chance
from sinkscope.decoding.projection import WholeReader, project
from sinkscope.decoding.settings import OpenDLLMSettings
from sinkscope.models import Model


@torch.no_grad()
def open_dllm_steps(model: Model, batch: Batch, settings: OpenDLLMSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, one `Step` a forward call; a step may commit nothing."""
    mask_id = model.card.mask_id
    assert mask_id is not None
    canvas, layout = masked_canvas(batch, settings.length, mask_id)
    sources = row_generators(settings.seed, len(canvas), canvas.device)
    shares = commit_shares(settings.steps, settings.eps, canvas.device)
    meter, answer = WorkMeter(model.network, len(canvas)), canvas == mask_id
    reader, real = WholeReader(model, layout, meter), pad(batch.real, (0, settings.length), value=True)
    with publishing(model, batch, settings) as publisher:
        for number, share in enumerate(shares):
            masked = places = canvas == mask_id
            counts = masked.sum(-1).tolist()
            writing = [row for row, count in enumerate(counts) if count]
            if not writing:
                return
            if settings.algorithm == "origin":
                places = masks_by_chance(masked, counts, share, sources)
            elif settings.algorithm == "p2":
                places = real & masked.any(-1, keepdim=True)
            sizes, candidates = places.sum(-1).tolist(), places & masked
            publisher.before(canvas, masked, layout.lengths, range(len(canvas)), candidates=candidates)
            meter.add_words(places)
            hidden = reader.read(canvas, writing, publisher.listened)
            logits = project(model, hidden, places, layout, most=sum(sizes))
            token, sure = choose(logits, sizes, settings, sources, exact=True)
            predicted, confidence = scattered(places, token, sure)
            predicted = predicted.masked_fill(~candidates, -1)
            written = predicted.clone()
            if settings.algorithm == "p2":
                uncertain = confidence.masked_fill(~answer, torch.inf)
                again = int(torch.tensor(float(settings.length)) * (1 - (number + 1) / settings.steps))
                for row in writing:  # of the whole row, as published, where ties are sorted in another order
                    first = layout.starts[row]
                    worst = first + uncertain[row, first:].argsort()[:again]
                    written[row, worst] = torch.where(masked[row, worst], -1, mask_id)
            elif settings.algorithm != "origin":
                written.fill_(-1)
                commits = (torch.tensor(counts, device="cpu").float() * share).int().tolist()
                for row in writing:
                    first = layout.starts[row]
                    chosen = first + _places(confidence[row, first:], commits[row], settings, sources[row])
                    written[row, chosen] = predicted[row, chosen]
            canvas = torch.where(written >= 0, written, canvas)
            shown = confidence.float().masked_fill(~candidates, torch.nan)
            publisher.after(written, predicted, shown)
            yield Step(number, canvas, written, shown, meter)


def _places(confidence: Tensor, count: int, settings: OpenDLLMSettings, source: torch.Generator) -> Tensor:
    """Return which positions of a row are committed; ``confidence`` [position] is −∞ where there is no mask."""
    if settings.alg_temp and count:
        drawn = torch.rand(confidence.shape, device=confidence.device, generator=source).clamp(min=1e-20, max=1 - 1e-20)
        confidence = confidence / settings.alg_temp - (-drawn.log()).log()
    return confidence.topk(count).indices
