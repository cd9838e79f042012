"""The folder of a run: one JSON file for each prompt that is done, so that a killed run loses one prompt.

run.json                   the settings that decide the results; another run is refused
choose/000000.json         of a prompt that chooses heads, which of them have a sink on each canvas
judge/000001.json          of a prompt that judges them, a row for each head and canvas; top/ has more keys hidden
together.idle/000001.json  of the same prompt, the cost of hiding the sinks of a class of heads at once
roles.json                 the verdicts, written at the end
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.errors import EvaluationError
from sinkscope.roles.removal import Heads, Rows
from sinkscope.runs.files import CHECKSUM, compare_checksum, read_json_object, with_checksum, write_whole
from sinkscope.runs.folder import item_path, run_folder

ADVICE = "make room or choose another folder; the same command goes on"
_log = logging.getLogger(__name__)


class PromptStore:
    """Keeps the rows of each prompt in the folder of a run, nothing without one; ``run`` is the hash of run.json."""

    def __init__(self, folder: Path | None, run: str = "") -> None:
        self._folder, self._run = folder, run

    def read(self, kind: str, number: int, heads: Heads) -> Rows | None:
        """Return the rows of a prompt; None where it is not done, or where its file is damaged or of another place."""
        path = None if self._folder is None else item_path(self._folder / kind, number, ".json")
        if path is None or not path.exists():
            return None
        try:
            found = read_json_object(path, EvaluationError)
            compare_checksum(found, path, EvaluationError, "it was damaged or changed")
            place = self._place(kind, number, heads)
            if {name: found.get(name) for name in place} != place or CHECKSUM not in found:
                raise EvaluationError(f"{path}: expected prompt {number} of this run, found a file of another place")
        except EvaluationError as error:
            _log.warning("%s; the prompt is measured again", error)
            return None
        return found["rows"]

    def write(self, kind: str, number: int, heads: Heads, canvases: int, rows: Rows) -> None:
        if self._folder is not None:
            path = item_path(self._folder / kind, number, ".json")
            path.parent.mkdir(exist_ok=True)
            content = {**self._place(kind, number, heads), "canvases": canvases, "rows": rows}
            write_whole(path, json.dumps(with_checksum(content)).encode(), EvaluationError, ADVICE)

    def _place(self, kind: str, number: int, heads: Heads) -> dict[str, Any]:
        return {"run": self._run, "kind": kind, "number": number, "heads": [list(one) for one in heads]}


@contextmanager
def open_store(folder: Path | None, identity: Mapping[str, Any]) -> Iterator[PromptStore]:
    """Open or make a folder (None keeps nothing) for a run of this identity, as `run_folder`."""
    if folder is None:
        yield PromptStore(None)
        return
    with run_folder(folder, "run.json", identity, EvaluationError, "the roles of another run") as run:
        yield PromptStore(folder, run)
