"""Checkpoints on a model hub: their small files are fetched first, so that a wrong model is refused before gigabytes travel.

huggingface_hub fetches and keeps the cache. It goes on where a connection was cut; if a run ends, its finished files are kept.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sinkscope.documents import check_regular, exists, files_in
from sinkscope.errors import ModelError
from sinkscope.models.weights import SINGLE, index_files
from sinkscope.progress import counting_bar, show_progress

SMALL = ["*.json", "*.txt", "*.model", "*.jinja"]
"""config.json, the index of the weights, and what tokenizers are read from."""
MB = 10**6
MOST_TOKEN = 1 << 16  # bytes of the file of a token


def fetch_small_files(name: str, revision: str | None) -> Path:
    """Return the folder of a repository in the cache, with everything but its weights; a hub that cannot be reached leaves what is there.

    Raises:
        ModelError: no such repository or revision, no access to it, or it is neither on the hub nor in the cache.
    """
    import huggingface_hub

    with _told(name, revision):
        _check_reference(name, revision)
        folder = huggingface_hub.snapshot_download(
            name, revision=revision, allow_patterns=SMALL, ignore_patterns=["*/*"], tqdm_class=counting_bar(None, MB)
        )
    return Path(folder)


def _check_reference(name: str, revision: str | None) -> None:
    """Raise an error where the cache's file with the commit of a revision was damaged; the library would read whatever is there."""
    from huggingface_hub import constants

    repository = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    path = repository / "refs" / (revision or "main")
    if not path.exists():
        return
    found = "no file"
    if path.is_file():
        with path.open("rb") as file:
            found = file.read(64).decode(errors="replace")
    if not re.fullmatch("[0-9a-f]{40}", found):
        raise ModelError(f"{path}: expected a commit, 40 hexadecimal digits, found {found[:60]!r}; delete {repository}")


