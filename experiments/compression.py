"""Does compression break the causal model where it spares its diffusion sibling, and is the sink the reason?

Claim     3-bit quantisation costs Llama much and LLaDA little, because of the sink's massive activation (arXiv
          2605.06366); sinks that move should not count when a diffusion model is pruned (2602.17664).
Command   python experiments/compression.py smollm2 smollm2-diffusion --texts TEST.jsonl --calibration TRAIN.jsonl
          python experiments/compression.py lab-autoregressive lab-diffusion
          JSON lines with "text"; the lab's models take the lab's problems, and answer some. What is done is kept in
          results/compression; the same command goes on.
Cost      the first about 40 minutes of one idle core, the second 20 (estimates; measured on a busy machine).
Measured  Loss in nats a token on 12 windows of 96 tokens: of the next token (causal), or of masked tokens, mean over
          15, 50 and 85 % masked (diffusion; the same masks in all arms, never the first token). Calibration: 16 windows
          of other texts, for a diffusion model masked with t from 0 to 1. Sinks (diffusion: half masked): share of the
          first token and of the largest column, share of heads with a sink (ε = 3; causal by uniform attention), share
          of these whose main sink stays in its place, largest hidden value over the median of its layer.
Kept      *dimension*: the one of the residual stream with the largest value over its layer's median, of weights and
          activations. *tokens*: activations of those that hold more than 100 medians there and half of their canvas's
          largest value or more, without compression. Their controls: a random dimension, as many random tokens of the
          canvas. Measured where the loss without rises by more than 0.1 nats.
Rules     Written down when rtn at 3 bits and w8a8-tensor had been tried without anything kept, and nothing else of these
          models. (16 texts became 12, and 24 of calibration 16, to save time.) Differences are paired by text, with 95 %
          intervals (BCa) and Wilcoxon's test after Holm, over all arms without anything kept.
          An arm *breaks* a model where the interval of its rise lies above 0.5 nats, *spares* it where it lies below.
          The causal model *breaks alone* where it breaks, its sibling is spared, and its rise is the larger (p < .05).
          *The sink is the reason* for an arm that breaks the causal model, where something kept takes back half of the
          rise or more, and more than its control does (interval above 0; p < .05 after Holm over all that is kept).
          Lab: accuracy on 128 problems, 0 shots; differences by Tango's interval.
Found     docs/compression.md
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _compressing
import numpy as np
import torch
from _compressing import blocks_of, compressed, rounded_activations
from _settings import SETTINGS, Arguments, made_by, run_script
from torch import Tensor
from torch.nn.functional import cross_entropy

import sinkscope
from sinkscope.attention import Columns, LayerCall, Watcher, subscribed
from sinkscope.errors import CallError
from sinkscope.evaluation.tasks import find_task
from sinkscope.lab.problems import render
from sinkscope.lab.prompts import held_out
from sinkscope.models.fingerprints import weight_hash_of
from sinkscope.runs.files import write_whole
from sinkscope.sinks.definition import excess_of, uniform_columns

OUT = Path(__file__).parents[1] / "results" / "compression"
TEXTS, CALIBRATION, WIDTH = 12, 16, 96
MASKED = (0.15, 0.5, 0.85)
MASSIVE, WORTH_KEEPING, EPSILON = 100.0, 0.1, 3.0
PROBLEMS, BATCH = 128, 64
ACTIVATIONS = {
    "w8a8-tensor": (8, 8, "tensor"),
    "w8a8": (8, 8, "token"),
    "w4a8": (4, 8, "token"),
    "w4a4": (4, 4, "token"),
}
KEPT = ("dimension", "random dimension", "tokens", "random tokens")


@dataclass(frozen=True)
class Arm:
    """One way to compress: a method at a level, and what is kept in full precision."""

    method: str
    level: str
    kept: str = "nothing"


def arms() -> list[Arm]:
    """Return the arms without anything kept, those that tell most first."""
    shares = (0.5,), (0.6, 0.3)
    parts = [[Arm(method, str(one)) for one in some for method in _compressing.PRUNING] for some in shares]
    bits = [[Arm(method, str(one)) for method in _compressing.QUANTISING] for one in (3, 4, 8)]
    first, *others = (Arm("activations", level) for level in ACTIVATIONS)
    return [first, *bits[0], *parts[0], *bits[1], *others, *parts[1], *bits[2]]


def kept_arms(arm: Arm) -> list[Arm]:
    return [Arm(arm.method, arm.level, kept) for kept in (KEPT if arm.method == "activations" else KEPT[:2])]


@dataclass(frozen=True, eq=False)
class Canvases:
    """Texts as the network sees them, and what is predicted.

    tokens: int64 [canvas, position]; targets: the same before masking; judged: bool, tokens that are predicted;
    massive: bool, tokens with a massive activation in the uncompressed network; random: as many others of each canvas.
    """

    tokens: Tensor
    targets: Tensor
    judged: Tensor
    massive: Tensor
    random: Tensor


def windows(model: Any, texts: Sequence[str], count: int) -> Tensor:
    """Return the first tokens of the first texts that are long enough, int64 [window, position]."""
    found = [ids[:WIDTH] for ids in map(model.tokenize, texts) if len(ids) >= WIDTH][:count]
    if len(found) < count:
        raise CallError(f"expected {count} texts of {WIDTH} tokens or more, found {len(found)}")
    return torch.tensor(found)


def masked(model: Any, tokens: Tensor, share: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return canvases with so many tokens masked (``share``, one a row), never the first, and where these are."""
    hidden = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < share[:, None]
    hidden[:, 0] = False
    hidden[:, -1] |= ~hidden.any(1)
    return tokens.masked_fill(hidden, model.card.mask_id), hidden


