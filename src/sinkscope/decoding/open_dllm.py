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
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sinkscope.decoding.canvas import Batch, Step, WorkMeter, masked_canvas, publishing, row_generators, scattered
from sinkscope.decoding.dream import commit_shares, draw_tokens, masks_by_chance, restrict
from sinkscope.decoding.projection import WholeReader, project
from sinkscope.decoding.settings import Settings
from sinkscope.models import Model


@dataclass(frozen=True)
class OpenDLLMSettings(Settings):
    """Open-dLLM's sampler over the whole canvas (pengzhangzhi/Open-dLLM, generation_utils.py).

    Its published script writes with p2, temperature 0.5 and top_k 200.

    Attributes:
        length: tokens to write (published: ``max_new_tokens``).
        steps: forward calls; there may be more of them than tokens, some then commit nothing.
        temperature: divides the logits before a token is drawn; 0 takes the arg-max.
        top_p: choose among the smallest set of tokens whose probabilities reach it; 1 is all.
        top_k: choose among so many tokens; 0 is all.
        algorithm: which masks are committed first: random ones (origin), those with the most probable token
            (maskgit_plus), with the largest distance between the two best tokens (topk_margin), with the least entropy
            (entropy), or the most probable ones while the least probable tokens are masked again (p2) (published:
            ``alg``).
        alg_temp: adds Gumbel noise to confidence / alg_temp; 0 takes the most confident places. Not used by origin and
            p2.
        eps: the last of the time steps, which run evenly from 1. Not used by p2.
        seed: of the draws; row i of a batch draws from seed + i.
    """

    length: int = 20
    steps: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    algorithm: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "p2"] = "entropy"
    alg_temp: float = 0.0
    eps: float = 1e-3
    seed: int = 0


@torch.no_grad()
def open_dllm_steps(model: Model, batch: Batch, settings: OpenDLLMSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, one `Step` a forward call; a step may commit nothing."""
    mask_id = model.card.mask_id
    assert mask_id is not None
    canvas, layout = masked_canvas(batch, settings.length, mask_id)
    sources = row_generators(settings.seed, len(canvas), canvas.device)
    meter, shares = WorkMeter(model.network, len(canvas)), commit_shares(settings.steps, settings.eps, canvas.device)
    reader, writable = WholeReader(model, layout, meter), canvas == mask_id
    real = writable.clone()
    real[:, : batch.real.shape[1]] = batch.real
    with publishing(model, batch, settings) as publisher:
        for number, share in enumerate(shares):
            masked = canvas == mask_id
            counts = masked.sum(-1).tolist()
            writing = [row for row, count in enumerate(counts) if count]
            if not writing:
                return
            places = masked
            if settings.algorithm == "origin":
                places = masks_by_chance(masked, counts, share, sources)
            elif settings.algorithm == "p2":
                places = real & masked.any(-1, keepdim=True)
            sizes, open_places = places.sum(-1).tolist(), places & masked
            publisher.before(canvas, masked, layout.lengths, range(len(canvas)), candidates=open_places)
            meter.add_words(places)
            hidden = reader.read(canvas, writing, publisher.listened)
            logits = project(model, hidden, places, layout, most=sum(sizes))
            token, sure = _choose(logits, sizes, settings, sources)
            predicted, confidence = scattered(places, token, sure)
            written = predicted.masked_fill(~open_places, -1)
            if settings.algorithm == "p2":
                uncertain = confidence.masked_fill(~writable, torch.inf)
                again = int(torch.tensor(float(settings.length)) * (1 - (number + 1) / settings.steps))
                for row in writing:  # of the whole row, as published, where ties are sorted in another order
                    first = layout.starts[row]
                    worst = first + uncertain[row, first:].argsort()[:again]
                    written[row, worst] = torch.where(masked[row, worst], -1, mask_id)
            elif settings.algorithm != "origin":
                commits = (torch.tensor(counts, device="cpu").float() * share).int().tolist()
                for row in writing:
                    first = layout.starts[row]
                    chosen = first + _places(confidence[row, first:], commits[row], settings, sources[row])
                    written[row] = torch.full_like(written[row], -1).scatter(0, chosen, predicted[row, chosen])
            canvas = torch.where(written >= 0, written, canvas)
            shown = confidence.float().masked_fill(~open_places, torch.nan)
            publisher.after(written, predicted.masked_fill(~open_places, -1), shown)
            yield Step(number, canvas, written, shown, meter)


def _choose(
    logits: Tensor, sizes: list[int], settings: OpenDLLMSettings, sources: list[torch.Generator]
) -> tuple[Tensor, Tensor]:
    """Return the token that each place would take, and its confidence; ``sizes`` places belong to each row."""
    if settings.temperature > 0:
        logits = logits / settings.temperature
    probabilities = torch.softmax(restrict(logits, settings).float(), dim=-1)
    token = probabilities.argmax(-1)
    if settings.temperature > 0:
        rows = zip(probabilities.split(sizes), token.split(sizes), sources, strict=True)
        token = torch.cat([draw_tokens(own, best, source) for own, best, source in rows])
    if settings.algorithm == "topk_margin":
        best = probabilities.topk(2, dim=-1).values
        return token, best[:, 0] - best[:, 1]
    if settings.algorithm == "entropy":
        return token, (probabilities * probabilities.clamp(min=1e-10).log()).sum(-1)
    return token, probabilities.gather(-1, token[:, None])[:, 0]


def _places(confidence: Tensor, count: int, settings: OpenDLLMSettings, source: torch.Generator) -> Tensor:
    """Return which positions of a row are committed; ``confidence`` [position] is −∞ where there is no mask."""
    if settings.alg_temp and count:
        drawn = torch.rand(confidence.shape, device=confidence.device, generator=source).clamp(min=1e-20, max=1 - 1e-20)
        confidence = confidence / settings.alg_temp - (-drawn.log()).log()
    return confidence.topk(count).indices
