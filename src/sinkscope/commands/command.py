"""The base classes of commands, and the flags that several commands have.

A flag is a field of the command's frozen dataclass. Its type and default are those of the flag, and the docstring of
the class is its help. tyro builds the command line from this.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from tyro.conf import FlagConversionOff, Positional, UseAppendAction, arg

from sinkscope.errors import CallError


class Command(ABC):
    """A command with the values of its flags. The first line of its docstring is its line in ``sinkscope --help``."""

    @abstractmethod
    def run(self) -> None:
        """Run the command and print the result."""

    def refuse(self, names: str, why: str) -> None:
        """Raise CallError for those of the named flags that are given; ``why`` is such as ``without --keep top``."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.name in names.split() and getattr(self, field.name) != field.default:
                flag = f"--{'no-' if field.default is True else ''}{field.name}".replace("_", "-")
                raise CallError(f"{flag} is not used {why}; leave it out")


def default_is(text: str, help: str | None = None) -> Any:
    """Return an annotation for a flag whose default is None or empty: the help says "(default: ``text``)"."""
    return arg(help=help, help_behavior_hint=f"(default: {text})")


def required() -> Any:
    """Return an annotation for a list that must not be empty, which the command itself checks."""
    return arg(help_behavior_hint="(required)")


def _flags(default: str | None = None) -> type:
    """Return a type of dictionary with a key for each setting of all samplers; a parsed one holds the settings given.
    ``default`` is the text for every default in the help; the defaults of the samplers when None.
    """
    import docstring_parser

    from sinkscope.decoding.settings import all_settings

    types: dict[str, Any] = {}
    texts: dict[str, str] = {}
    samplers: dict[str, dict[str, list[str]]] = {}  # setting → default → samplers
    for sampler, kind in all_settings().items():
        docs = [docstring_parser.parse(one.__doc__ or "") for one in reversed(kind.__mro__)]
        described = {one.arg_name: one.description or "" for doc in docs for one in doc.params}
        for field in dataclasses.fields(kind):
            name = field.name
            types[name] = types[name] | field.type if name in types else field.type
            texts.setdefault(name, described[name].replace("`", ""))
            own = f"--length, else {field.default}" if name in kind.follows_length else str(field.default)
            samplers.setdefault(name, {}).setdefault(own, []).append(sampler)
    shown: dict[str, str] = {}
    for name, by_default in samplers.items():
        everyone = [*by_default.values()] == [[*all_settings()]]
        each = (one if everyone else f"{one} for {', '.join(names)}" for one, names in by_default.items())
        shown[name] = default or "; ".join(each)
    flags = {name: Annotated[FlagConversionOff[types[name]], default_is(shown[name], texts[name])] for name in types}
    return TypedDict("SamplerFlags", flags, total=False)  # type: ignore[operator]


Switch = Annotated[bool, default_is("off")]
Overwrite = Annotated[bool, default_is("off", "replaces the recording that --out holds.")]
Json = Annotated[bool, default_is("off", "prints one JSON document to standard output.")]
Gpu = Annotated[
    Literal["a100", "a100-40gb", "h100", "h200", "l40s", "rtx4090"] | None,
    default_is("one of 24 GB, as fast as an A100", "card of the dry run."),
]
Tflops = Annotated[float | None, default_is("40 % of the card's peak", "its speed there, in 10¹² operations a second.")]
ModelName = Annotated[Positional[str], arg(help="a built-in name, a folder, a .gguf file, or a hub id.")]
Device = Annotated[str, arg(help="cpu, cuda …")]
Dtype = Annotated[str | None, default_is("the stored one", "float32, bfloat16 or float16.")]
TaskFiles = UseAppendAction[
    Annotated[
        tuple[str, ...],
        arg(help="TASK=PATH, a local JSON-lines file or folder of a published task; may be given several times."),
    ]
]
Excess = Annotated[float, arg(help="how far a column must exceed what --rule says, in --unit.")]
Unit = Annotated[
    Literal["queries", "percent", "mean"],
    arg(help="unit of --excess: queries' worth of attention, percent of all attention, or mean (share)."),
]
Rule = Annotated[
    Literal["uniform", "eq3"] | None,
    default_is(
        "uniform for causal models, else eq3",
        "uniform: over uniform attention of the queries that see the key; eq3: over the mean of the other columns.",
    ),
]
RolesFile = Annotated[Path | None, default_is("none", "folder of `sinkscope roles`: what the sinks do.")]
Traces = Annotated[Positional[tuple[Path, ...]], required()]
SamplerFlags = Annotated[Mapping[str, Any], arg(name="", constructor_factory=_flags)]
"""The settings that were given, by name; the help shows the defaults of the samplers."""
TaskSamplerFlags = Annotated[
    Mapping[str, Any],
    arg(name="", constructor_factory=lambda: _flags("the protocol's or the task's, else the sampler's")),
]


@dataclass(frozen=True, kw_only=True)
class TaskCommand(Command):
    """A command that lets a model work on tasks.

    Attributes:
        out: folder for the results.
        tasks: separated by commas.
        limit: number of problems of each task, from the first.
        shots: solved problems in each prompt.
        chat: applies the chat template, unless the protocol decides that.
        protocol: published settings for published tasks: auto, none, or a name, such as fast-dllm and fast-dllm-512.
        batch: number of prompts in a batch.
        allow_code_execution: runs the programs that a model writes, in a sandbox.
        dry_run: prints what it costs (forward calls, memory, GPU hours), and reads neither weights nor problems.
    """

    model: ModelName
    out: Annotated[Path | None, default_is("none, which only a dry run allows")] = None
    tasks: str = "lab-arith"
    limit: Annotated[int | None, default_is("all")] = None
    shots: Annotated[int | None, default_is("the protocol's or the task's own number")] = None
    chat: Switch = False
    protocol: str = "auto"
    data: TaskFiles = ()
    batch: int = 16
    allow_code_execution: Switch = False
    device: Device = "cpu"
    dtype: Dtype = None
    dry_run: Switch = False
    gpu: Gpu = None
    tflops: Tflops = None
    json: Json = False
    sampler: TaskSamplerFlags

    def asked(self) -> dict[str, Any]:
        """Return the request to the model, by the names of `Request`."""
        from sinkscope.evaluation.tasks import PUBLISHED, read_data_flags

        tasks, data = words(self.tasks), read_data_flags(self.data)
        if unused := [name for name in data if name not in {*tasks, *(PUBLISHED.get(task) for task in tasks)}]:
            raise CallError(f"--data {unused[0]} is not used without this task; add {unused[0]} to --tasks")
        same = {name: getattr(self, name) for name in "limit shots chat protocol allow_code_execution".split()}
        return {"tasks": tasks, "data": data, "settings": dict(self.sampler), **same}


def expect_out(out: Path | None) -> Path:
    """Return a folder for results; raise CallError without one."""
    if out is None:
        raise CallError("expected --out FOLDER, or --dry-run")
    return out


def words(text: str) -> list[str]:
    """Return the words of a text, separated by commas, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