def calibration_canvases(model: Any, tokens: Tensor) -> Tensor:
    """Return text as the network saw it in training: a diffusion model's with t from 0 to 1."""
    return tokens if model.family.causal else masked(model, tokens, torch.linspace(0, 1, len(tokens)), 1)[0]


@contextmanager
def residuals(model: Any) -> Iterator[list[Tensor]]:
    """Collect the output of each block as multiples of its canvas's median: absolute, [canvas, position, width]."""
    found: list[Tensor] = []

    def keep(block: Any, given: Any, out: Any) -> None:
        values = (out if isinstance(out, Tensor) else out[0]).abs()
        found.append(values / values.flatten(1).median(1).values[:, None, None])

    with ExitStack() as hooks:
        for block in blocks_of(model):
            hooks.callback(block.register_forward_hook(keep).remove)
        yield found


@torch.no_grad()
def residuals_of(model: Any, tokens: Tensor) -> list[Tensor]:
    with residuals(model) as found:
        model.network.model(input_ids=tokens, use_cache=False)
    return found


def massive_dimension(model: Any, tokens: Tensor) -> int:
    """Return the dimension of the residual stream with the largest value over its layer's median."""
    return int(torch.stack([one.amax((0, 1)) for one in residuals_of(model, tokens)]).amax(0).argmax())


def canvases_of(model: Any, tokens: Tensor, dimension: int) -> dict[str, Canvases]:
    """Return what is predicted, by the share of masks ("next" for a causal model)."""
    found = {}
    for share in (None,) if model.family.causal else MASKED:
        seen, judged = tokens, torch.arange(WIDTH).expand_as(tokens) > 0
        if share is not None:
            seen, judged = masked(model, tokens, torch.full((len(tokens),), share), round(100 * share))
        values = torch.stack([one[..., dimension] for one in residuals_of(model, seen)]).amax(0)
        massive = values >= values.amax(1, keepdim=True).clamp(min=2 * MASSIVE) / 2
        order = torch.rand(seen.shape, generator=torch.Generator().manual_seed(2)).masked_fill(massive, 2).argsort(1)
        random = order.argsort(1) < massive.sum(1, keepdim=True)
        found["next" if share is None else str(share)] = Canvases(seen, tokens, judged, massive, random)
    return found


@torch.no_grad()
def loss(model: Any, canvases: Canvases) -> list[float]:
    """Return the mean loss of each canvas's judged tokens, in nats."""
    hidden = model.network.model(input_ids=canvases.tokens, use_cache=False).last_hidden_state
    row, place = canvases.judged.nonzero(as_tuple=True)
    logits = model.network.lm_head(hidden[row, place - int(model.family.causal or model.family.shift)])
    each = cross_entropy(logits, canvases.targets[row, place], reduction="none").double()
    total = torch.zeros(len(hidden), dtype=torch.float64).index_add(0, row, each)
    return (total / canvases.judged.sum(1)).tolist()


