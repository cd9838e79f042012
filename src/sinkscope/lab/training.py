"""The objectives (masked diffusion with paper 2's schedule, next-token prediction) and the training loop: AdamW,
warm-up and cosine decay, bf16 autocast, gradient clipping, exact resumption.

Every random draw of update n comes from a generator seeded with (seed, n), so the state of a run is its weights, the
optimiser's moments and n; `run_folder` keeps them. `train_checkpoint` makes a stock Hugging Face folder of it.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sinkscope.errors import TrainingError
from sinkscope.lab import run_folder, starting_network
from sinkscope.lab.canvases import PROMPT, Canvases
from sinkscope.lab.recipes import Adaptation, Recipe
from sinkscope.lab.starting_network import build_network, choose_tokenizer, source_of
from sinkscope.lab.texts import Corpus, Texts
from sinkscope.models.devices import find_device, own_defaults
from sinkscope.models.loading import outline, quiet
from sinkscope.progress import show_progress
from sinkscope.runs.files import sealed
from sinkscope.runs.folder import claimed_folder

VALIDATION_BATCHES = 8
LEAST_MASKED = 1e-3
IGNORED = -100  # a target that is no part of the loss


def mask_canvases(
    canvases: Canvases, mask_id: int, whole_canvas_share: float, generator: torch.Generator, *, first_stays: bool = True
) -> tuple[Tensor, Tensor, int]:
    """Mask each answer of a canvas at its own rate p = (1 − 1e-3)·t + 1e-3 with t ~ U(0, 1) (paper 2, §4.1).

    Each packed problem counts as a sequence. The values of t in a batch come from equal strata, in random order, so
    that the sum of the 1/t weights varies less. Questions stay visible, as in LLaDA's supervised fine-tuning, but not
    in a ``whole_canvas_share`` of the rows: there every token is masked at one rate, except the first if
    ``first_stays``.

    Return int64 [row, position] with masks, float32 [row, position] 1/p where masked and 0 elsewhere, and the number of
    tokens that could be masked.
    """
    tokens, answers = canvases.tokens, canvases.answers
    rows, length = tokens.shape
    whole = torch.rand(rows, 1, generator=generator, dtype=torch.float32) < whole_canvas_share
    groups = torch.where(whole, 0, answers)
    if first_stays:
        groups[:, 0] = PROMPT
    slots = int(groups.max()) + 1
    count = rows * slots
    t = torch.randperm(count, generator=generator) + torch.rand(count, generator=generator, dtype=torch.float32)
    t = t / count
    rates = ((1 - LEAST_MASKED) * t + LEAST_MASKED).view(rows, slots)
    rate = rates.gather(1, groups.clamp(min=0))
    maskable = groups != PROMPT
    masked = (torch.rand(rows, length, generator=generator, dtype=torch.float32) < rate) & maskable
    return tokens.masked_fill(masked, mask_id), torch.where(masked, 1 / rate, 0.0), int(maskable.sum())


def masked_diffusion_loss(
    network: Any,
    canvases: Canvases,
    *,
    mask_id: int,
    whole_canvas_share: float,
    generator: torch.Generator,
    shift: bool = False,
    first_stays: bool = True,
    flat: bool = False,
    adapted: tuple[Adaptation, int] | None = None,
) -> Tensor:
    """Return the cross-entropy on masked tokens, weighted by 1/p, per maskable token: a scalar in nats.

    With ``flat`` it is the plain mean over masked tokens, which bounds no likelihood but is much less noisy. With
    ``shift`` a token is predicted from the position to its left, as a causal model is adapted to diffusion (Dream,
    paper 2's Qwen2.5); the first token of a canvas is then never masked. Masks are drawn on the CPU. ``adapted``: how a
    causal model changes, and the number of the update; its distance to the base is added.
    """
    stays = first_stays or shift
    noisy, weights, maskable = mask_canvases(canvases, mask_id, whole_canvas_share, generator, first_stays=stays)
    device = network.lm_head.weight.device
    if adapted is not None:
        hidden, distance = starting_network.adapted_states(network, *adapted, noisy, canvases.tokens)
    else:
        hidden, distance = network.model(input_ids=noisy.to(device), use_cache=False).last_hidden_state, 0.0
    chosen = weights > 0
    logits = network.lm_head(hidden[chosen.roll(-1, dims=1) if shift else chosen]).float()
    losses = F.cross_entropy(logits, canvases.tokens[chosen].to(device), reduction="none")
    if flat:
        return losses.sum() / max(1, losses.numel()) + distance
    return (losses * weights[chosen].to(device)).sum() / maskable + distance


def next_token_loss(network: Any, canvases: Canvases, *, eos_id: int | None, only_answers: bool = False) -> Tensor:
    """Return the cross-entropy of each token given those before it, over a canvas or its answers only, in nats.

    After a complete answer the target is EOS, even where another problem follows on the canvas, so that a model stops
    after its answer. Natural text has no answers; its ``eos_id`` is None.
    """
    targets = canvases.tokens[:, 1:].clone()
    if eos_id is not None:
        finished = (canvases.answers[:, :-1] != PROMPT) & (canvases.answers[:, 1:] == PROMPT)
        targets[finished] = eos_id
    if only_answers:
        targets[canvases.answers[:, 1:] == PROMPT] = IGNORED
    device = network.lm_head.weight.device
    hidden = network.model(input_ids=canvases.tokens.to(device), use_cache=False).last_hidden_state
    logits = network.lm_head(hidden[:, :-1]).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(device), ignore_index=IGNORED)


def learning_rate(recipe: Recipe, update: int) -> float:
    """Return the learning rate of an update: linear warm-up, then a cosine to ``final_share`` of the peak."""
    decay = recipe.decay_updates or recipe.updates
    warmup = max(1, round(recipe.warmup_share * decay))
    if update < warmup:
        return recipe.learning_rate * (update + 1) / warmup
    progress = min(1.0, (update - warmup) / max(1, decay - warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * progress))
    return recipe.learning_rate * (recipe.final_share + (1 - recipe.final_share) * cosine)


Watch = Callable[[Any, int], object]
"""Called with the network and the number of updates that are done: before the first update and after each one."""


@torch.random.fork_rng()
@own_defaults()
@torch.enable_grad()
def train(
    recipe: Recipe,
    out: str | Path,
    *,
    texts: Texts | Corpus | None = None,
    device: str = "cpu",
    progress: bool = True,
    watch: Watch | None = None,
) -> Any:
    """Train a recipe in the folder ``out``, from its last saved state, and return the network.

    ``texts`` are the user's own, whose fingerprint becomes part of the recipe; None trains on the lab's problems.

    Raises:
        CallError: a value of the recipe is out of bounds, or the device cannot be used.
        TrainingError: the folder holds a run of another recipe, it cannot be written, or the loss is no longer finite.
    """
    find_device(device)
    out, recipe = Path(out), replace(recipe, data=None if texts is None else texts.fingerprint)
    run_folder.check_recipe(recipe, out)
    tokenizer = choose_tokenizer(recipe, texts)
    draw = source_of(recipe, tokenizer, texts)
    network = build_network(recipe, tokenizer).to(device)
    out.mkdir(parents=True, exist_ok=True)
    run_folder.write_recipe(recipe, out)  # after the network: a recipe that is refused leaves no file
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=True)
    start = run_folder.load_state(out, network, optimiser)
    run_folder.cut_log(out, start)
    objective = _objective(recipe, network, tokenizer, device)
    network.train()
    held_out = run_folder.held_out_rows(recipe, tokenizer, texts, starting_network.ROWS)[0] if recipe.adaptation else []

    def reached(update: int) -> None:
        if update in recipe.snapshots:
            run_folder.save_snapshot(out, network, update)
        if watch is not None:
            watch(network, update)

    if start == 0:
        reached(0)
    with (
        (out / run_folder.LOG).open("a") as log,
        show_progress(recipe.updates, recipe.name, "updates", done=start, shown=progress) as bar,
    ):
        for update in range(start, recipe.updates):
            rate = learning_rate(recipe, update)
            for group in optimiser.param_groups:
                group["lr"] = rate
            optimiser.zero_grad(set_to_none=True)  # a watch may have computed some
            loss = objective(draw(recipe.seed, update), update)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            done, last = update + 1, update + 1 == recipe.updates
            bar.advance()
            if done % recipe.log_every == 0 or last:
                row = _finite(done, loss, norm, recipe) | {"learning_rate": rate}
                if done % recipe.validate_every == 0 or last:
                    if recipe.adaptation is not None and recipe.objective != "next_token":
                        row["held_out"] = starting_network.held_out_losses(network, recipe, held_out)
                    else:
                        with torch.no_grad():  # held-out batches have negative numbers
                            losses = [objective(draw(-1, -n), -n).item() for n in range(1, VALIDATION_BATCHES + 1)]
                        row["validation_loss"] = sum(losses) / len(losses)
                log.write(json.dumps(row) + "\n")
                log.flush()
                bar.advance(0, loss=f"{row['loss']:.3f}")
            reached(done)
            if done % recipe.save_every == 0 or last:
                _finite(done, loss, norm, recipe)
                run_folder.save_state(out, network, optimiser, done)
    return network


def _finite(update: int, loss: Tensor, norm: Tensor, recipe: Recipe) -> dict[str, Any]:
    row = {"update": update, "loss": loss.item(), "gradient_norm": float(norm)}
    if wrong := {name: value for name, value in row.items() if not math.isfinite(value)}:  # no update leads back
        advice = f"train with a lower learning_rate than {recipe.learning_rate} into another folder"
        raise TrainingError(f"{recipe.name}, update {update}: expected a finite loss, found {wrong}; {advice}")
    return row


def _objective(recipe: Recipe, network: Any, tokenizer: Any, device: str) -> Callable[[Canvases, int], Tensor]:
    # A CPU without instructions for bf16 computes in it a hundred times as slowly as in fp32.
    slow = device == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    bf16 = recipe.autocast and not slow
    if recipe.compile:
        network.model.compile(dynamic=False)

    def objective(canvases: Canvases, update: int) -> Tensor:
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16) if bf16 else nullcontext():
            if recipe.objective == "next_token":
                eos = None if recipe.text else tokenizer.eos_token_id
                return next_token_loss(network, canvases, eos_id=eos, only_answers=recipe.nulls is not None)
            return masked_diffusion_loss(
                network,
                canvases,
                mask_id=tokenizer.mask_token_id,
                whole_canvas_share=recipe.whole_canvas_share,
                generator=torch.Generator().manual_seed((recipe.seed * 1_000_003 + update) % 2**64),
                shift=recipe.objective == "shifted_diffusion",
                first_stays=recipe.first_token == "bos",
                flat=recipe.weighting == "flat",
                adapted=None if recipe.adaptation is None else (recipe.adaptation, update),
            )

    return objective


def train_checkpoint(
    recipe: Recipe,
    out: str | Path,
    *,
    texts: Texts | Corpus | None = None,
    device: str = "cpu",
    command: str = "",
    watch: Watch | None = None,
) -> Path:
    """Train a recipe into a checkpoint that `sinkscope.load` reads, or resume a killed run; see `train`. The weights
    are written last, so a folder with weights is finished; raise ModelError where a file beside them is missing or bad.
    """
    out = Path(out)
    with claimed_folder(out, TrainingError):
        recipe = replace(recipe, data=None if texts is None else texts.fingerprint)
        run_folder.check_recipe(recipe, out)
        beside, weights = out / run_folder.UNFINISHED_CHECKPOINT, run_folder.weights_of(recipe)
        if (out / weights).exists():
            outline(str(out))  # the other files of a checkpoint must be there as well
        else:
            network = train(recipe, out, texts=texts, device=device, watch=watch)
            shutil.rmtree(beside, ignore_errors=True)
            if recipe.adaptation is not None and recipe.adaptation.rank:
                starting_network.save_adapter(network, starting_network.base_of(recipe)[0], beside)
            else:
                with quiet():
                    network.to("cpu", torch.bfloat16).save_pretrained(beside)
                    choose_tokenizer(recipe, texts).save_pretrained(beside)
            content = b"".join(sealed((beside / weights).read_bytes()))
            (beside / weights).write_bytes(content)
            made = {"command": command, "torch": torch.__version__}
            run_folder.write_recipe(recipe, out, **made, weights_sha256=hashlib.sha256(content).hexdigest())
            # safetensors writes files that only their owner may read.
            (beside / weights).chmod((out / run_folder.RECIPE).stat().st_mode & 0o777)
            for path in sorted(beside.iterdir(), key=lambda path: path.name == weights):
                os.replace(path, out / path.name)
            beside.rmdir()
        (out / run_folder.STATE).unlink(missing_ok=True)  # a kill may have come between the last rename and this
    return out
