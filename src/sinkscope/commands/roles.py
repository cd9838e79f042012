"""`roles`: measures what the sink of each head does."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

from sinkscope.commands.command import Command, Device, Dtype, Gpu, Json, ModelName, Tflops, default_is
from sinkscope.commands.output import note, print_json, say
from sinkscope.commands.sampler_flags import SamplerFlags
from sinkscope.errors import CallError
from sinkscope.runs.share import expect_one_process


@dataclass(frozen=True, kw_only=True)
class Roles(Command):
    """Measure what each sink does: idle, broadcast or carrier, with evidence; the same command resumes after a kill.

    A head is listed where it has a sink in nine of ten canvases. Its sink is taken from that head alone, and the change
    of the model's predictions is measured beside two controls; at the end all sinks that can go are hidden together. A
    bundled model writes 32 tokens in blocks of 16, one a step, where no length is given.

    Attributes:
        out: folder for the results; finished prompts are kept there.
        prompts: a file of JSON lines with a "prompt" each.
        problems: number of held-out problems of the lab, from the first.
        shots: solved problems in front of each of them.
        canvases: steps of each generation on which heads are asked; an autoregressive model is asked on its whole
            answer.
        rows: canvases in one forward call.
        control_seed: of the keys that are drawn at random.
        head: prints all the evidence of one head, such as 4.2, in words.
        dry_run: prints what it costs at most (forward calls, GPU hours, memory), and reads no weights.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    prompts: Annotated[Path | None, default_is("none")] = None
    problems: int = 48
    shots: int = 0
    canvases: int = 4
    rows: int = 32
    control_seed: int = 0
    device: Device = "cpu"
    dtype: Dtype = None
    head: Annotated[str | None, default_is("none")] = None
    dry_run: bool = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: SamplerFlags

    def run(self) -> None:
        import sinkscope
        from sinkscope.commands.role_table import evidence, heading, read_head, table
        from sinkscope.roles import LEAST, find_roles

        if not self.dry_run:
            expect_one_process("roles")
        if self.out is None and not self.dry_run:
            raise CallError("expected --out FOLDER, or --dry-run")
        if self.prompts is not None:
            self.refuse("problems shots", "with --prompts")
        asked = None if self.head is None else read_head(self.head)
        texts = self._read_prompts()
        if len(texts) < LEAST:
            half = "half to choose heads and half to judge them"
            raise CallError(f"expected at least {LEAST} prompts, {half}, found {len(texts)}")
        settings = self._settings()
        if self.dry_run:
            self._print_cost(texts, settings)
            return
        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        if asked is not None and not (asked[0] < model.card.layers and asked[1] < model.card.heads):
            most = f"{model.card.layers - 1}.{model.card.heads - 1}"
            raise CallError(f"--head {self.head}: expected a layer and a head of {self.model}, 0.0 to {most}")
        from sinkscope.progress import show_progress

        with show_progress(len(texts), self.model, "prompts") as bar:
            found = find_roles(
                model,
                texts,
                out=self.out,
                canvases=self.canvases,
                rows=self.rows,
                control_seed=self.control_seed,
                on_prompt=lambda _: bar.advance(),
                **settings,
            )
        found = replace(found, source=self._source())
        for number, why in found.failed.items():
            note(f"prompt {number} is left out: {why}")
        assert self.out is not None
        found.save(self.out)
        if self.json:
            print_json(found.as_dict())
        else:
            width = get_terminal_size().columns if sys.stdout.isatty() else None
            say(f"{heading(found)}\n\n{table(found, width) if asked is None else evidence(found, *asked)}")

    def _source(self) -> dict[str, str | int]:
        from sinkscope.lab.prompts import task_of

        if self.prompts is not None:
            return {"file": self.prompts.name}
        return {"task": task_of(self.model), "shots": self.shots}

    def _settings(self) -> dict[str, Any]:
        """Return the settings that were given, beside those of a bundled model where no length was."""
        from sinkscope.lab.prompts import answer_settings
        from sinkscope.models import is_bundled

        own = answer_settings(self.model) if is_bundled(self.model) and "length" not in self.sampler else {}
        return {**own, **self.sampler}

    def _print_cost(self, texts: Sequence[str], settings: Mapping[str, Any]) -> None:
        from sinkscope.decoding import resolve_settings
        from sinkscope.evaluation.cost import assumptions, card_of, estimate_passes, text_tokens
        from sinkscope.evaluation.dry_run import family_and_shape
        from sinkscope.lab.prompts import task_of
        from sinkscope.roles import cost_of_roles

        family, shape = family_and_shape(self.model)
        calls = cost_of_roles(family, shape.layers, shape.heads, len(texts), self.canvases, self.rows, **settings)
        length, card = resolve_settings(family, **settings).length, card_of(self.gpu, self.tflops)
        from_lab = self.prompts is None
        tokens = round(sum(map(len, texts)) / len(texts) / 4)
        if from_lab:
            tokens = text_tokens(task_of(self.model), self.shots)
        canvas = tokens + length
        written = len(texts) if family.causal else calls["generation"]
        parts = (
            estimate_passes(shape, canvas, length, written, calls["generation"], 1, card),
            estimate_passes(
                shape, canvas, length, calls["passes"], calls["forwards"] - calls["generation"], self.rows, card
            ),
        )
        found = {
            **calls,
            "gpu_hours": sum(part.gpu_hours for part in parts),
            "memory_gib": parts[1].memory_gib,
            "rows_on_card": parts[1].batch_on_card,
            "card": card.name,
            "prompt_tokens": tokens,
            "settings": dict(settings),
            "assumptions": assumptions(card)[:2],
        }
        if self.json:
            print_json(found)
            return
        fit = found["rows_on_card"]
        of_heads = "its one head has" if found["heads"] == 1 else f"all {found['heads']} heads have"
        say(f"at most {found['forwards']:,} forward calls, if {of_heads} a sink:")
        say(f"  {found['generation']:,} to write the answers")
        say(f"  {found['rows']:,} canvases, in batches of {self.rows}, to take each head's sink away")
        hours = f"{found['gpu_hours']:.2f}" if found["gpu_hours"] >= 0.005 else "under 0.01"
        say(f"{hours} GPU hours and {found['memory_gib']:.2f} GiB on {card.name}", end=", ")
        say(f"which takes {fit:,} canvases of {canvas:,} tokens at a time" if fit else "where not one canvas fits")
        guess = "typical for the lab's problems" if from_lab else "a quarter of their letters"
        say(f"Assumed: prompts of {tokens:,} tokens ({guess}).", *found["assumptions"], sep="\nAssumed: ")

    def _read_prompts(self) -> list[str]:
        from sinkscope.commands.trace import read_prompts
        from sinkscope.lab.prompts import problem_prompts, task_of

        if self.prompts is not None:
            return read_prompts(self.prompts)
        return [row["prompt"] for row in problem_prompts(task_of(self.model), self.problems, self.shots)]
