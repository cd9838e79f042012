"""Makes the reader that a sampler's settings name, after checking that its cache goes with the model and with what watches it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sinkscope.attention import Hider, Watcher, current_session, subscribed
from sinkscope.decoding.caches.cached_reader import CachedReader
from sinkscope.decoding.caches.elastic_cache import ElasticCache
from sinkscope.decoding.caches.elastic_reader import ElasticReader, Nothing
from sinkscope.decoding.caches.layered_reader import LayeredReader
from sinkscope.decoding.caches.parsing import parse_cache
from sinkscope.decoding.caches.policy import CachePolicy, LayeredPolicy
from sinkscope.decoding.caches.whole_reader import WholeReader
from sinkscope.decoding.canvas import Batch, Layout
from sinkscope.decoding.settings import Settings
from sinkscope.decoding.work import WorkMeter
from sinkscope.errors import CallError
from sinkscope.models import Model


@contextmanager
def reading(model: Model, batch: Batch, layout: Layout, meter: WorkMeter, settings: Settings) -> Iterator[WholeReader]:
    """Make the reader that the settings name.

    Raises:
        CallError: a cache that does not go with the model, the settings, the canvas, or with what watches the model.
    """
    policy = parse_cache(getattr(settings, "cache", "none"))
    if policy is None:
        yield WholeReader(model, layout, meter)
        return
    policy.check_canvas(batch, settings)
    check_model(model, policy)
    length = layout.positions.shape[1]
    real = torch.nn.functional.pad(batch.real, (0, length - batch.real.shape[1]), value=True)
    if isinstance(policy, LayeredPolicy):
        yield LayeredReader(model, layout, meter, policy, real, batch.real.shape[1])
        return
    if isinstance(policy, ElasticCache):
        with subscribed(model.network, Nothing()):
            yield ElasticReader(model, layout, meter, policy, real)
        return
    reader = CachedReader(model, layout, meter, policy, real, settings, batch.real.shape[1])
    if not (policy.measures or policy.watches(refresh=True)):
        yield reader
        return
    with subscribed(model.network, reader.measurer):
        yield reader


def check_model(model: Model, policy: CachePolicy) -> None:
    """Raise an error where a model, or what watches it, does not go with any cache.

    Raises:
        CallError: it does not.
    """
    session = current_session(model.network)
    for one in [] if session is None else session.subscribers:
        if not isinstance(one, Watcher):
            found = "hiding" if isinstance(one, Hider) else "keys put in front"
            raise CallError(
                f"cache {policy.text}: expected a model in which nothing is hidden or put in front, because a step computes only some "
                f"queries, found {found}; hide without a cache (--cache none)"
            )
        if isinstance(policy, LayeredPolicy | ElasticCache):
            raise CallError(
                f"cache {policy.text}: expected a model that nothing watches, because each of its layers computes other positions, found "
                "one that is recorded; record with a policy that computes whole positions, such as --cache block"
            )
        if policy.selects:
            raise CallError(
                f"cache {policy.text}: expected a model that nothing watches, because its queries read only some keys, found "
                "one that is recorded; record with a policy that reads all keys, such as --cache block"
            )
    sink = getattr(model.network.model, "sink_token", None)
    if sink is not None and sink.variant.kind == "token" and sink.variant.position == "end":
        raise CallError(
            f"cache {policy.text}: {model.card.name} has a sink token at the end, whose place follows from the whole canvas, of which a "
            "step computes only a part; use --cache none"
        )
