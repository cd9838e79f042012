"""Sink tokens and their alternatives: a place for attention that holds no text, built into a network."""

from sinkscope.models.sink_token.network import add_sink_token, check_token_id, split_config, with_sink
from sinkscope.models.sink_token.stream import SinkWeights, constant_keys, hidden_sink
from sinkscope.models.sink_token.variant import KEY, VARIANTS, SinkToken, read_variant, variant_of

__all__ = [
    "KEY",
    "VARIANTS",
    "SinkToken",
    "SinkWeights",
    "add_sink_token",
    "check_token_id",
    "constant_keys",
    "hidden_sink",
    "read_variant",
    "split_config",
    "variant_of",
    "with_sink",
]
