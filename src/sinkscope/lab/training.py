"""The training loop: AdamW, warm-up and cosine, bf16 autocast, clipping, exact resume after a kill.

Every random draw of update n comes from a generator seeded with (seed, n), so the state of a run is its weights,
its optimiser moments and n. They go into one safetensors file, written beside the old one and renamed.
"""

import json
import math
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sinkscope.errors import TrainingError
from sinkscope.lab.canvases import Canvases, draw_canvases
from sinkscope.lab.corpus import Corpus, draw_windows
from sinkscope.lab.objectives import masked_diffusion_loss, next_token_loss
from sinkscope.lab.recipes import Recipe
from sinkscope.lab.texts import TextCanvases, Texts, train_tokenizer
from sinkscope.lab.vocabulary import build_tokenizer
from sinkscope.models import add_sink_token
from sinkscope.models.sink_token import variant_of

STATE, LOG, RECIPE, SNAPSHOTS = "training-state.safetensors", "training.jsonl", "recipe.json", "snapshots"
VALIDATION_BATCHES = 8


def choose_tokenizer(recipe: Recipe, texts: Texts | Corpus | None = None) -> Any:
    """That of the model a recipe starts from, else one of the user's texts, else the lab's."""
    if recipe.start_from is not None:
        from sinkscope.models import load

        return load(recipe.start_from).tokenizer
    if isinstance(texts, Corpus):
        return texts.tokenizer()
    return build_tokenizer() if texts is None else train_tokenizer(texts)


