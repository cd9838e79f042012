"""Makes the reader of a sampler's cache, after checking that it goes with the model and its watchers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sinkscope.attention import Hider, Watcher, current_session, subscribed
from sinkscope.decoding.caches.cached_reader import CachedReader
from sinkscope.decoding.caches.elastic_cache import ElasticCache
from sinkscope.decoding.caches.layered_reader import ElasticReader, LayeredReader, Nothing
from sinkscope.decoding.caches.parsing import parse_cache
from sinkscope.decoding.caches.policy import CachePolicy, LayeredPolicy
from sinkscope.decoding.canvas import Batch, Layout, WorkMeter
from sinkscope.decoding.projection import WholeReader
from sinkscope.decoding.settings import Settings
from sinkscope.models import Model


@contextmanager
def reading(model: Model, batch: Batch, layout: Layout, meter: WorkMeter, settings: Settings) -> Iterator[WholeReader]:
    """Make the reader that the settings name; `CallError` where its cache does not go with model or canvas."""
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
    """Raise `CallError` where a model, or what watches it, does not go with a cache."""
    session = current_session(model.network)
    for one in [] if session is None else session.subscribers:
        if not isinstance(one, Watcher):
            found = "hiding" if isinstance(one, Hider) else "keys put in front"
            raise policy.refuse(
                f"expected a model in which nothing is hidden or put in front, as a step computes only some queries, "
                f"found {found}; hide without a cache (--cache none)"
            )
        layered = isinstance(policy, LayeredPolicy | ElasticCache)
        if layered or policy.selects:
            why = "each of its layers computes other positions" if layered else "its queries read only some keys"
            raise policy.refuse(
                f"expected a model that nothing watches, because {why}, found one that is recorded; use a policy that "
                "computes whole positions and reads all keys, such as --cache block"
            )
    sink = getattr(model.network.model, "sink_token", None)
    if sink is not None and sink.variant.kind == "token" and sink.variant.position == "end":
        raise policy.refuse(
            f"{model.card.name} has a sink token at the end of the whole canvas, of which a step computes a part; use "
            "--cache none"
        )
