"""`roles`: measures what the sink of each head does."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from sinkscope.checksums import with_checksum
from sinkscope.commands.bounds import Few, Seed, Shots
from sinkscope.commands.command import Command, Device, Dtype, Json, ModelName, default_is
from sinkscope.commands.output import note, print_json
from sinkscope.commands.sampler_flags import SamplerFlags
from sinkscope.errors import CallError, EvaluationError
from sinkscope.work_items import write_whole


@dataclass(frozen=True, kw_only=True)
class Roles(Command):
    """Measure what each sink does: idle, broadcast or carrier, with the evidence; the same command resumes after a kill.

    A head is listed where it has a sink in nine of ten canvases. Its sink is taken from that head alone, and the change of the
    model's predictions is measured beside two controls.

    Attributes:
        out: folder for the results; finished prompts are kept there.
        prompts: a file of JSON lines with a "prompt" each.
        problems: number of held-out problems of the lab, from the first.
        shots: solved problems in front of each of them.
        canvases: steps of each generation on which heads are asked; an autoregressive model is asked on its whole answer.
        rows: canvases in one forward call.
        control_seed: of the keys that are drawn at random.
        dry_run: prints how many forward calls it takes, and runs nothing.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    prompts: Annotated[Path | None, default_is("none")] = None
    problems: Few = 16
    shots: Shots = 0
    canvases: Few = 4
    rows: Few = 32
    control_seed: Seed = 0
    device: Device = "cpu"
    dtype: Dtype = None
    dry_run: bool = False
    json: Json = False
    sampler: SamplerFlags

    def run(self) -> None:
        import sinkscope
        from sinkscope.roles import LEAST, cost_of_roles, find_roles

        if self.out is None and not self.dry_run:
            raise CallError("expected --out FOLDER, or --dry-run")
        texts = self._read_prompts()
        if len(texts) < LEAST:
            raise CallError(f"expected at least {LEAST} prompts, half to choose heads and half to judge them, found {len(texts)}")
        model = sinkscope.load(self.model, dtype=self.dtype, device=self.device)
        settings = dict(self.sampler)
        if self.dry_run:
            cost = cost_of_roles(model, len(texts), self.canvases, self.rows, **settings)
            if self.json:
                print_json(cost)
            else:
                print(f"at most {cost['forwards']:,} forward calls, if all {cost['heads']} heads have a sink:")
                print(f"  {cost['generation']:,} to write the answers")
                print(f"  {cost['rows']:,} canvases, in batches of {self.rows}, to take each head's sink away")
            return
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
        for number, why in found.failed.items():
            note(f"prompt {number} is left out: {why}")
        assert self.out is not None
        content = json.dumps(with_checksum(found.as_dict()), ensure_ascii=False, indent=1) + "\n"
        write_whole(self.out / "roles.json", content.encode(), EvaluationError, "choose another folder")
        if self.json:
            print_json(found.as_dict())
        else:
            _print(found)

    def _read_prompts(self) -> list[str]:
        from sinkscope.commands.trace import read_prompts
        from sinkscope.lab.prompts import problem_prompts, task_of

        if self.prompts is not None:
            return read_prompts(self.prompts)
        return [row["prompt"] for row in problem_prompts(task_of(self.model), self.problems, self.shots)]


COLUMNS = (
    ("share", "share", "of all attention"),
    ("committed", "committed_share", "of the queries whose token is being committed"),
    ("norm", "norm_ratio", "‖W_O v‖ of the sink over the median of its canvas"),
    ("even", "evenness", "1 where all queries attend to it alike"),
    ("adds", "kl.sink.zero", "KL divergence of the predictions without what it adds, nats"),
    ("hidden", "kl.sink", "the same where its attention goes to other keys"),
    ("others", "kl.rowmass", "the same for random keys with as much attention of those queries"),
)


REMOVABLE = {True: "yes", False: "no", None: "?"}


def _print(found: Any) -> None:
    from sinkscope.roles import ROLES

    heads = found.layers * found.heads_in_layer
    print(f"{found.model}: {len(found.heads)} of {heads} heads have a lasting sink (Eq. 3, ε = {found.rules.excess:g})")
    print(f"chosen on {found.prompts - found.judged - len(found.failed)} prompts, judged on {found.judged} others")
    print("  " + ", ".join(f"{found.count(role)} {role}" for role in ROLES))
    free, not_free = (sum(one.removable is wanted for one in found.heads) for wanted in (True, False))
    print(
        f"  hidden in its head alone, {free} of them change the predictions by less than {found.rules.changed:g} nats, {not_free} by more\n"
    )
    print(
        f"{'layer':>5} {'head':>4}  {'role':<10}{'token':<10}"
        + "".join(f"{name:>10}" for name, _, _ in COLUMNS)
        + f"{'to hide':>9}{'can go':>8}"
    )
    for one in sorted(found.heads, key=lambda one: (ROLES.index(one.role), one.layer, one.head)):
        cells = "".join(f"{_number(one.measured.get(name)):>10}" for _, name, _ in COLUMNS)
        needed = "> 8" if one.substitutes is None else str(one.substitutes)
        print(f"{one.layer:>5} {one.head:>4}  {one.role:<10}{one.token!r:<10}{cells}{needed:>9}{REMOVABLE[one.removable]:>8}")
    print()
    for reason in dict.fromkeys(one.reason for one in found.heads if one.role == "undecided"):
        print(f"undecided {', '.join(f'{one.layer}.{one.head}' for one in found.heads if one.reason == reason)}: {reason}")
    print()
    for name, _, meaning in COLUMNS:
        print(f"{name:>10}  {meaning}")
    print("   to hide  how many of the head's largest columns must be hidden before the predictions change")
    print("    can go  whether it can be hidden, in this head alone, without a change of the predictions; ?: the interval holds both")


def _number(estimate: Any) -> str:
    return "–" if estimate is None or estimate.mean is None else f"{estimate.mean:.4f}"
