"""The folder of a checkpoint, by the name a user gives: bundled, local, or on the hub.

Of a checkpoint on the hub the small files are fetched first, so that a wrong model is refused before gigabytes travel.
"""

import difflib
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, ModelError
from sinkscope.models.weights import SINGLE, index_files, listing
from sinkscope.progress import counting_bar, show_progress
from sinkscope.runs.files import read_json_object

BUNDLED = ("lab-diffusion", "lab-autoregressive", "lab-sink-token", "lab-shifted")
SPECIMENS = tuple(
    f"lab-nulls-{kind}-{nulls}-{seed}"
    for kind in ("autoregressive", "diffusion")
    for nulls in (0, 1, 2, 4, 8)
    for seed in (0, 1, 2)
)
"""Bundled models of one head, whose truth about sinks is known: so many nulls, and the seed they were trained with."""
OWN_NETWORK = "any other network that you have in Python can be recorded as it is: sinkscope.recording(network, out=…)"
SMALL = ["*.json", "*.txt", "*.model", "*.jinja"]
"""config.json, the index of the weights, and what tokenizers are read from."""
MB = 10**6
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled checkpoint in the installed package.

    Raises:
        CallError: another name.
    """
    if not is_bundled(name):
        raise CallError(f"name: expected {', '.join(BUNDLED)} or lab-nulls-KIND-NULLS-SEED, found {name!r}")
    part = "checkpoints/specimens" if name in SPECIMENS else "checkpoints"
    return Path(str(resources.files("sinkscope") / part / name))


def is_bundled(name: str) -> bool:
    """Return whether a name is that of a model in the installed package."""
    return name in BUNDLED or name in SPECIMENS


def find_folder(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the folder of a bundled name, a local folder, or a hub id, which is fetched; without ``weights`` only its
    small files are.

    Raises:
        CallError: nothing by this name, or a revision of a folder.
        ModelError: a repository that the hub does not provide.
    """
    if revision is not None and not is_on_hub(name):
        raise CallError(f"revision: expected a hub id owner/name beside it, found {name!r}; leave it out")
    check_name(name)
    if is_bundled(name):
        return bundled_folder(name)
    if (folder := Path(name).expanduser()).exists():
        if not folder.is_dir():
            raise CallError(f"{name} is a file; expected a folder with config.json and safetensors weights")
        return folder
    folder = _fetch_small_files(name, revision)
    if weights:
        fetch_weights(name, folder)
    return folder


def is_on_hub(name: str) -> bool:
    """Return whether a name can only be that of a repository on a hub."""
    owned = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    return owned and not is_bundled(name) and not Path(name).exists()


def check_name(name: str) -> None:
    """Check that a name is bundled, or a folder, or of the form of a hub id; nothing is fetched.

    Raises:
        CallError: it is not.
    """
    if is_bundled(name) or (name and Path(name).expanduser().exists()) or is_on_hub(name):
        return
    bare, address = name.lower().rstrip("/"), _ADDRESS.match(name)
    near = difflib.get_close_matches(bare, BUNDLED, n=2) or difflib.get_close_matches(bare, SPECIMENS, n=2)
    near = [address[1]] if address else near
    meant = f"did you mean {' or '.join(near)}? Expected" if near else "expected"
    raise CallError(
        f"no model {name!r}: {meant} a bundled name ({', '.join(BUNDLED)}, a specimen lab-nulls-KIND-NULLS-SEED), "
        f"an existing folder, or a hub id owner/name; {OWN_NETWORK}"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Read the ``config.json`` of a folder.

    Raises:
        ModelError: none there, or no JSON object.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder} is no model: expected config.json in it, found {listing(folder)}")
    return read_json_object(path, ModelError, "correct the file or fetch it again")


def _fetch_small_files(name: str, revision: str | None) -> Path:
    """Return the folder of a repository in the cache, with everything but its weights; without a connection, its files
    in the cache.
    """
    import huggingface_hub

    with _hub_errors(name):
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=SMALL, ignore_patterns=["*/*"], tqdm_class=counting_bar(None, MB)
        )
    return Path(folder)


def fetch_weights(name: str, folder: Path) -> None:
    """Fetch the weights that a folder in the cache lacks, after a line that says how much that is.

    Raises:
        ModelError: a repository without safetensors, too little space, or what huggingface_hub says.
    """
    import huggingface_hub

    wanted = index_files(folder) or [SINGLE]
    lacking = [file for file in wanted if not (folder / file).exists()]
    if not lacking:
        return
    commit, cache = folder.name, folder.parents[2]
    with _hub_errors(name):
        files = huggingface_hub.HfApi().model_info(name, revision=commit, files_metadata=True).siblings or []
    sizes = {file.rfilename: file.size or 0 for file in files}
    if absent := [file for file in lacking if file not in sizes]:
        kinds = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack")
        held = sorted(file for file in sizes if file.endswith(kinds))
        raise ModelError(
            f"{name}: expected weights in {', '.join(absent[:4])}, found {', '.join(held[:4]) or 'no weights'} in the "
            "repository; sinkscope reads safetensors only, no pickles, which can run code: convert them and pass "
            "the folder"
        )
    total, free = sum(sizes[file] for file in lacking), shutil.disk_usage(folder).free
    if total > free:
        raise ModelError(f"{name}: expected room for {total / MB:,.1f} MB in {cache}, found {free / MB:,.1f} MB")
    count = f"{len(lacking)} of {len(wanted)} files" if len(wanted) > 1 else SINGLE
    print(f"{name} at {commit[:8]}: fetching {count}, {total / MB:,.1f} MB, into {cache}", file=sys.stderr, flush=True)
    with show_progress(-(-total // MB), f"fetching {name}", "MB") as progress, _hub_errors(name):
        for file in lacking:
            huggingface_hub.hf_hub_download(name, file, revision=commit, tqdm_class=counting_bar(progress, MB))


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Raise what huggingface_hub raises in the body as a ModelError."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.HfHubHTTPError, errors.HTTPError, errors.HFValidationError, OSError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{name}: no such folder here, and it cannot be fetched: {said}") from error
