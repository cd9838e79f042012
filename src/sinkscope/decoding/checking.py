"""The proof that a loaded checkpoint is what it says: each check states what it found and whether that is right."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinkscope.attention import Columns, Hider, LayerCall, Watcher, subscribed
from sinkscope.decoding.generation import generate
from sinkscope.models import Model

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Check:
    """One check: what was looked at, what was found, whether it is right."""

    name: str
    found: str
    passed: bool


class _Adder(Watcher):
    """Whether the columns of every layer and head add up to the number of queries."""

    def __init__(self) -> None:
        self.worst, self.layers, self.queries = 0.0, 0, 0

    def watch(self, call: LayerCall, columns: Columns) -> None:
        queries = call.query.shape[2]
        found = columns.sums[:, :, 0].sum(-1) + (0 if columns.prefix is None else columns.prefix[:, :, 0].sum(-1))
        self.worst = max(self.worst, float((found - queries).abs().max()))
        self.layers, self.queries = self.layers + 1, queries


class _HideOne(Hider):
    """Takes one key away in every layer and head."""

    def __init__(self, position: int) -> None:
        self.position = position

    def hide(self, call: LayerCall) -> Tensor:
        hidden = torch.zeros(1, 1, call.key.shape[2], dtype=torch.bool, device=call.key.device)
        hidden[..., self.position] = True
        return hidden


@torch.no_grad()
def check_model(model: Model) -> list[Check]:
    """Runs every check on a canvas that fits the model; seconds for a small model."""
    tokens = _canvas(model)
    logits = _logits(model, tokens)
    return [
        _parameters(model),
        _rotations(model),
        Check("logits are finite", f"largest {float(logits.abs().max()):.3g}", bool(torch.isfinite(logits).all())),
        _direction(model, tokens, logits),
        *_columns(model, tokens, logits),
        _hiding(model, tokens, logits),
        _padding(model, tokens, logits),
        _round_trip(model, tokens),
    ]


def _canvas(model: Model) -> Tensor:
    """A reproducible prompt of ordinary tokens, shorter than the model's maximum."""
    length = max(4, min(24, model.card.max_positions // 2))
    special = {model.card.mask_id, *model.tokenizer.all_special_ids}
    ordinary = [token for token in range(model.card.vocabulary) if token not in special][: 50 * length]
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(len(ordinary), (length,), generator=generator)
    return torch.tensor([[ordinary[index] for index in chosen.tolist()]], device=model.device)


def _logits(model: Model, tokens: Tensor, **more: Tensor) -> Tensor:
    return model.network(input_ids=tokens, use_cache=False, **more).logits.float()


def _tolerance(model: Model) -> float:
    return TOLERANCE[next(model.network.parameters()).dtype]


def _parameters(model: Model) -> Check:
    config = model.network.config
    width, head = config.hidden_size, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    attention = width * (queries + 2 * keys) + queries * width
    biases = (queries + 2 * keys) if config.model_type.endswith("qwen2") else 0
    layer = attention + biases + 3 * width * config.intermediate_size + 2 * width
    heads = 1 if config.tie_word_embeddings else 2
    expected = heads * config.vocab_size * width + config.num_hidden_layers * layer + width
    expected += sum(parameter.numel() for name, parameter in model.network.named_parameters() if "sink_" in name)
    expected -= (config.vocab_size - model.network.lm_head.out_features) * width
    return Check("parameters add up to the shape", f"{model.card.parameters:,}, expected {expected:,}", model.card.parameters == expected)


def _rotations(model: Model) -> Check:
    config = model.network.config
    rope = getattr(config, "rope_parameters", None) or {}
    rotary = model.network.model.rotary_emb
    found = rotary.inv_freq.double().cpu()
    if rope.get("rope_type", "default") != "default":
        return Check(
            "rotation frequencies", f"scaled ({rope['rope_type']}), {len(found)} of them, finite", bool(torch.isfinite(found).all())
        )
    expected = 1 / float(rope["rope_theta"]) ** (torch.arange(len(found), dtype=torch.float64) / len(found))
    error = float((found / expected - 1).abs().max())
    return Check("rotation frequencies recomputed", f"theta {rope['rope_theta']:g}, largest relative error {error:.1e}", error < 1e-5)


def _direction(model: Model, tokens: Tensor, logits: Tensor) -> Check:
    """A later token changes an earlier logit exactly when the model attends in both directions."""
    other = tokens.clone()
    other[0, -1] = tokens[0, 0] if int(tokens[0, 0]) != int(tokens[0, -1]) else tokens[0, 1]
    change = float((_logits(model, other)[0, 0] - logits[0, 0]).abs().max())
    way = "causal" if model.family.causal else "bidirectional"
    return Check(f"attention is {way}", f"the last token changes the first logits by {change:.3g}", (change == 0) == model.family.causal)


def _columns(model: Model, tokens: Tensor, logits: Tensor) -> list[Check]:
    adder = _Adder()
    with subscribed(model.network, adder):
        watched = _logits(model, tokens)
    change = float((watched - logits).abs().max())
    return [
        Check(
            "columns add up",
            f"{adder.layers} layers, {adder.queries} queries, off by at most {adder.worst:.1e}",
            adder.worst < 1e-2 and adder.layers == model.card.layers,
        ),
        Check("watching changes nothing", f"logits differ by at most {change:.1e}", change < _tolerance(model) * float(logits.abs().max())),
    ]


def _hiding(model: Model, tokens: Tensor, logits: Tensor) -> Check:
    with subscribed(model.network, _HideOne(1)):
        hidden = _logits(model, tokens)
    change = float((hidden - logits).abs().max())
    return Check("hiding a key bites", f"logits change by up to {change:.3g}", change > 1e-3)


def _padding(model: Model, tokens: Tensor, logits: Tensor) -> Check:
    padding = 5
    padded = torch.cat([tokens[:, :1].repeat(1, padding), tokens], dim=1)
    real = torch.ones_like(padded)
    real[:, :padding] = 0
    positions = (real.cumsum(-1) - 1).clamp(min=0)
    found = _logits(model, padded, attention_mask=real, position_ids=positions)[:, padding:]
    change = float((found - logits).abs().max())
    return Check("padding does not leak", f"logits differ by at most {change:.1e}", change < _tolerance(model) * float(logits.abs().max()))


def _round_trip(model: Model, tokens: Tensor) -> Check:
    length = min(8, model.card.max_positions - tokens.shape[1])
    one, two = (generate(model, tokens[0], length=length) for _ in range(2))
    kept = bool((one.tokens[: tokens.shape[1]] == tokens[0].cpu()).all())
    same = torch.equal(one.tokens, two.tokens)
    return Check(
        "a generation keeps its prompt and repeats", f"{len(one.tokens) - tokens.shape[1]} tokens in {one.steps} steps", kept and same
    )
