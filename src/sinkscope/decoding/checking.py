"""`check_model` tests whether a loaded checkpoint computes what its family defines."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sinkscope.attention import Columns, Hider, LayerCall, Watcher, subscribed
from sinkscope.decoding.caches.policy import attention_weights
from sinkscope.decoding.generation import generate
from sinkscope.errors import CallError, ModelError
from sinkscope.models import Model, block_length
from sinkscope.models.any_causal import NAME as ANY_CAUSAL
from sinkscope.models.families.basic_family import ENCODER
from sinkscope.models.family import MARK_POSITIONS
from sinkscope.models.weights import kept_tensors, stored_shapes

QUESTION = "Q: Sam has 4 apples and buys 5 more. How many apples does Sam have now?\nA:"
ANSWER = " 4 + 5 = 9.\n#### 9"
"""A text that any language model finds likely, the lab's models too, which learn to predict answers only."""
MASKED_EVERY = 4
"""In each of so many copies of the answer, every so-manieth token is masked."""
CLEARLY = 0.5
"""Nats a token by which another reading of the logits must be better than the declared one, and than chance."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Check:
    """The result of one check: its name, a text of the finding, and whether it is right."""

    name: str
    found: str
    passed: bool


class _Mapper(Watcher):
    """Compares the columns of every layer with those of a dense attention map in float64."""

    def __init__(self) -> None:
        self.total = self.rows = self.columns = 0.0
        self.layers = self.queries = 0

    def watch(self, call: LayerCall, columns: Columns) -> None:
        assert call.seen is not None and call.scale is not None
        keys, scaled = call.key.shape[2], call.query.double() * (call.scale * call.query.shape[-1] ** 0.5)
        dense = attention_weights(replace(call, query=scaled), call.seen(), slice(None), torch.float64).cpu()
        own, dense = dense[..., :-keys], dense[..., -keys:]
        newest, sums = columns.last_row.cpu().double(), columns.sums[:, :, 0].cpu().double()
        self.rows = max(self.rows, _off(newest.sum(-1) + own[:, :, -1].sum(-1), 1.0), _off(newest, dense[:, :, -1]))
        diagonal = _off(columns.diagonal.cpu().double(), dense.diagonal(dim1=-2, dim2=-1))
        self.columns = max(self.columns, _off(sums, dense.sum(-2)), diagonal)
        given = sums.sum(-1)
        if columns.prefix is not None:
            of_own = columns.prefix[:, :, 0].cpu().double()
            given = given + of_own.sum(-1)
            self.columns = max(self.columns, _off(of_own, own.sum(-2)))
        self.total = max(self.total, _off(given, call.query.shape[2]))
        self.layers, self.queries = self.layers + 1, call.query.shape[2]


def _off(found: Tensor, expected: Tensor | float) -> float:
    """Return the largest difference; infinite where one of the two is NaN."""
    return float((found - expected).abs().nan_to_num(nan=math.inf).max())


class _HideOne(Hider):
    def hide(self, call: LayerCall) -> Tensor:
        return torch.arange(call.key.shape[2], device=call.key.device)[None, None] == 1


@torch.no_grad()
def check_model(model: Model) -> list[Check]:
    """Run every check on a canvas that fits the model; a small model takes seconds."""
    known = model.family.name not in (ANY_CAUSAL, ENCODER.name)  # of another network the shape says too little
    tokens, mapper = _canvas(model), _Mapper()
    logits = _logits(model, tokens)
    largest = float(logits.abs().max())
    with subscribed(model.network, mapper):
        watched = _logits(model, tokens)
    with subscribed(model.network, _HideOne()):
        hidden = _logits(model, tokens)
    padded = torch.cat([tokens[:, :1].repeat(1, 5), tokens], dim=1)
    real = torch.ones_like(padded)
    real[:, :5] = 0
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    behind = _logits(model, padded, attention_mask=real, position_ids=positions)[:, 5:]
    change, bite, leak = (float((one - logits).abs().max()) for one in (watched, hidden, behind))
    dtype = next(model.network.parameters()).dtype
    close = TOLERANCE[dtype] * largest
    every = mapper.layers == model.card.layers
    sums = f"{mapper.layers} layers, {mapper.queries} queries, off by at most {mapper.total:.1e}"
    maps = f"{mapper.layers} maps made again: rows off 1 by at most {mapper.rows:.1e}, columns off theirs by "
    same = max(mapper.rows, mapper.columns) < 1e-3
    others = int((watched.argmax(-1) != logits.argmax(-1)).sum())
    difference = (
        f"logits differ by at most {change:.1e}, allowed are {close:.1e} ({TOLERANCE[dtype]:.0e} of the largest, for "
        f"{str(dtype).removeprefix('torch.')}); {others} of {tokens.shape[1]} most probable tokens are others"
    )
    return [
        *_parameters(model, known),
        *([_rotations(model)] if known else []),
        Check("logits are finite", f"largest {largest:.3g}", bool(torch.isfinite(logits).all())),
        _direction(model, tokens, logits),
        *_reading(model),
        Check("columns add up", sums, mapper.total < 1e-2 and every),
        Check("attention rows add up", f"{maps}{mapper.columns:.1e}", same and every),
        Check("watching changes nothing", difference, change < close),
        Check("hiding a key bites", f"logits change by up to {bite:.3g}", bite > 1e-3),
        Check("padding does not leak", f"logits differ by at most {leak:.1e}", leak < close),
        _round_trip(model, tokens),
    ]


def _canvas(model: Model) -> Tensor:
    """Return a reproducible prompt of ordinary tokens, int64 [1, position], shorter than the model's maximum."""
    length = max(2, min(24, model.card.max_positions // 2))
    special = {model.card.mask_id, *model.tokenizer.all_special_ids}
    ordinary = [token for token in range(model.card.vocabulary) if token not in special][: 50 * length]
    chosen = torch.randint(len(ordinary), (length,), generator=torch.Generator().manual_seed(0))
    return torch.tensor([[ordinary[index] for index in chosen.tolist()]], device=model.device)


def _logits(model: Model, tokens: Tensor, **more: Tensor) -> Tensor:
    return model.network(input_ids=tokens, use_cache=False, **more).logits.float()


def _parameters(model: Model, known: bool) -> list[Check]:
    card, network, tensors, checks = model.card, model.network, model.tensors, list[Check]()
    if known:
        # Of a sink, less the rows that the output layer lacks for the mask.
        added = sum(parameter.numel() for name, parameter in network.named_parameters() if "sink_" in name)
        added -= (network.config.vocab_size - network.lm_head.out_features) * network.config.hidden_size
        expected = _count(network.config) + added
        found = f"{card.parameters:,}, expected {expected:,}"
        checks.append(Check("parameters add up to the shape", found, card.parameters == expected))
    for shape in model.family.shapes:
        if (shape.layers, shape.hidden_size, shape.vocabulary) == (card.layers, card.hidden_size, card.vocabulary):
            name = "parameters are those of the published checkpoint"
            found = f"{card.parameters:,}, {shape.checkpoint} has {shape.parameters:,}"
            checks.append(Check(name, found, card.parameters == shape.parameters))
    if model.commit is not None:
        checks.append(Check("files come from a hub", f"{card.name} at commit {model.commit}", True))
    if tensors is not None:
        shapes = {name: tuple(tensor.shape) for name, tensor in kept_tensors(network).items()}
        count = len(list(network.parameters()))
        stored = f"{tensors.stored} stored in {len(tensors.files)} files"
        found = f"{stored}, {count} parameters, {tensors.renamed} under another name"
        whole = tensors.stored == tensors.used == len(stored_shapes(shapes))
        checks.append(Check("every stored tensor is used, none is missing", found, whole))
    return checks


def _count(config: Any) -> int:
    width, inner = config.hidden_size, config.intermediate_size
    head = getattr(config, "head_dim", None) or width // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    normed = "qwen3" in config.model_type or getattr(config, "use_qk_norm", False)
    biases = queries + 2 * keys if config.model_type.endswith("qwen2") else 2 * head if normed else 0
    biases += (queries + 2 * keys + width) * getattr(config, "attention_bias", False)
    biases += (2 * inner + width) * getattr(config, "mlp_bias", False)
    experts, layers = getattr(config, "num_local_experts", None), config.num_hidden_layers
    dense = layers if experts is None else getattr(config, "first_k_dense_replace", 0)
    mlps = dense * 3 * width * inner
    if experts is not None:
        shared = getattr(config, "n_shared_experts", 0)
        mlps += (layers - dense) * ((experts + shared) * 3 * width * config.moe_intermediate_size + experts * width)
    layer = 2 * width * queries + 2 * width * keys + biases + 2 * width
    tables = (1 if config.tie_word_embeddings else 2) * config.vocab_size * width
    positions = config.max_position_embeddings * width if getattr(config, MARK_POSITIONS, False) else 0
    return positions + tables + layers * layer + mlps + width


def _rotations(model: Model) -> Check:
    """Check the frequencies of the rotations against float64 ones; this finds a buffer that was never filled."""
    config = model.network.config
    if getattr(config, MARK_POSITIONS, False):
        table = model.network.model.embed_positions.weight
        learned = f"{table.shape[0]} learned ones, largest {float(table.abs().max()):.3g}"
        return Check("positions are finite", learned, bool(torch.isfinite(table).all()))
    rope, found = config.rope_parameters, model.network.model.rotary_emb.inv_freq.double().cpu()
    theta = f"theta {rope['rope_theta']:g}, {rope.get('rope_type', 'default')}"
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    dim, kind = int(head * (rope.get("partial_rotary_factor") or 1)), rope.get("rope_type", "default")
    expected = 1 / float(rope["rope_theta"]) ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if kind == "linear":
        expected = expected / rope["factor"]
    elif kind == "llama3":  # meta-llama, ``apply_scaling``
        turns = rope["original_max_position_embeddings"] * expected / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        expected = expected * (kept + (1 - kept) / rope["factor"])
    elif kind != "default":
        text = f"{theta}, {len(found)} of them, not recomputed"
        return Check("rotation frequencies are finite", text, bool(torch.isfinite(found).all()))
    error = float((found / expected - 1).abs().max()) if len(found) == len(expected) else math.inf
    return Check("rotation frequencies recomputed", f"{theta}, largest relative error {error:.1e}", error < 1e-5)


def _direction(model: Model, tokens: Tensor, logits: Tensor) -> Check:
    other = tokens.clone()
    other[0, -1] = tokens[0, 0] if int(tokens[0, 0]) != int(tokens[0, -1]) else tokens[0, 1]
    changes = (_logits(model, other)[0] - logits[0]).abs().amax(-1)
    block = block_length(model.network)
    if block is not None:
        start = (tokens.shape[1] - 1) // block * block
        inside, outside = float(changes[start:].min()), float(changes[:start].max())
        found = (
            f"the last token changes the logits of its block by {inside:.3g} and more, those before by {outside:.3g}"
        )
        return Check(f"attention is causal between blocks of {block}", found, inside > 0 and outside == 0)
    change, way = float(changes[0]), "causal" if model.family.causal else "bidirectional"
    found = f"the last token changes the first logits by {change:.3g}"
    return Check(f"attention is {way}", found, (change == 0) == model.family.causal)


@torch.no_grad()
def _reading(model: Model) -> list[Check]:
    """Check that a text is likelier where the family reads its logits than one place beside; at chance it passes."""
    causal = model.family.causal
    try:
        question, answer = model.encode(QUESTION), model.tokenize(ANSWER, special=False)
    except CallError:  # words that it does not know
        return []
    text = torch.tensor([[*question, *answer]], device=model.device)
    if len(answer) < 8 or text.shape[1] > model.card.max_positions:
        return []
    shifted = causal or model.family.shift
    number = torch.arange(text.shape[1], device=text.device)
    chosen, inputs = (number >= len(question))[None], text
    if not causal:
        chosen = chosen & (number % MASKED_EVERY == torch.arange(MASKED_EVERY, device=text.device)[:, None])
        inputs = text.masked_fill(chosen, model.mask_id)
    likely = _logits(model, inputs).log_softmax(-1)
    places, both = text.expand(len(likely), -1)[..., None], (likely, likely.roll(1, dims=1))
    here, left = (float(one.gather(-1, places)[..., 0][chosen].mean()) for one in both)
    declared, other = (left, here) if shifted else (here, left)
    wrong = other > declared + CLEARLY and other > CLEARLY - math.log(model.card.vocabulary)
    names = ("one place to the left", "at their own place")
    found = f"{-declared:.2f} nats a token of a text read {names[not shifted]}, {-other:.2f} {names[shifted]}"
    if wrong and not causal:
        found += "; the logits are shifted" if other == left else "; the logits are not shifted"
        found += ": try --right-shift-logits" if model.family.sampler == "a2d" and other == left else ""
    return [Check("tokens are read at the right place", found, not wrong)]


def _round_trip(model: Model, tokens: Tensor) -> Check:
    name = "a generation keeps its prompt and repeats"
    length = max(1, min(8, model.card.max_positions - tokens.shape[1]))
    prompt = tokens[0, : model.card.max_positions - length]
    try:
        one, two = (generate(model, prompt, length=length) for _ in range(2))
    except ModelError as error:
        return Check(name, str(error), False)
    kept = bool((one.tokens[: len(prompt)] == prompt.cpu()).all())
    same = torch.equal(one.tokens, two.tokens)
    return Check(name, f"{len(one.tokens) - len(prompt)} tokens in {one.steps} steps", kept and same)
