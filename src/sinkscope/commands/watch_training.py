"""`watch-training`: measures the sinks of training runs at their snapshots, and draws how they are born."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from sinkscope import emergence
from sinkscope.commands.command import Command, Json, Switch, default_is, required
from sinkscope.commands.output import note, print_json, say
from sinkscope.commands.train import CANVASES, held_out, read_data
from sinkscope.errors import CallError, TrainingError
from sinkscope.progress import show_progress
from sinkscope.runs.folder import claimed_folder, expect_one_process


@dataclass(frozen=True, kw_only=True)
class WatchTraining(Command):
    """Measure sinks at snapshots of training runs, and draw how they are born; the same command resumes after a kill.

    Attributes:
        runs: folders of training runs with snapshots, or folders that `sinkscope.emergence.TrainingWatch` has written.
        out: folder for the measurements, one folder for each run, and the figure.
        data: the text that the runs train on, as for `sinkscope train`.
        canvases: held-out canvases on which they are measured.
        roles: also finds what each sink does, which takes a hundred times as long; what was measured without it is
            measured again.
    """

    runs: Annotated[Positional[tuple[Path, ...]], required()]
    out: Path
    data: Annotated[Path | None, default_is("the lab's")] = None
    canvases: int = CANVASES
    roles: Switch = False
    json: Json = False

    def run(self) -> None:
        from sinkscope.emergence.history import MANIFEST, check_collection
        from sinkscope.figures.run_figures import FILE, draw_emergence

        expect_one_process("watch-training")
        fresh = [folder for folder in self.runs if not (folder / MANIFEST).exists()]
        if not self.runs or len({folder.resolve().name for folder in fresh}) < len(fresh):
            found = "one of them twice" if fresh else "none"
            raise CallError(f"expected folders of training runs of different names, found {found}")
        for folder in fresh:
            if (folder / "watch" / MANIFEST).exists():
                note(f"{folder / 'watch'} was measured while {folder} trained; now its snapshots are measured")
        if not fresh:
            self.refuse("data canvases roles", "for runs that were measured while they trained")
        with claimed_folder(self.out, TrainingError):
            check_collection(self.out, FILE)
            measured = [emergence.open_emergence(self._measure(one) if one in fresh else one) for one in self.runs]
            names, shown = Counter(run.name for run in measured), []
            for run, folder in zip(measured, self.runs, strict=True):
                name = f"{run.name} ({folder.name})" if names[run.name] > 1 else run.name
                shown.append(replace(run, manifest={**run.manifest, "name": name}))
            paths = draw_emergence(shown).save(self.out)
        if self.json:
            return print_json({"runs": [as_plain(one) for one in measured], "files": [*map(str, paths)]})
        for one in shown:
            _print(one)
        say("\n".join(map(str, paths)))

    def _measure(self, folder: Path) -> Path:
        """Measure every snapshot of a run that is not measured yet, and return the folder of the measurements."""
        from sinkscope.lab.run_folder import check_data, network_at, open_run
        from sinkscope.lab.starting_network import choose_tokenizer

        run, texts = open_run(folder), read_data(self.data)
        check_data(run, texts)
        last = max(run.weights)
        if missing := [str(update) for update in run.recipe.snapshots if update < last and update not in run.weights]:
            note(f"{folder}: the snapshots of updates {', '.join(missing[:5])} are missing; they are left out")
        tokenizer, canvases = choose_tokenizer(run.recipe, texts), held_out(run.recipe, texts, self.canvases)
        out, how = self.out / folder.resolve().name, {"roles": self.roles, "name": run.recipe.name}
        with show_progress(len(run.weights), folder.name, "snapshots") as bar:
            for update in run.weights:
                network, weights = network_at(run, update, tokenizer), run.checksums(update)
                emergence.TrainingWatch(network, canvases, out, updates=[update], weights=weights, **how)(update)
                bar.advance()
        return out


def as_plain(run: Any) -> dict[str, Any]:
    """Return a run's curves as plain values: of each moment its losses, and of each head the means over canvases."""
    from sinkscope.figures.run_figures import LOSSES, PANELS

    moments = []
    for moment, update in enumerate(run.updates):
        row: dict[str, Any] = {"update": update}
        row |= {name: float(getattr(run.moments[moment], name).mean()) for name in LOSSES}
        row |= {name: getattr(run, name)[moment].round(6).tolist() for name, _ in PANELS}
        if run.moments[moment].role is not None:
            row["role"] = run.moments[moment].role.tolist()
        moments.append(row)
    return {**run.manifest, "born": run.born().tolist(), "moments": moments}


def _print(run: Any) -> None:
    from sinkscope.emergence.history import SHARE

    say(f"{run.name}: held-out loss, and the heads whose top key takes {SHARE:.0%} or more of their attention")
    losses = f"{'update':>8}{'loss':>8}{'top hidden':>12}{'rowmass':>9}"
    say(f"{losses}{'heads':>7}{'largest share':>15}{'its value norm':>16}{'stayed':>8}")
    for moment, (update, one, shares) in enumerate(zip(run.updates, run.moments, run.shares, strict=True)):
        heads, ratio = shares >= SHARE, run.ratios[moment].flat[shares.argmax()]
        stayed = f"{run.stayed[moment][heads].mean():.2f}" if heads.any() and moment else "–"
        losses = f"{one.loss.mean():>8.3f}{one.loss_without_top.mean():>12.3f}{one.loss_without_rowmass.mean():>9.3f}"
        say(f"{update:>8,}{losses}{heads.sum():>7}{shares.max():>15.3f}{ratio:>16.2f}{stayed:>8}")