def build_network(recipe: Recipe, tokenizer: Any) -> Any:
    """A network at the start of its training: transformers' Llama, bidirectional for diffusion, with the sink of its recipe.

    Raises:
        TrainingError: weights to start from that do not fit.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    from sinkscope.models.layouts import MARK_POSITIONS
    from sinkscope.models.llama_variants import LearnedPositionsLlama

    shape = recipe.architecture
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        # No pad_token_id: padding is EOS, and transformers would freeze that embedding at zero.
        pad_token_id=None,
        tie_word_embeddings=shape.tied,
    )
    if recipe.objective != "next_token":
        config.is_causal = False
        config.mask_token_id = tokenizer.mask_token_id
    if recipe.objective == "shifted_diffusion":
        config.sinkscope_family = "dream"
    torch.manual_seed(recipe.seed)
    # On short canvases plain matrix products beat the CPU's flash kernel, backward above all.
    config._attn_implementation = "eager"
    if shape.positions == "learned":
        setattr(config, MARK_POSITIONS, True)
        network: Any = LearnedPositionsLlama(config)
    else:
        network = LlamaForCausalLM(config)
    if recipe.start_from is not None:
        _start_from(recipe.start_from, network)
    variant = variant_of(recipe.sink_token)
    if variant is None:
        return network
    return add_sink_token(network, replace(variant, seed=recipe.seed))


def _start_from(name: str, network: Any) -> None:
    from sinkscope.models import load

    given = load(name, dtype=torch.float32).network.state_dict()
    mine = network.state_dict()
    different = [key for key in mine if key not in given or given[key].shape != mine[key].shape] + sorted(set(given) - set(mine))
    if different:
        shapes = [tuple(weights[different[0]].shape) if different[0] in weights else "nothing" for weights in (mine, given)]
        raise TrainingError(f"expected weights of {different[0]} {shapes[0]} to start from, found {shapes[1]} in {name}")
    network.load_state_dict(given)


def learning_rate(recipe: Recipe, update: int) -> float:
    """Linear warm-up, then cosine to ``final_share`` of the peak."""
    warmup = max(1, round(recipe.warmup_share * recipe.updates))
    if update < warmup:
        return recipe.learning_rate * (update + 1) / warmup
    progress = (update - warmup) / max(1, recipe.updates - warmup)
    return recipe.learning_rate * (recipe.final_share + (1 - recipe.final_share) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(recipe: Recipe, out: Path, *, texts: Texts | Corpus | None = None, device: str = "cpu", progress: bool | None = None) -> Any:
    """Trains a recipe into the folder ``out``, going on from its last saved state; returns the network.

    Args:
        texts: the user's own; their fingerprint becomes part of the recipe.

    Raises:
        TrainingError: the folder holds a run of another recipe.
    """
    from tqdm import tqdm

    out.mkdir(parents=True, exist_ok=True)
    recipe = replace(recipe, data=None if texts is None else texts.fingerprint)
    check_recipe(recipe, out)
    tokenizer = choose_tokenizer(recipe, texts)
    draw = _source(recipe, tokenizer, texts)
    network = build_network(recipe, tokenizer).to(device)
    if not (out / RECIPE).exists():  # a recipe that is refused leaves none behind
        _write_whole(out / RECIPE, json.dumps(_plain(recipe), indent=2) + "\n")
    optimiser = torch.optim.AdamW(_parameter_groups(network, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas, fused=True)
    start = _load_state(out / STATE, network, optimiser)
    _cut_log(out / LOG, start)
    objective = _objective(recipe, network, tokenizer, device)
    network.train()
    if 0 in recipe.snapshots and start == 0:
        _save_snapshot(out, network, 0)
    with (
        (out / LOG).open("a") as log,
        tqdm(
            total=recipe.updates, initial=start, desc=recipe.name, unit="update", disable=progress if progress is None else not progress
        ) as bar,
    ):
        for update in range(start, recipe.updates):
            rate = learning_rate(recipe, update)
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss = objective(draw(recipe.seed, update), update)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            done = update + 1
            bar.update()
            if done % recipe.log_every == 0 or done == recipe.updates:
                row = {"update": done, "loss": loss.item(), "gradient_norm": float(norm), "learning_rate": rate}
                if done % recipe.validate_every == 0 or done == recipe.updates:
                    row["validation_loss"] = _validate(objective, draw)
                log.write(json.dumps(row) + "\n")
                log.flush()
                bar.set_postfix(loss=f"{row['loss']:.3f}")
            if done in recipe.snapshots:
                _save_snapshot(out, network, done)
            if done % recipe.save_every == 0 or done == recipe.updates:
                _save_state(out / STATE, network, optimiser, done)
    return network


def check_recipe(recipe: Recipe, out: Path) -> None:
    """Compares a resolved recipe with that of the folder's run, if it holds one.

    Raises:
        TrainingError: the folder holds a run of another recipe.
    """
    mine, path = _plain(recipe), out / RECIPE
    if not path.exists():
        return
    try:
        theirs = json.loads(path.read_text())
    except ValueError as error:
        raise TrainingError(
            f"{path}: expected the recipe of a run, found something else ({error}); delete the folder or choose another"
        ) from error
    theirs = {"sink_token": "none", **theirs}  # as earlier versions had it
    defaults = asdict(Recipe("", "next_token", 1))
    theirs = {**{key: defaults[key] for key in ("text", "first_token", "weighting", "snapshots")}, **theirs}
    theirs = json.loads(json.dumps(theirs))
    theirs["architecture"] = {"positions": "rotary", "tied": False, **(theirs.get("architecture") or {})}
    theirs["canvases"] = {"templates": [], **(theirs.get("canvases") or {})}
    different = [key for key in mine if mine[key] != theirs.get(key)]
    if different:
        changes = ", ".join(f"{key} {theirs.get(key)!r} → {mine[key]!r}" for key in different)
        raise TrainingError(f"{out} holds a run of another recipe ({changes}); train into another folder or delete this one")


def _plain(recipe: Recipe) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(recipe)))


def _parameter_groups(network: Any, weight_decay: float) -> list[dict[str, Any]]:
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _source(recipe: Recipe, tokenizer: Any, texts: Texts | Corpus | None) -> Callable[[int, int], Canvases]:
    """Batch number n of a stream: the lab's problems, or the user's texts."""
    if recipe.text != isinstance(texts, Corpus):
        raise TrainingError(
            f"{recipe.name}: expected {'a corpus folder' if recipe.text else 'no corpus folder'} as --data, found the other"
        )
    if isinstance(texts, Corpus):
        mix = recipe.canvases
        bos = tokenizer.bos_token_id if recipe.first_token == "bos" else None
        return draw_windows(texts, mix.tokens, mix.lengths[0], bos_id=bos)
    if texts is not None:
        return TextCanvases(texts, tokenizer, recipe.canvases).draw
    return lambda seed, update: draw_canvases(recipe.canvases, tokenizer, seed, update)


def _objective(recipe: Recipe, network: Any, tokenizer: Any, device: str) -> Callable[[Canvases, int], torch.Tensor]:
    if recipe.compile:
        network.model.compile(dynamic=False)

    def objective(canvases: Canvases, update: int) -> torch.Tensor:
        canvases = Canvases(canvases.tokens.to(device), canvases.answers.to(device))
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16) if recipe.autocast else nullcontext():
            if recipe.objective == "next_token":
                return next_token_loss(network, canvases, eos_id=None if recipe.text else tokenizer.eos_token_id)
            generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + update)
            return masked_diffusion_loss(
                network,
                canvases,
                mask_id=tokenizer.mask_token_id,
                whole_canvas_share=recipe.whole_canvas_share,
                generator=generator,
                shift=recipe.objective == "shifted_diffusion",
                first_stays=recipe.first_token == "bos",
                flat=recipe.weighting == "flat",
            )

    return objective


@torch.no_grad()
def _validate(objective: Callable[[Canvases, int], torch.Tensor], draw: Callable[[int, int], Canvases]) -> float:
    """Mean loss over fixed batches of the training distribution that no run trains on (negative numbers)."""
    losses = [objective(draw(-1, -1 - n), -1 - n).item() for n in range(VALIDATION_BATCHES)]
    return sum(losses) / len(losses)


def _save_state(path: Path, network: Any, optimiser: torch.optim.Optimizer, update: int) -> None:
    from safetensors.torch import save_file

    tensors = {f"weight.{name}": parameter.detach().contiguous() for name, parameter in network.named_parameters()}
    for name, parameter in network.named_parameters():
        for key, value in optimiser.state[parameter].items():
            tensors[f"{key}.{name}"] = value
    beside = path.with_suffix(".writing")
    save_file(tensors, beside, metadata={"update": str(update)})
    os.replace(beside, path)


def _save_snapshot(out: Path, network: Any, update: int) -> None:
    """Weights alone, in bf16, as they are after an update."""
    from safetensors.torch import save_file

    (out / SNAPSHOTS).mkdir(exist_ok=True)
    path = out / SNAPSHOTS / f"update-{update:06d}.safetensors"
    tensors = {name: parameter.detach().to("cpu", torch.bfloat16).contiguous() for name, parameter in network.named_parameters()}
    save_file(tensors, path.with_suffix(".writing"), metadata={"update": str(update)})
    os.replace(path.with_suffix(".writing"), path)


def _load_state(path: Path, network: Any, optimiser: torch.optim.Optimizer) -> int:
    from safetensors import safe_open

    if not path.exists():
        return 0
    with safe_open(path, "pt") as state, torch.no_grad():
        update = int(state.metadata()["update"])
        for name, parameter in network.named_parameters():
            parameter.copy_(state.get_tensor(f"weight.{name}"))
            optimiser.state[parameter] = {
                "step": state.get_tensor(f"step.{name}").to(parameter.device),
                "exp_avg": state.get_tensor(f"exp_avg.{name}").to(parameter.device),
                "exp_avg_sq": state.get_tensor(f"exp_avg_sq.{name}").to(parameter.device),
            }
    return update


def _cut_log(path: Path, update: int) -> None:
    """Drops what was logged after the state that the run goes on from."""
    if path.exists():
        kept = [line for line in path.read_text().splitlines() if line.endswith("}") and json.loads(line)["update"] <= update]
        _write_whole(path, "".join(line + "\n" for line in kept))


def _write_whole(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".writing")
    beside.write_text(text)
    os.replace(beside, path)
