"""Rows of published tasks: from a local JSON-lines file, plain or in gzip, or folder, else from the Hugging Face hub."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.documents import parse_json
from sinkscope.errors import CallError, EvaluationError
from sinkscope.json_lines import read_json_lines

Row = Mapping[str, Any]
_NAMES = {str: "text", dict: "an object", list: "a list"}


@dataclass(frozen=True)
class Source:
    """Where a task's rows come from.

    Attributes:
        key: name in ``--data KEY=PATH``.
        path: a JSON-lines file, or a folder with one of ``files``; None asks the hub.
        hub: repository and configuration on the hub.
        fields: names of fields that every row has as text.
        files: names to look for in a folder, by split.
        types: of fields that are not text.
        asked: the split whose rows are the problems; a given file holds this split.
        wrong: returns what is wrong with a row whose fields are as they should be; None where nothing is.
    """

    key: str
    path: Path | None
    hub: tuple[str, str | None]
    fields: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    types: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    asked: str = "test"
    wrong: Callable[[Row], str | None] = lambda row: None

    def rows(self, split: str) -> tuple[Row, ...]:
        """Return all rows of a split, in order.

        Raises:
            CallError: the file is missing or of another task, a row lacks a field, or a path here has the name of a data set of the hub.
            EvaluationError: the hub cannot be reached.
        """
        if self.path is None:
            rows, where = self._from_hub(split), f"{self.hub[0]} ({split})"
        else:
            file = self._file(split)
            rows, where = _read_lines(self.key, file), f"--data {self.key}={file}"
        kept: list[Row] = []
        for number, row in enumerate(rows, 1):
            self._check(row, f"{where}, row {number}")
            kept.append({name: row[name] for name in self.fields})
        if not kept:
            raise CallError(f"{where}: expected rows like {self._example()}, found none")
        return tuple(kept)

    def _file(self, split: str) -> Path:
        """Return the file of a split: a given file is the split with the problems; other splits are beside it or in the folder."""
        path = self.path
        assert path is not None
        if not path.exists():
            raise CallError(
                f"--data {self.key}={path}: expected a JSON-lines file or a folder with {self._names(self.asked)}, found nothing"
            )
        if path.is_file() and split == self.asked:
            return path
        folder = path if path.is_dir() else path.parent
        for name in self.files[split]:
            for file in (folder / name, folder / f"{name}.gz"):
                if path.is_file() and file.is_file() and file.samefile(path):
                    raise CallError(
                        f"--data {self.key}={path}: expected the problems in another file than {name}, from which few-shot prompts are "
                        "drawn, found one file for both; --shots 0 does without"
                    )
                if file.is_file():
                    return file
        why = "; few-shot prompts are drawn from it, --shots 0 does without" if split == "train" else ""
        raise CallError(f"--data {self.key}={path}: expected {self._names(split)} in {folder}, found none{why}")

    def _names(self, split: str) -> str:
        return " or ".join(self.files[split])

    def _example(self) -> str:
        return "{" + ", ".join(f'"{name}": "…"' for name in self.fields) + "}"

    def _check(self, row: Any, where: str) -> None:
        if not isinstance(row, Mapping):
            raise CallError(f"{where}: expected an object like {self._example()}, found {type(row).__name__}")
        for name in self.fields:
            kinds = self.types.get(name, (str,))
            if not isinstance(row.get(name), kinds):
                found = (
                    f"{type(row[name]).__name__}" if name in row else f"only {', '.join(map(str, row)) or 'nothing'}"
                )
                raise CallError(
                    f"{where}: expected the field {name!r} as {_NAMES[kinds[0]]}, found {found}; is this the file of {self.key}?"
                )
        if (wrong := self.wrong(row)) is not None:
            raise CallError(f"{where}: {wrong}")

    def _from_hub(self, split: str) -> Sequence[Any]:
        name, configuration = self.hub
        local = f"or pass a local file: --data {self.key}=FILE"
        if os.path.lexists(name):  # datasets would take it for the one of the hub
            raise CallError(
                f"{name} comes from the hub, but {Path(name).absolute()} stands here, which datasets would read instead; move it, {local}"
            )
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise CallError(
                f"{name} comes from the hub through the package datasets, which is not installed; install it, {local}"
            ) from error
        from sinkscope.models.hub import reason_of

        unreachable = _unreachable(name)
        try:
            with (
                contextlib.nullcontext() if unreachable is None else _offline()
            ):  # a data set in the cache needs no network
                return list(load_dataset(name, configuration, split=split))
        except Exception as raised:  # whatever the hub, the network or its cache raise
            error = unreachable or raised
            reason = re.sub(r" *\(\w*(Error|Enabled)\)", "", reason_of(error))
            if type(error).__name__ == "OfflineModeIsEnabled":
                reason = "no cached copy"
            offline = next(
                (
                    f" (unset {variable})"
                    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
                    if os.environ.get(variable)
                ),
                "",
            )
            raise EvaluationError(
                f"{name} could not be had from the hub ({reason}); go online{offline}, {local}"
            ) from error


def _unreachable(name: str) -> Exception | None:
    """Return why the hub does not answer for a data set; None where it does. `datasets` would ask six times and print each time."""
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name, timeout=10)
    except Exception as error:  # whatever the hub or the network raise
        return error
    return None


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Let `datasets` read its cache alone while the body runs."""
    from datasets import config
    from huggingface_hub import constants

    before = config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def hash_rows(*splits: Sequence[Row]) -> str:
    """Return a sha256 over rows, so that another data file under the same results is noticed."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


def _read_lines(key: str, path: Path) -> Iterator[Any]:
    where = f"--data {key}={path}"
    lines = read_json_lines(path, where, f"expected the JSON lines of {key}", CallError)
    return (parse_json(line, f"{where}, line {number}", CallError) for number, line in lines)
