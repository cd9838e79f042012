"""The second implementation: whole attention maps, −inf on the hidden keys, step by step, no cache, no sweep."""

import copy
from dataclasses import dataclass, field

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from sinkscope.attention import Watcher

running = []


def attention(module, query, key, value, attention_mask, scaling=None, **others):
    repeat = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(repeat, 1).mT * scaling
    if getattr(module.config, "is_causal", True):
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    weights = running[-1](module.layer_idx, scores)
    return (weights @ value.repeat_interleave(repeat, 1)).transpose(1, 2), None


AttentionInterface.register("dense_maps", attention)
AttentionMaskInterface.register("dense_maps", lambda *args, **kwargs: None)


def forward(network, tokens, layer_weights):
    running.append(layer_weights)
    try:
        with torch.no_grad():
            network.model(input_ids=tokens, use_cache=False)
    finally:
        running.pop()


@dataclass
class Maps:
    """Of one step, per layer [batch, head, query, key]: as they took effect, the same without the hiding, nothing
    hidden anywhere.
    """

    hidden: dict = field(default_factory=dict)
    local: dict = field(default_factory=dict)
    clean: dict = field(default_factory=dict)
    taken: dict = field(default_factory=dict)  # bool, who lost what


def top(seen, rule, kv_heads, candidates=None):
    """The k largest of each head among candidates [batch, key], bool [batch, head, 1, key]: by column or last row of a
    map, after the mean over who shares a ranking.
    """
    values = seen.sum(-2) if rule.decide == "columns" else seen[:, :, -1]
    heads = values.shape[1]
    groups = {"head": heads, "kv_head": kv_heads, "layer": 1}[rule.scope]
    values = values.unflatten(1, (groups, heads // groups)).mean(2).repeat_interleave(heads // groups, 1)
    candidates = torch.ones_like(values[:, 0], dtype=torch.bool) if candidates is None else candidates
    values = values.masked_fill(~candidates[:, None], -torch.inf)
    order = values.sort(dim=-1, descending=True, stable=True).indices[..., : rule.k]
    return (torch.zeros(values.shape, dtype=torch.bool).scatter(-1, order, True) & candidates[:, None])[:, :, None]


def among(where, tokens, mask_id, prompt_length):
    """Positions of a group, or with given numbers, bool [batch, position]."""
    place = torch.arange(tokens.shape[1]).expand_as(tokens)
    groups = {
        "masked": tokens == (-1 if mask_id is None else mask_id),
        "prompt": place < prompt_length,
        None: place >= 0,
    }
    groups |= {"unmasked": ~groups["masked"], "answer": ~groups["prompt"]}
    if where is None or isinstance(where, str):
        return groups[where]
    return torch.isin(place, torch.tensor(where))


def replay(model, canvases, rule, prompt_length=0):
    """`Maps` of every step of a run whose canvases are known; behind a causal model's cache old queries keep what they
    lost then.
    """
    network = copy.deepcopy(model.network)
    network.set_attn_implementation("dense_maps")
    steps, lost = [], {}
    for tokens in canvases:
        maps, before, step = Maps(), steps[-1] if steps else None, len(steps)
        keys, asking = (among(one, tokens, model.card.mask_id, prompt_length) for one in (rule.keys, rule.queries))

        def clean(layer, scores, maps=maps):
            maps.clean[layer] = torch.softmax(scores, -1)
            return maps.clean[layer]

        def hiding(layer, scores, maps=maps, before=before, step=step, keys=keys, asking=asking):
            maps.local[layer] = torch.softmax(scores, -1)
            fresh = torch.zeros(scores.shape, dtype=torch.bool)
            source = before if rule.observe == "previous" else maps
            in_force = all(one in (which or {one}) for one, which in ((layer, rule.layers), (step, rule.steps)))
            if source is not None and in_force:
                measured = "local" if rule.observe == "current" and rule.measured == "hidden" else rule.measured
                seen = getattr(source, measured)[layer]
                found = top(seen, rule, model.card.kv_heads, keys[:, : seen.shape[-1]])
                heads = [rule.heads is None or (layer, head) in rule.heads for head in range(scores.shape[1])]
                found = found & torch.tensor(heads)[:, None, None] & asking[:, None, :, None]
                fresh |= torch.nn.functional.pad(found, (0, scores.shape[-1] - found.shape[-1]))
            old = lost.get(layer)
            if model.family.causal and old is not None:
                fresh[:, :, :-1] = torch.nn.functional.pad(old, (0, 1))
            lost[layer] = fresh
            spared = scores.masked_fill(fresh, -torch.inf).isneginf().all(-1, keepdim=True)
            taken = fresh & ~spared
            maps.taken[layer] = taken
            zeroed = rule.effect == "zero"
            maps.hidden[layer] = (
                maps.local[layer] * ~taken if zeroed else torch.softmax(scores.masked_fill(taken, -torch.inf), -1)
            )
            return maps.hidden[layer]

        forward(network, tokens, clean)
        forward(network, tokens, hiding)
        steps.append(maps)
    return steps


class Seen(Watcher):
    """The record of a real run: canvases, columns and hidden keys, as a list over steps of dictionaries by layer."""

    def __init__(self):
        self.canvases, self.columns, self.contexts = [], [], []

    def begin_step(self, context):
        self.contexts.append(context)
        self.canvases.append(context.tokens)
        self.columns.append({})

    def watch(self, call, columns):
        self.columns[-1][call.index] = columns

    def hidden(self, step, layer):
        """Bool [batch, head, key]: received something without the hiding and nothing with it."""
        columns = self.columns[step][layer]
        if columns.local is None:
            return torch.zeros_like(columns.sums[:, :, 0], dtype=torch.bool)
        return (columns.sums[:, :, 0] == 0) & (columns.local[:, :, 0] > 0)
