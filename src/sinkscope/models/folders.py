"""The folder of a checkpoint, by the name a user gives: bundled, local, or on the hub."""

import difflib
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from sinkscope.documents import check_regular, exists, read_json_object, shown
from sinkscope.errors import CallError, ModelError
from sinkscope.models.fetched_files import check_text
from sinkscope.models.hub import fetch_small_files, fetch_weights
from sinkscope.models.weights import listing

BUNDLED = ("lab-diffusion", "lab-autoregressive", "lab-sink-token", "lab-shifted")
LARGEST_CONFIG, LARGEST_TEXT = 16 << 20, 512 << 20
"""Bytes of a config.json, and of the largest file of a tokenizer."""
TEXTS = (".json", ".txt", ".model", ".jinja")
SPECIMENS = tuple(
    f"lab-nulls-{kind}-{nulls}-{seed}"
    for kind in ("autoregressive", "diffusion")
    for nulls in (0, 1, 2, 4, 8)
    for seed in (0, 1, 2)
)
"""Bundled models of one head, whose truth about sinks is known: so many nulls, and the seed they were trained with."""

_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")
OWN_NETWORK = "any other network that you have in Python can be recorded as it is: sinkscope.recording(network, out=…)"


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled checkpoint in the installed package.

    Raises:
        CallError: another name.
    """
    if not is_bundled(name):
        near = difflib.get_close_matches(name[:80], (*BUNDLED, *SPECIMENS), n=2)
        expected = (
            " or ".join(near) if near else f"one of {', '.join(BUNDLED)}, or a specimen lab-nulls-KIND-NULLS-SEED"
        )
        raise CallError(f"name: expected {expected}, found {shown(name)}")
    part = "checkpoints/specimens" if name in SPECIMENS else "checkpoints"
    return Path(str(resources.files("sinkscope") / part / name))


def is_bundled(name: str) -> bool:
    """Return whether a name is that of a model in the installed package."""
    return name in BUNDLED or name in SPECIMENS


def find_folder(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the folder of a bundled name, a local folder, or a hub id, which is fetched; without ``weights`` only its small files are.

    Raises:
        CallError: nothing by this name, or a revision of what is not on a hub.
        ModelError: a bundled model that is not installed, or a repository that the hub does not provide.
    """
    if revision is not None and not is_on_hub(name):
        raise CallError(
            f"revision: expected a hub id owner/name beside it, found {name!r}, which has no revisions; leave it out"
        )
    if is_bundled(name):
        folder = bundled_folder(name)
        if not (folder / "config.json").exists():
            raise ModelError(
                f"{name} is a bundled model, but {folder} holds no config.json; reinstall sinkscope, or train it (`sinkscope train --help`)"
            )
        return folder
    folder = _expanded(name)
    if name and exists(folder):
        try:
            is_folder = folder.is_dir()
        except OSError as error:
            raise CallError(
                f"{name[:60]} cannot be read ({error.strerror or error}); pass a folder that exists"
            ) from error
        if not is_folder:
            found = "a file" if folder.exists() else "a link that leads nowhere"
            raise CallError(f"{name} is {found}; expected a folder with config.json and safetensors weights")
        return folder
    check_name(name)
    folder = fetch_small_files(name, revision)
    if weights:
        fetch_weights(name, folder)
    return folder


def _expanded(name: str) -> Path:
    """Return a path with the home of a user in it; ``./~`` is a folder of that name."""
    try:
        return Path(name).expanduser() if name.startswith("~") else Path(name)
    except RuntimeError as error:
        raise CallError(f"no model {name!r}: there is no user of that name; pass a folder that exists") from error


def is_on_hub(name: str) -> bool:
    """Return whether a name can only be that of a repository on a hub."""
    owned = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    return owned and not is_bundled(name) and not exists(Path(name))


def check_name(name: str) -> None:
    """Raise an error for a name that is neither bundled, nor a folder, nor of the form of a hub id; nothing is fetched.

    Raises:
        CallError: see above.
    """
    if is_bundled(name) or (name and exists(_expanded(name))):
        return
    if not is_on_hub(name):
        bare, address = name.lower().rstrip("/"), _ADDRESS.match(name)
        near = difflib.get_close_matches(bare, BUNDLED, n=2) or difflib.get_close_matches(bare, SPECIMENS, n=2)
        near = [address[1]] if address else near
        meant = f"did you mean {' or '.join(near)}? Expected" if near else "expected"
        raise CallError(
            f"no model {name!r}: {meant} a bundled name ({', '.join(BUNDLED)}, a specimen lab-nulls-KIND-NULLS-SEED), an existing folder, "
            f"or a hub id owner/name; {OWN_NETWORK}"
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the ``config.json`` of a folder.

    Raises:
        ModelError: none there, or no JSON object.
    """
    path = folder / "config.json"
    if not exists(path):
        raise ModelError(f"{folder} is no model: expected config.json in it, found {listing(folder)}")
    check_text(path)
    config = read_json_object(
        path, ModelError, "correct the file or fetch it again", most=LARGEST_CONFIG, any_number=True
    )
    names = config.get("architectures")
    if names is not None and not (isinstance(names, list) and all(isinstance(one, str) for one in names)):
        raise ModelError(f"{path}: architectures: expected a list of names or null, found {names!r}")
    return config


def check_files(folder: Path) -> None:
    """Raise an error where a file that is about to be read is none that ends, or larger than such a file can be.

    Raises:
        ModelError: a named pipe, a device, or a text file of gigabytes.
    """
    for path in sorted(folder.iterdir()):
        if path.suffix in TEXTS or path.suffix == ".safetensors":
            check_regular(
                path, ModelError, "fetch the files again", most=LARGEST_TEXT if path.suffix in TEXTS else None
            )


def refuse_place(error: Exception, folder: Path) -> None:
    """Raise ModelError for a file outside of a model's folder that a library could not use, such as its cache."""
    if (
        not isinstance(error, OSError)
        or not isinstance(place := error.filename, str)
        or Path(place).is_relative_to(folder)
    ):
        return
    variable = next((name for name, value in os.environ.items() if value and place.startswith(value)), None)
    advice = "make it usable" if variable is None else f"the environment variable {variable} names it, unset it"
    raise ModelError(f"{place} cannot be used ({error.strerror}); {advice}") from error
