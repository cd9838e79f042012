"""The samplers of Dream and Open-dLLM, over the whole canvas; token for token and draw for draw the published loops.

In a published batch rows share one source and one number of commits; here a row does not depend on its neighbours.

Quirk: int(masks · (1 − s/t)) rounds down: with as many steps as tokens the first commits nothing and the last one two.
Quirk: top_p and top_k change confidences, hence the order, also at temperature 0.
Quirk: when the probabilities of a step do not add up to 1 within 1e-6, as in bf16, the arg-max is taken, nothing drawn.
Quirk: with a small alg_temp the softmax underflows at unsure masks; other places may then be drawn, and are masked.
Quirk: a model may predict the mask token itself; it is committed and stays a mask.

Open-dLLM (pengzhangzhi/Open-dLLM, veomni/models/transformers/qwen2/generation_utils.py) is Dream with another draw of
places, an end when no mask is left, and p2 (path planning), which in each step chooses the whole answer anew and masks
fewer of its least probable tokens again. Not modelled: padding in a published batch, prompts with masks.

Quirk: p2 draws a token at every position, of the prompt too, and compares what a written token's place would take now,
not the token that stands there.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.distributions import constraints

from sinkscope.attention import current_session
from sinkscope.decoding.blocks import prompt_by_prompt, surest
from sinkscope.decoding.caches.policy import parse_cache
from sinkscope.decoding.caches.reader import reading
from sinkscope.decoding.canvas import Batch, Step, WorkMeter, masked_canvas, publishing, row_generators, scattered
from sinkscope.decoding.projection import WholeReader, project, within_top_k, within_top_p
from sinkscope.decoding.settings import DreamSettings, OpenDLLMSettings
from sinkscope.models import Model


@torch.no_grad()
def dream_steps(model: Model, batch: Batch, settings: DreamSettings) -> Iterator[Step]:
    """Writes ``settings.length`` tokens behind each prompt, one `Step` a forward call; a step may commit nothing."""
    own_block = getattr(parse_cache(settings.cache), "block", None)
    if settings.threshold and len(batch.tokens) > 1 and current_session(model.network) is not None:
        yield from prompt_by_prompt(model, batch, settings, lambda one, its: dream_steps(model, one, its))
        return
    mask_id, block = model.mask_id, own_block or settings.length
    canvas, layout = masked_canvas(batch, settings.length, mask_id)
    sources = row_generators(settings.seed, len(canvas), canvas.device)
    width, number, judged = canvas.shape[1], 0, settings
    by_chance = settings.algorithm == "origin" and own_block is None
    steps = settings.steps // (settings.length // block)
    shares = None if settings.threshold else commit_shares(steps, settings.eps, canvas.device)
    if own_block is not None:
        judged = replace(settings, algorithm="entropy" if shares is not None else "maskgit_plus")
    meter = WorkMeter(model.network, len(canvas))
    with reading(model, batch, layout, meter, settings) as reader, publishing(model, batch, settings) as publisher:
        for start in range(width - settings.length, width, block):
            reader.begin_block(start, start + block)
            for step in range(block + 1 if shares is None else steps):
                masked, writing = canvas == mask_id, None  # all rows
                candidates = masked
                if own_block is not None:
                    candidates = torch.zeros_like(masked)
                    candidates[:, start : start + block] = masked[:, start : start + block]
                    writing = candidates.any(-1).nonzero().flatten().tolist()
                    if not writing:
                        break
                places, counts = reader.open_places(canvas, masked), candidates.sum(-1).tolist()
                refreshes = own_block is not None and step == 0
                if refreshes:
                    candidates[:, start + 1 :] = False
                elif own_block is None:
                    if by_chance:
                        assert shares is not None
                        candidates = masks_by_chance(masked, counts, shares[step], sources)
                    candidates = candidates if places is None else candidates & places
                open_counts = candidates.sum(-1).tolist()
                publisher.before(canvas, masked, layout.lengths, range(len(canvas)), candidates=candidates)
                meter.add_words(candidates)
                hidden = reader.read(canvas, writing, publisher.listened)
                logits = project(model, hidden, candidates, layout, most=sum(open_counts))
                reader.judge(logits, candidates)
                token, sure = choose(logits, open_counts, judged, sources)
                predicted, confidence = scattered(candidates, token, sure)
                written = torch.full_like(canvas, -1)
                if by_chance or refreshes:
                    written = predicted
                elif shares is None:
                    written = torch.where(surest(confidence, settings.threshold), predicted, written)
                else:
                    commits = (torch.tensor(counts, device="cpu").float() * shares[step]).int().tolist()
                    for row, first in enumerate(layout.starts):
                        count = min(commits[row], open_counts[row])
                        chosen = first + _places(confidence[row, first:], count, settings, sources[row])
                        written[row, chosen] = torch.where(candidates, predicted, mask_id)[row, chosen]
                canvas = torch.where(written >= 0, written, canvas)
                shown = confidence.float().masked_fill(~candidates, torch.nan)
                reader.committed(written, shown)
                publisher.after(written, predicted, shown)
                yield Step(number, canvas, written, shown, meter)
                number += 1
            if own_block is None:
                reader.end_block()


def commit_shares(steps: int, eps: float, device: torch.device | str = "cpu") -> Tensor:
    """Share of the masks each step commits, float32 [step]: 1 − s/t over time steps from 1 to eps, all in the last."""
    times = torch.linspace(1, eps, steps + 1, device=device, dtype=torch.float32).cpu()
    shares = 1 - times[1:] / times[:-1]
    shares[-1] = 1
    return shares


def masks_by_chance(masked: Tensor, counts: list[int], share: Tensor, sources: list[torch.Generator]) -> Tensor:
    """The masks that a step of ``origin`` unmasks; ``counts`` of them in each row."""
    rows = zip(counts, sources, strict=True)
    drawn = [torch.rand(count, device=masked.device, generator=one, dtype=torch.float32) for count, one in rows]
    return torch.zeros_like(masked).masked_scatter_(masked, torch.cat(drawn) < share.item())


def choose(
    logits: Tensor, counts: list[int], settings: OpenDLLMSettings, sources: list[torch.Generator], exact: bool = False
) -> tuple[Tensor, Tensor]:
    """The token each candidate would take, and its confidence; ``counts`` candidates belong to each row. Open-dLLM is
    ``exact``: it takes probabilities in float32 whatever the dtype.
    """
    if settings.temperature > 0:
        logits = logits / settings.temperature
    least = torch.finfo(logits.dtype).min
    logits = within_top_k(within_top_p(logits, settings.top_p, least), settings.top_k, least)
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32 if exact else None)
    sure, token = probabilities.max(dim=-1)
    if settings.temperature > 0:
        rows = zip(probabilities.split(counts), token.split(counts), sources, strict=True)
        token = torch.cat([_draw(own, best, source) for own, best, source in rows])
        sure = probabilities.gather(-1, token[:, None]).squeeze(-1)
    if settings.algorithm == "topk_margin":
        best = probabilities.topk(2, dim=-1).values
        sure = best[:, 0] - best[:, 1]
    elif settings.algorithm == "entropy":
        least = probabilities.clamp(min=1e-10) if exact else probabilities + 1e-10
        sure = (probabilities * least.log()).sum(-1)
    return token, sure


def _draw(probabilities: Tensor, best: Tensor, source: torch.Generator) -> Tensor:
    """Draw a token for each candidate of a row as `torch.distributions.Categorical`; where that refuses, ``best``."""
    shares = probabilities / probabilities.sum(-1, keepdim=True)
    if not len(shares) or not bool(constraints.simplex.check(shares).all()):
        return best
    return torch.multinomial(shares, 1, replacement=True, generator=source).squeeze(-1)


def _places(
    confidence: Tensor, count: int, settings: OpenDLLMSettings, source: torch.Generator, gumbel: bool = False
) -> Tensor:
    """Which positions of one row are committed; ``confidence`` [position] is −∞ where there is no mask."""
    if settings.alg_temp and count:
        if not gumbel:
            return torch.multinomial(torch.softmax(confidence / settings.alg_temp, dim=-1), count, generator=source)
        drawn = torch.rand(confidence.shape, device=confidence.device, generator=source).clamp(min=1e-20, max=1 - 1e-20)
        confidence = confidence / settings.alg_temp - (-drawn.log()).log()
    return confidence.topk(count).indices


@torch.no_grad()
def open_dllm_steps(model: Model, batch: Batch, settings: OpenDLLMSettings) -> Iterator[Step]:
    """Write ``settings.length`` tokens behind each prompt, one `Step` a forward call; a step may commit nothing."""
    mask_id, (canvas, layout) = model.mask_id, masked_canvas(batch, settings.length, model.mask_id)
    sources = row_generators(settings.seed, len(canvas), canvas.device)
    shares = commit_shares(settings.steps, settings.eps, canvas.device)
    meter, answer = WorkMeter(model.network, len(canvas)), canvas == mask_id
    reader = WholeReader(model, layout, meter)
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
                places = layout.real & masked.any(-1, keepdim=True)
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
                    chosen = first + _places(confidence[row, first:], commits[row], settings, sources[row], gumbel=True)
                    written[row, chosen] = predicted[row, chosen]
            canvas = torch.where(written >= 0, written, canvas)
            shown = confidence.float().masked_fill(~candidates, torch.nan)
            publisher.after(written, predicted, shown)
            yield Step(number, canvas, written, shown, meter)
