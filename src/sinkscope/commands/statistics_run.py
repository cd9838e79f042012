"""``trace --keep statistics``: counts many prompts into one folder of statistics, with one process or several."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from sinkscope.commands.output import note


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
    from sinkscope.decoding import described
    from sinkscope.interventions.rules import canonical_rule
    from sinkscope.models.fingerprints import fingerprints
    from sinkscope.progress import show_progress
    from sinkscope.recorder.levels import recording_to
    from sinkscope.recorder.statistics_destination import StatisticsDestination, merge_statistics
    from sinkscope.runs.share import share_of_process
    from sinkscope.traces.statistics_folder import StatisticsFolder

    mine, hide = share_of_process(), canonical_rule(hide)
    rule = sinkscope.parse_rule(hide)
    with rule(model):  # which says what does not fit before anything is made
        pass
    identity = {
        **fingerprints(model),
        "weight_hash": model.card.weight_hash,
        "dtype": model.card.dtype,
        "sampler": {"name": model.family.sampler, **described(settings)},
        "hide": hide,
        "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest(),
    }
    folder = StatisticsFolder(out, identity, merge_statistics, len(prompts))
    share = range(mine.index, len(prompts), mine.count)
    missing = [index for index in share if not folder.done(index)]
    if len(missing) < len(share):
        note(f"{out}: {len(share) - len(missing)} prompts are done already")
    completed = folder.fold()  # what a killed process left
    with rule(model) as hiding, show_progress(settings.most_calls * len(missing), model.card.name, "steps") as bar:
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