def fetch_weights(name: str, folder: Path) -> None:
    """Fetch the weights that a folder of `fetch_small_files` lacks; how much that is, is printed before it begins.

    Raises:
        ModelError: a repository without safetensors, too little space, a hub that cannot be reached, or a cut connection.
    """
    import huggingface_hub

    wanted = index_files(folder) or [SINGLE]
    lacking = [file for file in wanted if not (folder / file).exists()]
    if not lacking:
        return
    commit = folder.name
    with _told(name, commit):
        files = huggingface_hub.HfApi().model_info(name, revision=commit, files_metadata=True).siblings or []
    sizes = {file.rfilename: file.size or 0 for file in files}
    absent = [file for file in lacking if file not in sizes]
    if absent:
        held = sorted(
            file
            for file in sizes
            if Path(file).suffix in (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack")
        )
        raise ModelError(
            f"{name}: expected weights in {', '.join(absent[:4])}, found {', '.join(held[:4]) or 'no weights'} in the repository; "
            "sinkscope reads safetensors only, no pickles, which can run code: convert them and pass the folder"
        )
    _remove_leftovers(folder)
    total, free = sum(sizes[file] for file in lacking), shutil.disk_usage(folder).free
    cache = folder.parents[2]
    if total > free:
        raise ModelError(
            f"{name}: expected room for {_size(total)} in {cache}, found {_size(free)}; make room or set HF_HUB_CACHE"
        )
    count = f"{len(lacking)} of {len(wanted)} files" if len(wanted) > 1 else SINGLE
    print(f"{name} at {commit[:8]}: fetching {count}, {_size(total)}, into {cache}", file=sys.stderr, flush=True)
    with show_progress(-(-total // MB), f"fetching {name}", "MB") as progress, _told(name, commit):
        for file in lacking:
            huggingface_hub.hf_hub_download(name, file, revision=commit, tqdm_class=counting_bar(progress, MB))


def _size(count: int) -> str:
    """Return a number of bytes as people write it."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / MB:.1f} MB"


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had fetched of a file, which no later one can use; those of running processes are locked."""
    from filelock import FileLock, Timeout

    repository = folder.parents[1]
    for path in files_in(repository / "blobs", "*.incomplete", ModelError):
        etag = path.name.split(".")[0]
        lock = repository.parent / ".locks" / repository.name / f"{etag}.lock"
        if not lock.exists():
            continue
        try:
            with FileLock(lock, timeout=0):
                path.unlink(missing_ok=True)
        except (Timeout, OSError):  # being fetched by another process, or the cache is not ours
            continue


@contextmanager
def _told(name: str, revision: str | None) -> Iterator[None]:
    """Turn what the library raises in the body into one message.

    Raises:
        ModelError: see above.
    """
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    again = "run the same again, finished files are kept"
    _check_surroundings(hub)
    no_hub = f"{name}: expected the answer of a model hub from {hub}, found another; correct HF_ENDPOINT"
    try:
        with _patience(constants.HF_HUB_DOWNLOAD_TIMEOUT):
            yield
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{name}: expected access to a gated repository, found none; accept its terms at {hub}/{name}, then `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{name}: no such folder here, and no such repository on {hub}, or a private one; correct the name, or `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(
            f"{name}: expected a branch, tag or commit of the repository, found no {revision!r}; see {hub}/{name}/tree/main"
        ) from error
    except errors.HFValidationError as error:
        raise ModelError(
            f"{name}: no such folder here, and no name of a repository, which has letters, digits, -, _ and . on both sides of one /; "
            "pass owner/name"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        if isinstance(error.__cause__, errors.FileMetadataError):
            raise ModelError(no_hub) from error
        held = (
            "the cache holds a part of it"
            if isinstance(error, errors.IncompleteSnapshotError)
            else "the cache does not hold it"
        )
        if constants.is_offline_mode():
            why, advice = (
                "HF_HUB_OFFLINE is set",
                "unset HF_HUB_OFFLINE, or fetch it on another machine and pass its folder",
            )
        else:
            why, advice = f"{hub} could not be reached ({reason_of(error.__cause__ or error)})", again
        raise ModelError(f"{name}: no such folder here, {held}, and {why}; {advice}") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise ModelError(
                f"{name}: {hub} refuses the token of this machine (401); `hf auth login`, or unset HF_TOKEN"
            ) from error
        raise ModelError(f"{name}: {hub} could not give it ({reason_of(error)}); {again}") from error
    except errors.HTTPError as error:
        raise ModelError(f"{name}: the connection to {hub} failed ({reason_of(error)}); {again}") from error
    except (json.JSONDecodeError, errors.FileMetadataError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise ModelError(no_hub) from error
    except ImportError as error:  # of a package for the proxy
        raise ModelError(
            f"{name}: the proxy of this machine needs a package that is not installed ({_line(error)})"
        ) from error
    except (NotADirectoryError, PermissionError, FileExistsError) as error:
        raise ModelError(
            f"{name}: the hub's folder on this machine cannot be used ({_line(error)}); set HF_HOME to another one"
        ) from error
    except OSError as error:
        raise ModelError(f"{name}: it could not be fetched from {hub} ({reason_of(error)}); {again}") from error


def _check_surroundings(hub: str) -> None:
    """Raise an error for what the library would take from the environment and fail at.

    Raises:
        ModelError: an address, a token, a name or a file of certificates that none can be.
    """
    from huggingface_hub import constants

    try:
        address = urlsplit(hub)
        good = address.scheme in ("http", "https") and bool(address.hostname)
    except ValueError:
        good = False
    if not good:
        raise ModelError(
            f"HF_ENDPOINT: expected the address of a model hub, which begins with https://, found {hub[:60]!r}; correct it"
        )
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_USER_AGENT_ORIGIN"):
        if not os.environ.get(variable, "").isascii():
            raise ModelError(
                f"the environment variable {variable}: expected letters of ASCII, found others; correct it"
            )
    token = Path(constants.HF_TOKEN_PATH)
    if exists(token):
        check_regular(token, ModelError, "`hf auth login` writes it anew", most=MOST_TOKEN)
        if not token.read_bytes().isascii():
            raise ModelError(
                f"{token}: expected a token in letters of ASCII, found others; `hf auth login` writes it anew"
            )
    certificates = os.environ.get("SSL_CERT_FILE")
    if certificates and not Path(certificates).is_file():
        raise ModelError(
            f"the environment variable SSL_CERT_FILE: expected a file of certificates, found none at {certificates[:60]}; unset it"
        )


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Let the hub's client wait so long for an answer, where it would wait for ever."""
    import huggingface_hub

    def limit(request: Any) -> None:
        asked = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            part: asked[part] if asked.get(part) else seconds for part in ("connect", "read", "write", "pool")
        }

    client = huggingface_hub.get_session()
    before = client.event_hooks
    client.event_hooks = {**before, "request": [*before["request"], limit]}
    try:
        yield
    finally:
        client.event_hooks = before


def reason_of(error: BaseException) -> str:
    """Return an error's status, or the first line of its message."""
    response = getattr(error, "response", None)
    return f"status {response.status_code}" if response is not None else _line(error)


def _line(error: BaseException) -> str:
    text = re.sub(r"\[Errno -?[0-9]+\] ?", "", str(error)).strip()
    return text.splitlines()[0] if text else type(error).__name__
