"""A model without its weights, on which work is planned and checked before a machine that can hold them is asked for."""

from sinkscope.models.conversion import convert_config
from sinkscope.models.folders import find_folder
from sinkscope.models.loading import assemble, build_config, network_class, quiet, read_identity
from sinkscope.models.model import Model
from sinkscope.models.shapes import on_meta
from sinkscope.models.sink_token import with_sink
from sinkscope.models.tokenization import load_tokenizer


def outline(name: str) -> Model:
    """Return a model from its config.json and tokenizer alone: it encodes texts and knows its shape, but computes nothing.

    Args:
        name: as for `load`; of a hub id only the small files are fetched.

    Raises:
        CallError, ModelError: see `load`.
    """
    folder = find_folder(name, weights=False)
    config, family, variant = read_identity(folder)
    converted = convert_config(config, family, str(folder))
    with quiet():
        tokenizer = load_tokenizer(folder, family, config)
        network = on_meta(*with_sink(network_class(converted), build_config(converted), variant))
    of_files = {"weight_hash": "", "stored_dtype": "", "dtype": ""}
    return assemble(name, folder, network, tokenizer, family, converted, variant, of_files)
