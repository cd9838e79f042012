"""Paper 2, "One Token Is Enough" (arXiv 2601.19657): the work behind its Tables 1 and 2, and their numbers.

Its checkpoints have no reliable names on the hub, so a run needs their folders. Those trained from scratch are files of
lit-gpt, which `sinkscope convert` turns into folders. Those from Qwen2.5 are folders that `load` reads, such as one
that ``save_pretrained`` wrote after `add_sink_token` and training. The dry run needs no folder.
"""

from collections.abc import Mapping, Sequence

from sinkscope.errors import CallError
from sinkscope.evaluation.papers.paper import PROBLEMS, Paper, Part, Shape
from sinkscope.evaluation.protocols import PROTOCOLS
from sinkscope.evaluation.results import Result

# Qwen2.5's tied table is counted twice, as costs are computed from a body without two tables.
_QWEN_SMALL = Shape(24, 14, 2, 896, 4864, 151936, 494_032_768 + 151936 * 896)
_QWEN_LARGE = Shape(28, 12, 2, 1536, 8960, 151936, 1_543_714_304 + 151936 * 1536)
_SCRATCH = Shape(18, 10, 10, 1280, 5120, 32001, 553_827_840)
SHAPES = {"qwen2.5-0.5b": _QWEN_SMALL, "qwen2.5-1.5b": _QWEN_LARGE, "scratch-472m": _SCRATCH}
SINKS = {"": None, "+sink": "token", "+gate": "gate"}
"""Name of the variant in the folder of a checkpoint, by the end of the checkpoint's name."""
CHECKPOINTS = tuple(f"{name}{variant}" for name in SHAPES for variant in SINKS)

TASKS = ("arc_easy", "arc_challenge", "hellaswag", "piqa", "race", "social_iqa", "lambada", "gsm8k_two_pass")
ACCURACY = {
    "qwen2.5-0.5b": (44.70, 27.13, 35.21, 55.28, 31.29, 40.28, 44.09, 46.92),
    "qwen2.5-0.5b+sink": (55.47, 32.17, 48.91, 63.44, 33.79, 37.82, 45.24, 49.20),
    "qwen2.5-0.5b+gate": (47.85, 29.27, 41.95, 61.92, 34.07, 36.08, 45.10, 47.01),
    "qwen2.5-1.5b": (65.49, 41.47, 59.50, 66.49, 37.80, 36.18, 66.58, 57.77),
    "qwen2.5-1.5b+sink": (68.18, 43.43, 61.31, 68.17, 37.61, 39.97, 66.41, 58.45),
    "qwen2.5-1.5b+gate": (53.03, 32.27, 52.90, 60.33, 37.42, 38.26, 51.10, 52.35),
    "scratch-472m": (32.20, 25.09, 31.56, 54.08, 31.77, 35.98, 29.26, 34.95),
    "scratch-472m+sink": (40.91, 22.35, 40.43, 62.24, 32.73, 37.92, 47.16, 35.17),
    "scratch-472m+gate": (36.28, 23.46, 37.61, 57.07, 33.68, 34.44, 42.27, 36.39),
}
"""Published accuracies in %, in the order of `TASKS`; the paper does not say which of them are per character."""


def paper2(folders: Mapping[str, str], *, tasks: Sequence[str] = TASKS, limit: int | None = None) -> tuple[Part, ...]:
    """Return the work behind every cell of its Tables 1 and 2.

    Args:
        folders: folder of each model, by its name in `CHECKPOINTS`; empty in a dry run.
        tasks: some of `TASKS`.
        limit: problems of each task; all when None.

    Raises:
        CallError: a checkpoint or a task that is not one of these.
    """
    for what, found, known in (("checkpoint", folders, CHECKPOINTS), ("task", tasks, TASKS)):
        unknown = [name for name in found if name not in known]
        if unknown:
            raise CallError(f"paper2: no {what} {unknown[0]!r}; expected some of {', '.join(known)}")
    settings = {protocol.task: protocol.settings for protocol in PROTOCOLS if protocol.family == "smdm"}
    parts = []
    for name, folder in folders.items():
        shape = SHAPES[name.split("+")[0]]
        for task in tasks:
            given = dict(settings[task])
            if task == "gsm8k_two_pass" and not name.startswith("scratch"):
                given.pop("block")  # Dream's sampler has none
            prompts = min(limit or PROBLEMS[task], PROBLEMS[task])
            parts.append(Part("paper2", "Tables 1, 2", name, task, ("none",), prompts, 0, given, shape, folder=folder))
    return tuple(parts)


def read_folders(text: str) -> dict[str, str]:
    """Return the folders of ``NAME=FOLDER,NAME=FOLDER``, as given to ``--models``; ``published`` is all names without
    folders.

    Raises:
        CallError: a part without a folder, or a name given twice.
    """
    if text == "published":
        return dict.fromkeys(CHECKPOINTS, "")
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, folder = part.partition("=")
        if not equals or not folder or name in found:
            raise CallError(
                f"--models: expected NAME=FOLDER once each, NAME of {', '.join(CHECKPOINTS)}, found {part!r}"
            )
        found[name] = folder
    if not found:
        raise CallError(
            f"--models: expected published, or NAME=FOLDER separated by commas, NAME of {', '.join(CHECKPOINTS)}, "
            f"found {text[:60]!r}"
        )
    return found


def check_folder(name: str, folder: str) -> None:
    """Raise CallError where a checkpoint has no folder, or one of another kind of model than its name says."""
    from sinkscope.models import identify  # here, as it loads torch

    body = name.partition("+")[0]
    scratch = body.startswith("scratch")
    if not folder:
        made = "expected one that `load` reads, such as Qwen2.5 after `add_sink_token`, training and `save_pretrained`"
        made = "`sinkscope convert` makes one of its .pth" if scratch else made
        raise CallError(f"expected a folder for {name}, found none; {made}: pass --models {name}=FOLDER")
    family, variant = identify(folder)
    sink = variant.name.removesuffix(" (folded)") if variant else None  # a folded token is the same model
    wanted, asked = (
        "smdm" if scratch else "dream",
        SINKS[name.removeprefix(body)],
    )  # those from Qwen2.5 shift their logits as Dream does
    if (family.name, sink) != (wanted, asked):
        raise CallError(
            f"--models {name}={folder}: expected family {wanted} with sink token {asked or 'none'}, as the name says, "
            f"found family {family.name} with sink token {variant.name if variant else 'none'}; give the folder the "
            "name of what it holds"
        )


def beside_paper(results: Mapping[str, Sequence[Result]]) -> str:
    """Return a Markdown table of the accuracies found, with intervals, beside the paper's, by checkpoint and task."""
    lines = ["| checkpoint | task | n | measured, % | of it per character, % | paper, % |", "|---|---|---|---|---|---|"]
    for name, found in results.items():
        for result in found:
            low, high = (100 * end for end in result.interval)
            normed = f"{100 * result.measures['acc_norm']:.1f}" if "acc_norm" in result.measures else "–"
            published = ACCURACY[name][TASKS.index(result.task)]
            lines.append(
                f"| {name} | {result.task} | {result.n} | {100 * result.accuracy:.1f} ({low:.1f}–{high:.1f}) | "
                f"{normed} | {published:.1f} |"
            )
    return "\n".join(lines)


PAPER = Paper(
    plan=lambda asked: paper2(read_folders(asked.models), limit=asked.limit),
    tables=lambda results: {"paper2.md": beside_paper(results)},
    check_folder=check_folder,
)