class Sinks(Watcher):
    """The sinks of one call: column sums of each layer, [canvas, head, key], and the residual stream."""

    def __init__(self, causal: bool) -> None:
        self.causal, self.layers = causal, list[np.ndarray]()

    def watch(self, call: LayerCall, columns: Columns) -> None:
        self.layers.append(columns.sums[:, :, call.groups.index("all")].double().numpy())

    def numbers(self, stream: list[Tensor], before: np.ndarray | None) -> tuple[dict[str, list[float]], np.ndarray]:
        """Return what the sinks of each canvas are, and the place of each main sink [canvas, layer, head], −1 for
        none; ``before``: places without compression.
        """
        columns = np.stack(self.layers, axis=1)
        width = columns.shape[-1]
        uniform = uniform_columns(width, np.full(columns.shape[1], width)) if self.causal else None
        even = None if uniform is None else np.broadcast_to(uniform, (len(columns), *uniform.shape))
        excess = excess_of(columns, even)
        places = np.where(excess.max(-1) > EPSILON, excess.argmax(-1), -1)
        before = places if before is None else before
        found = {
            "first": columns[..., 0].mean((1, 2)) / width,
            "largest": columns.max(-1).mean((1, 2)) / width,
            "heads": (places >= 0).mean((1, 2)),
            "stay": ((places == before) & (before >= 0)).sum((1, 2)) / np.maximum((before >= 0).sum((1, 2)), 1),
            "peak": torch.stack([one.amax((1, 2)) for one in stream]).amax(0).numpy(),
        }
        return {name: [round(float(one), 4) for one in values] for name, values in found.items()}, places


class Bench:
    """A model with all that its arms share."""

    def __init__(self, name: str, texts: Sequence[str], calibration: Sequence[str]) -> None:
        self.model = model = sinkscope.load(name, dtype="float32")
        self.calibration = calibration_canvases(model, windows(model, calibration, CALIBRATION))
        self.dimension = massive_dimension(model, self.calibration)
        width = model.network.config.hidden_size
        self.random_dimension = (
            self.dimension + 1 + int(torch.randint(width - 1, (), generator=torch.Generator().manual_seed(3)))
        ) % width
        self.canvases = canvases_of(model, windows(model, texts, TEXTS), self.dimension)
        self.watched = self.canvases["next" if model.family.causal else "0.5"]
        self.places: np.ndarray | None = None

    def head(self) -> dict[str, Any]:
        """Return what rows of one table have in common."""
        tokens = {name: one.massive.sum(1).tolist() for name, one in self.canvases.items()}
        seen = [self.calibration, *(one.tokens for one in self.canvases.values())]
        read = hashlib.sha256(b"".join(one.numpy().tobytes() for one in seen)).hexdigest()[:16]
        facts = {
            "canvases": read,
            "texts": TEXTS,
            "width": WIDTH,
            "calibration": CALIBRATION,
            "group": _compressing.GROUP,
        }
        found = {"dimension": self.dimension, "random_dimension": self.random_dimension, "massive_tokens": tokens}
        return {"model": self.model.card.name, "weights": weight_hash_of(self.model), **facts, **found}

    def row(self, arm: Arm | None, problems: int = 0) -> dict[str, Any]:
        """Return what an arm does; None compresses nothing."""
        whole, acts = self._weights(arm)
        dimension = {"dimension": self.dimension, "random dimension": self.random_dimension}.get(
            arm.kept if arm else ""
        )
        losses, stream, watcher = dict[str, list[float]](), list[Tensor](), Sinks(self.model.family.causal)
        with compressed(self.model, *whole, self.calibration, dimension) if whole else nullcontext({}) as change:

            def rounding(canvases: Canvases | None) -> Any:
                if acts is None:
                    return nullcontext()
                kept = {"tokens": "massive", "random tokens": "random"}.get(arm.kept if arm else "")
                tokens = getattr(canvases, kept) if canvases and kept else None
                return rounded_activations(self.model, *acts, tokens, dimension)

            for name, canvases in self.canvases.items():
                with rounding(canvases), ExitStack() as watching:
                    if canvases is self.watched:
                        stream = watching.enter_context(residuals(self.model))
                        watching.enter_context(subscribed(self.model.network, watcher))
                    losses[name] = [round(one, 5) for one in loss(self.model, canvases)]
            with rounding(None):
                right = answers(self.model, problems) if problems else None
        found, places = watcher.numbers(stream, self.places)
        self.places = places if arm is None else self.places
        named = vars(arm) if arm else vars(Arm("none", ""))
        return {**named, **change, "loss": losses, "sinks": found, **({"right": right} if right else {})}

    def _weights(self, arm: Arm | None) -> tuple[Any, Any]:
        if arm is None:
            return None, None
        if arm.method != "activations":
            return (arm.method, float(arm.level)), None
        bits, of_activations, per = ACTIVATIONS[arm.level]
        return ("rtn", bits), (of_activations, per)


