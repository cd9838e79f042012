"""Any causal model of transformers, by its own config class and network; nothing of it is translated."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields as fields_of
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

from sinkscope.errors import ModelError, first_line
from sinkscope.models.family import STOCK

NAME = "transformers"
"""Name of the family."""
GGUF = ".gguf"


def causal_networks(model_type: Any) -> tuple[str, ...]:
    """Return the names that ``architectures`` in a config.json may give to a causal model of this type."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ())
    return (found,) if isinstance(found, str) else tuple(found)


def is_any_causal(config: Mapping[str, Any]) -> bool:
    """Return whether transformers has a causal network for a config.json; BERT is one where it says ``is_decoder``."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as ENCODERS

    model_type = config.get("model_type")
    names = causal_networks(model_type)
    given = config.get("architectures") or names[:1]
    causal = config.get("is_causal") is not False and (model_type not in ENCODERS or config.get("is_decoder") is True)
    return bool(names) and model_type not in STOCK and causal and set(given) <= set(names)


def config_of(fields: Mapping[str, Any], where: str) -> Any:
    """Return the transformers config of a config.json; raise ModelError where transformers refuses a value."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[fields["model_type"]]
    try:
        if (Path(where) / "config.json").exists():  # transformers has spellings of its own for infinity and types
            return kind.from_pretrained(where, local_files_only=True)
        return kind.from_dict(dict(fields))
    except (StrictDataclassError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"{where}/config.json: transformers refuses it ({first_line(error)})") from error


def unread_keys(fields: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Return the keys of a config.json that the config class keeps without reading them."""
    kind = type(config_of(fields, where))
    known = {*(one.name for one in fields_of(kind)), *kind.attribute_map, "model_type", "architectures"}
    return tuple(key for key in fields if key not in known)


@lru_cache(maxsize=4)
def read_gguf_config(path: Path) -> dict[str, Any]:
    """Return the config.json that transformers reads from a GGUF file."""
    from transformers import AutoConfig

    with reading_gguf(path):
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True).to_dict()
    left_out = ("quantization_config", "_name_or_path", "transformers_version")
    names = causal_networks(config["model_type"])
    return {key: value for key, value in config.items() if key not in left_out} | {"architectures": list(names[:1])}


@lru_cache(maxsize=1)
def _reader(path: Any) -> Any:
    """Return the reader of a file; transformers makes one for its config, tokenizer and weights, seconds each."""
    import numpy as np
    from gguf.gguf_reader import GGUFReader

    mapped = np.memmap  # whose slices, one for each word of the vocabulary, cost half of the reading
    with mock.patch.object(np, "memmap", lambda *given, **named: np.asarray(mapped(*given, **named))):
        return GGUFReader(path)


@contextmanager
def reading_gguf(path: Path) -> Iterator[None]:
    """Raise what transformers says of a GGUF file in the body as an error of ours, and keep its progress bar away."""
    import gguf

    try:
        names = lru_cache(gguf.get_tensor_name_map)  # transformers asks for the same one for each module
        with redirect_stderr(StringIO()), mock.patch.multiple(gguf, GGUFReader=_reader, get_tensor_name_map=names):
            yield
    except (ValueError, KeyError, TypeError, OSError, RuntimeError, NotImplementedError) as error:
        raise ModelError(f"{path}: transformers cannot read this GGUF file ({first_line(error)})") from error
