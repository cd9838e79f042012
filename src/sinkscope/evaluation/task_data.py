"""Rows of published tasks: from local JSON lines, plain or in gzip, else from the Hugging Face hub."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import parse_json, read_json_lines

Row = Mapping[str, Any]


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
    """

    key: str
    path: Path | None
    hub: tuple[str, str | None]
    fields: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]]
    types: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    asked: str = "test"

    def rows(self, split: str) -> tuple[Row, ...]:
        """Return all rows of a split, in order.

        Raises:
            CallError: the file is missing or of another task, or a row lacks a field.
            EvaluationError: the hub cannot be reached.
        """
        if self.path is None:
            rows, where = self._from_hub(split), f"{self.hub[0]} ({split})"
        else:
            file = self._file(self.path, split)
            rows, where = _read_lines(self.key, file), f"--data {self.key}={file}"
        kept: list[Row] = []
        for number, row in enumerate(rows, 1):
            for name in self.fields:
                if not isinstance(row, Mapping) or not isinstance(row.get(name), self.types.get(name, (str,))):
                    raise CallError(
                        f"{where}, row {number}: expected the fields {', '.join(self.fields)}, found {str(row)[:80]}; "
                        f"is this the file of {self.key}?"
                    )
            kept.append({name: row[name] for name in self.fields})
        if not kept:
            raise CallError(f"{where}: expected rows with {', '.join(self.fields)}, found none")
        return tuple(kept)

    def _file(self, path: Path, split: str) -> Path:
        """Return the file of a split: a given file holds the problems; other splits are beside it or in the folder."""
        if not path.exists():
            raise CallError(f"--data {self.key}={path}: expected a JSON-lines file or a folder, found nothing")
        if path.is_file() and split == self.asked:
            return path
        folder = path if path.is_dir() else path.parent
        for file in (folder / f"{name}{end}" for name in self.files[split] for end in ("", ".gz")):
            if file.is_file():
                if path.is_file() and file.samefile(path):
                    raise CallError(
                        f"--data {self.key}={path}: expected the problems in another file than {file.name}, from which "
                        "few-shot prompts are drawn; --shots 0 does without"
                    )
                return file
        why = "; few-shot prompts are drawn from it, --shots 0 does without" if split == "train" else ""
        raise CallError(
            f"--data {self.key}={path}: expected {' or '.join(self.files[split])} in {folder}, found none{why}"
        )

    def _from_hub(self, split: str) -> Sequence[Any]:
        name, configuration = self.hub
        local = f"or pass a local file: --data {self.key}=FILE"
        if Path(name).exists():  # datasets would take it for the one of the hub
            raise CallError(f"{name} comes from the hub, but a folder of this name stands here; move it, {local}")
        try:
            from datasets import load_dataset

            return list(load_dataset(name, configuration, split=split))
        except Exception as error:  # whatever the hub, the network or its cache raise
            raise EvaluationError(f"{name} could not be had from the hub ({error}); go online, {local}") from error


def hash_rows(*splits: Sequence[Row]) -> str:
    """Return a sha256 over rows, so that another data file under the same results is noticed."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()


def _read_lines(key: str, path: Path) -> Iterator[Any]:
    where = f"--data {key}={path}"
    lines = read_json_lines(path, CallError, f"expected the JSON lines of {key}")
    return (parse_json(line, f"{where}, line {number}", CallError) for number, line in lines)