def answers(model: Any, problems: int) -> list[int]:
    """Return which of the lab's problems a model solves, 1 or 0."""
    task = find_task("lab-arith", {})
    asked, right = task.problems()[:problems], []
    for start in range(0, problems, BATCH):
        some = asked[start : start + BATCH]
        prompts = [task.prompt(one, start + number, 0) for number, one in enumerate(some)]
        for one, found in zip(some, sinkscope.generate(model, prompts, **SETTINGS[model.card.name]), strict=True):
            right.append(int(task.score(one, found.text).correct))
    return right


class Table:
    """The document of one model, written after each row."""

    def __init__(self, name: str, texts: Sequence[str], calibration: Sequence[str]) -> None:
        self.bench, self.path = Bench(name, texts, calibration), OUT / f"{Path(name).name}.json"
        self.problems = PROBLEMS if name.startswith("lab-") else 0
        head, document = self.bench.head(), dict[str, Any](rows=[])
        if self.path.exists():
            document = json.loads(self.path.read_text())
            if {one: document.get(one) for one in head} != head:
                raise CallError(f"{self.path}: measured with other texts, weights or settings; move it away")
        self.head = {**made_by(), **head}
        self.rows = {Arm(one["method"], one["level"], one["kept"]): one for one in document["rows"]}
        self.plain = self.measure(None)  # again, for the places of the sinks

    def measure(self, arm: Arm | None) -> float:
        """Return the loss of an arm, which is measured and written where it is missing."""
        key = arm or Arm("none", "")
        if key not in self.rows or arm is None:
            row = self.bench.row(arm, self.problems if key.kept == "nothing" and key not in self.rows else 0)
            self.rows.setdefault(key, row)
            lines = ",\n ".join(map(json.dumps, self.rows.values()))
            body = f'{json.dumps(self.head, indent=1)[:-2]},\n "rows": [\n {lines}\n]}}\n'
            write_whole(self.path, body.encode(), CallError, "make room")
            print(self.path.stem, *vars(key).values(), f"{np.mean(list(row['loss'].values())):.3f} nats", flush=True)
        return float(np.mean(list(self.rows[key]["loss"].values())))


def run(names: Sequence[str], texts: Sequence[str], calibration: Sequence[str]) -> None:
    """Measure the arms that are missing in the models' documents."""
    tables = [Table(name, texts, calibration) for name in names]
    for arm in arms():
        for table in tables:
            if table.measure(arm) - table.plain > WORTH_KEEPING:
                for kept in kept_arms(arm):
                    table.measure(kept)


def read(path: Path | None) -> list[str]:
    """Return the texts of JSON lines; without a file the lab's held-out problems, some in each text."""
    if path is not None:
        return [json.loads(line)["text"] for line in path.read_text().splitlines()]
    problems = [render(one) for one in held_out("lab-arith")]
    return ["\n\n".join(problems[start : start + 4]) for start in range(0, len(problems), 4)]


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--texts", type=Path, default=None, help="held-out texts; the lab's problems when left out")
    parser.add_argument("--calibration", type=Path, default=None, help="other texts; the last of --texts when left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    texts = read(given.texts)
    run(given.models, texts, texts[::-1] if given.calibration is None else read(given.calibration))


if __name__ == "__main__":
    run_script(main)
