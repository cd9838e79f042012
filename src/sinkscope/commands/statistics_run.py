"""``trace --keep statistics``: counts many prompts into one folder of statistics, with one process or several."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from sinkscope.commands.output import note
from sinkscope.errors import CallError

MANIFEST = "manifest.json"


def add_prompts(model: Any, prompts: list[str], out: Path, settings: Any, hide: str = "none") -> bool:
    """Generate answers to the prompts of this process under a rule, and add their statistics to a folder.

    Under torchrun each process takes every n-th prompt. A prompt is always generated alone, so the result does not
    depend on the number of processes. A run that was killed continues with the prompts that are missing.

    Args:
        settings: of the model's sampler.
        hide: the rule's text.

    Returns:
        Whether this process is the one that reports the complete folder.

    Raises:
        CallError: the folder holds another run, or torchrun's RANK and WORLD_SIZE do not fit together.
    """
    import sinkscope
    from sinkscope.interventions.rules import canonical_rule
    from sinkscope.progress import show_progress
    from sinkscope.recorder.levels import recording_to
    from sinkscope.recorder.statistics_destination import StatisticsDestination, merge_statistics
    from sinkscope.runs.folder import FINGERPRINTS
    from sinkscope.runs.share import share_of_process
    from sinkscope.traces.statistics_folder import StatisticsFolder, read_statistics_manifest

    mine = share_of_process()
    hide = canonical_rule(hide)
    rule, new = sinkscope.parse_rule(hide), mine.count == 1 and not (out / MANIFEST).exists()
    with rule(model):  # which says what does not fit before anything is made
        pass
    identity = _identity(model, prompts, settings, hide)
    if (out / MANIFEST).exists():  # which may be of an earlier version
        began = read_statistics_manifest(out).get("run", {})
        with suppress(CallError):  # a rule that is not known here
            identity["hide"] = began.get("hide", hide) if canonical_rule(began.get("hide", "none")) == hide else hide
        identity = {name: value for name, value in identity.items() if name in began or name not in FINGERPRINTS}
    folder = StatisticsFolder(out, identity, merge_statistics, len(prompts))
    share = range(mine.index, len(prompts), mine.count)
    missing = [index for index in share if not folder.done(index)]
    if len(missing) < len(share):
        note(f"{out}: {len(share) - len(missing)} prompts are done already")
    completed = folder.fold()  # what a killed process left
    with (
        _removed_if_nothing_is_done(out) if new else nullcontext(),
        rule(model) as hiding,
        show_progress(settings.most_calls * len(missing), model.card.name, "steps") as bar,
    ):
        for index in missing:
            destination = StatisticsDestination(folder, [index])
            with recording_to(model, destination):
                sinkscope.generate(
                    model, prompts[index], on_step=lambda _: bar.advance(), **dataclasses.asdict(settings)
                )
            completed = completed or destination.completed_the_folder
    if missing and not rule.idle:
        note(hiding.effect.sentence(hide))
    return completed or (not missing and mine.index == 0)


@contextmanager
def _removed_if_nothing_is_done(out: Path) -> Iterator[None]:
    """Remove a folder of statistics that the body was to fill, where it raises before it has added a prompt."""
    try:
        yield
    except Exception:
        if not any((out / "items").glob("*.safetensors")) and not (out / "statistics.safetensors").exists():
            shutil.rmtree(out / "items", ignore_errors=True)
            for name in (MANIFEST, ".lock"):
                (out / name).unlink(missing_ok=True)
            with suppress(OSError):  # it may hold what was to be replaced
                out.rmdir()
        raise


def _identity(model: Any, prompts: list[str], settings: Any, hide: str) -> dict[str, Any]:
    from sinkscope.decoding import described
    from sinkscope.models.fingerprints import fingerprints

    return {
        **fingerprints(model),
        "weight_hash": model.card.weight_hash,
        "dtype": model.card.dtype,
        "sampler": {"name": model.family.sampler, **described(settings)},
        "hide": hide,
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
