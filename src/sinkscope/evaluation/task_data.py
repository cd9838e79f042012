"""Rows of published tasks: from local JSON lines, plain or in gzip, else from the Hugging Face hub."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, EvaluationError
from sinkscope.runs.files import parse_json, read_json_lines

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Where a task's rows come from: ``--data KEY=PATH``, else the repository and configuration on the hub.

    Attributes:
        path: a JSON-lines file, or a folder with one of ``files``; None asks the hub.
        fields: types of the fields that every row has.
        files: names to look for in a folder, by split.
        asked: the split whose rows are the problems; a given file holds this split.
    """

    key: str
    path: Path | None
    hub: tuple[str, str | None]
    fields: Mapping[str, tuple[type, ...]] = field(hash=False)
    files: Mapping[str, tuple[str, ...]] = field(hash=False)
    asked: str = "test"

    @property
    def where(self) -> str:
        """The place of the rows, for messages."""
        return self.hub[0] if self.path is None else f"--data {self.key}={self.path}"

    def rows(self, split: str) -> tuple[Row, ...]:
        """Return all rows of a split, in order.

        Raises:
            CallError: the file is missing or of another task, or a row lacks a field.
            EvaluationError: the hub cannot be reached.
        """
        rows = self._from_hub(split) if self.path is None else self._from_file(self.path, split)
        kept: list[Row] = []
        for number, row in enumerate(rows, 1):
            if not all(isinstance(row.get(name), kinds) for name, kinds in self.fields.items()):
                raise CallError(
                    f"{self.where}, row {number}: expected the fields {', '.join(self.fields)}, found {str(row)[:80]}; "
                    f"is this the file of {self.key}?"
                )
            kept.append({name: row[name] for name in self.fields})
        if not kept:
            raise CallError(f"{self.where}: expected rows with {', '.join(self.fields)}, found none")
        return tuple(kept)

    def _from_file(self, path: Path, split: str) -> Iterable[Any]:
        """Return the rows of a split: a given file holds the problems; other splits are beside it or in the folder."""
        folder = path if path.is_dir() else path.parent
        beside = [folder / f"{name}{end}" for name in self.files[split] for end in ("", ".gz")]
        given = path.is_file() and split == self.asked
        file = path if given else next((one for one in beside if one.is_file()), None)
        if not path.exists() or file is None or (file == path and not given):
            why = "; few-shot prompts are drawn from it, --shots 0 does without" if split == "train" else ""
            wanted = "a file" if not path.exists() else f"{' or '.join(self.files[split])} in {folder}"
            raise CallError(f"--data {self.key}={path}: expected {wanted}, beside the problems, found none{why}")
        lines = read_json_lines(file, CallError, f"expected the JSON lines of {self.key}")
        return (parse_json(line, f"--data {self.key}={file}, line {number}", CallError) for number, line in lines)

    def _from_hub(self, split: str) -> Iterable[Any]:
        try:
            from datasets import load_dataset

            return list(load_dataset(*self.hub, split=split))
        except Exception as error:  # whatever the hub, the network or its cache raise
            local = f"go online, or pass a local file: --data {self.key}=FILE"
            raise EvaluationError(f"{self.hub[0]} could not be had from the hub ({error}); {local}") from error


def text_fields(*names: str) -> dict[str, tuple[type, ...]]:
    """Return fields that are text."""
    return dict.fromkeys(names, (str,))


def hash_rows(*splits: Sequence[Row]) -> str:
    """Return a sha256 over rows, so that another data file under the same results is noticed."""
    return hashlib.sha256(json.dumps(splits, sort_keys=True).encode()).hexdigest()
