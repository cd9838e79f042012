"""The folder of a run: one JSON file for each prompt that is done, written whole, so that a killed run loses one prompt at most.

run.json             what decides the results; another run is refused
choose/000000.json   of a prompt that chooses heads, which of them have a sink on each canvas
judge/000001.json    of a prompt that judges them, a row for each head and canvas
together/000001.json  of the same prompt, what hiding the sinks of several heads at once costs
roles.json           the verdicts, written at the end by the command

A prompt's file says what it is of: the hash of run.json, the kind, the number of the prompt, the heads. One that lies
in the wrong place, or comes from another folder, is measured again, as a damaged one is.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sinkscope.checksums import CHECKSUM, checksum_of, compare_checksum, with_checksum
from sinkscope.documents import check_fields, exists, files_in, read_json_object
from sinkscope.errors import CallError, EvaluationError
from sinkscope.locks import claimed_folder, names_in
from sinkscope.work_items import (
    FINGERPRINTS,
    ROLES,
    UNFINISHED,
    changed_fingerprint,
    difference_in_words,
    first_difference,
    item_path,
    kind_of_run,
    write_whole,
)

RUN, LOCK = "run.json", "lock"  # the latter in folders of earlier versions
ADVICE = "make room or choose another folder; the same command goes on"
DAMAGED = "the file was damaged or changed; choose another folder"
LARGEST = 1 << 30
"""Bytes of the largest file of a prompt that is read."""
Heads = Sequence[tuple[int, int]]
_log = logging.getLogger(__name__)


class PromptStore:
    """What is kept of each prompt; nothing is where there is no folder.

    Args:
        folder: of the run.
        run: hash of what decides the results.
    """

    def __init__(self, folder: Path | None, run: str = "") -> None:
        self._folder, self._run = folder, run

    def read(self, kind: str, number: int, heads: Heads, schema: type[Any]) -> list[dict[str, Any]] | None:
        """Return the rows of a prompt; None where it is not done, or where its file is damaged or of something else, which is reported.

        Args:
            kind: ``choose``, ``judge`` or ``together``.
            heads: that the rows are of, as layer and head; none where the prompt chooses them.
            schema: of the file, one of `prompt_schema`.
        """
        path = None if self._folder is None else item_path(self._folder / kind, number, ".json")
        if path is None or not exists(path):
            return None
        try:
            found = read_json_object(path, EvaluationError, most=LARGEST, any_number=True)
            check_fields(found, schema, str(path), EvaluationError)
            compare_checksum(found, path, EvaluationError, "it was damaged or changed")
            for name, expected in self._place(kind, number, heads).items():
                if found[name] != expected:
                    raise EvaluationError(
                        f"{path}: {name}: expected {repr(expected)[:80]}, found {repr(found[name])[:80]}; it was written for another place"
                    )
        except EvaluationError as error:
            _log.warning("%s; the prompt is measured again", error)
            return None
        return found["rows"]

    def write(self, kind: str, number: int, heads: Heads, canvases: int, rows: list[dict[str, Any]]) -> None:
        """Keep the rows of a prompt, of so many canvases; the rest as in `read`."""
        if self._folder is not None:
            path = item_path(self._folder / kind, number, ".json")
            try:
                path.parent.mkdir(exist_ok=True)
            except OSError as error:
                what = f"expected a folder {path.parent} ({error.strerror})"
                raise EvaluationError(
                    f"{path} cannot be written: {what}; remove what is there or choose another folder"
                ) from error
            content = {**self._place(kind, number, heads), "canvases": canvases, "rows": rows}
            write_whole(path, json.dumps(with_checksum(content)).encode(), EvaluationError, ADVICE)

    def _place(self, kind: str, number: int, heads: Heads) -> dict[str, Any]:
        """Return what a file says it is of."""
        return {"run": self._run, "kind": kind, "number": number, "heads": [list(one) for one in heads]}


@contextmanager
def open_store(folder: Path | None, identity: Mapping[str, Any]) -> Iterator[PromptStore]:
    """Open or make a folder while the body runs.

    Args:
        folder: None keeps nothing.
        identity: what must be the same for a run to go on, as plain values.

    Raises:
        CallError: the folder holds another run or something else, or another process is at work in it.
        EvaluationError: it cannot be written.
    """
    if folder is None:
        yield PromptStore(None)
        return
    folder = folder.absolute()  # the body may change the current folder
    with claimed_folder(folder, EvaluationError):
        names = [name for name in names_in(folder) if not name.endswith(UNFINISHED)]
        if RUN not in names and (
            found := next((one for one in names if files_in(folder / one, "??????.json", EvaluationError)), None)
        ):
            what = f"expected {RUN}, which says what run this is, beside {found}, found none"
            raise CallError(f"{folder}: {what}; put it back, or choose another folder")
        if RUN not in names and set(names) - {LOCK}:
            raise CallError(
                f"{folder} holds something else ({min(set(names) - {LOCK})} …); choose a new or empty folder"
            )
        theirs = _read_run(folder / RUN) if RUN in names else None
        if theirs is not None and kind_of_run(theirs) != ROLES:
            raise CallError(
                f"{folder}: expected an empty folder, or one with roles, found {kind_of_run(theirs)}; choose another folder"
            )
        if theirs is not None:  # which may be of an earlier version
            identity = {name: value for name, value in identity.items() if name in theirs or name not in FINGERPRINTS}
        if theirs is not None and (other := first_difference(theirs, identity)) is not None:
            name, old, new = other
            name = "control_seed" if name == "seed" else name  # as it is given; settings.seed is the sampler's
            words = difference_in_words(name, old, new, "its {name} is {old!r}, now it is {new!r}")
            change = (
                changed_fingerprint(theirs, identity) if name in FINGERPRINTS else f"{words}; choose another folder"
            )
            raise CallError(f"{folder} holds the roles of another run: {change}")
        if theirs is None:
            write_whole(folder / RUN, json.dumps(with_checksum(identity), indent=1).encode(), EvaluationError, ADVICE)
        try:
            yield PromptStore(folder, checksum_of(with_checksum(identity)))
        except BaseException:
            if theirs is None and names_in(folder) == [RUN]:  # nothing was measured
                (folder / RUN).unlink()
            raise


def _read_run(path: Path) -> dict[str, Any]:
    """Return what decides the results of a folder."""
    found = read_json_object(path, EvaluationError, DAMAGED)
    compare_checksum(found, path, EvaluationError, DAMAGED)
    return {name: value for name, value in found.items() if name != CHECKSUM}
