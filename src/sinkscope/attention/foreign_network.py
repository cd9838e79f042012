"""Watches a torch module that is not a transformers model, through its calls of ``F.scaled_dot_product_attention``.

While its forward runs, a `TorchFunctionMode` of this thread intercepts the calls; hooks tell which module makes them.
"""

import contextlib
import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from sinkscope.attention.call import Call
from sinkscope.attention.dispatch import check_heads
from sinkscope.attention.session import Session, current_session
from sinkscope.attention.stacks import Stack, StackInput, real_tokens
from sinkscope.errors import AttentionError, CallError

stock_attention = functional.scaled_dot_product_attention


@contextlib.contextmanager
def foreign(network: nn.Module, layers: Sequence[str] | None = None, *, causal: bool = False) -> Iterator[None]:
    """Let a torch module that calls ``F.scaled_dot_product_attention`` be recorded and changed while the body runs.

    A layer is the innermost module that makes the call, named by its path; a second call of one module in one forward
    is ``path:1``. A step is one forward call of the network. Its tokens are read from an integer argument
    [batch, query], its padding (on the left) from the mask of its first layer.

    Args:
        network: the module whose forward is a step.
        layers: paths of the modules to watch; the others run unchanged. If None, all that call it are watched.
        causal: whether the network writes from left to right, so that columns are running sums over the queries so far.

    Raises:
        CallError: a path that the network does not have.
        AttentionError: the network is watched already; a recording or rule is still open when the body ends.
    """
    paths = {path for path, _ in network.named_modules()}
    if unknown := [path for path in layers or () if path not in paths]:
        some = ", ".join(sorted(paths - {""})[:8])
        raise CallError(f"layers: {type(network).__name__} has no module {', '.join(unknown)}; it has {some} …")
    if current_session(network) is not None:
        raise AttentionError(f"{type(network).__name__} is watched already; open foreign() before recording")
    hooks = ForeignHooks(network, layers, causal)
    session = Session(network, hooks.stacks, stays=True)
    session.open(hooks.install)
    try:
        yield
        left = len(session.subscribers)
        session.end_generation(failed=False)
    finally:
        session.close()
    if left:
        raise AttentionError(
            f"{left} recordings or rules of {type(network).__name__} outlive foreign; open them inside"
        )


class ForeignHooks:
    """A wrapper around the network's forward, and hooks that record which of its modules are running."""

    def __init__(self, network: nn.Module, layers: Sequence[str] | None, causal: bool) -> None:
        self.network, self.layers = network, layers
        self.stacks = [Stack("", network, {}, {}, causal)]
        self.running: list[tuple[str, nn.Module, Tensor | None]] = []  # outermost first, with their inputs
        self._within = False

    def install(self, session: Session) -> None:
        for path, module in self.network.named_modules():
            enter = partial(self._enter, session, path)  # the session among the arguments refuses a copy of the network
            session.undo.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            session.undo.callback(module.register_forward_hook(self._leave, always_call=True).remove)
        self._wrap(session, "forward", partial(self._one_step, session, self.network.forward))
        generate: Any = getattr(self.network, "generate", None)
        if callable(generate):
            self._wrap(session, "generate", session.foreign_generation()(generate))

    def _wrap(self, session: Session, name: str, ours: Callable[..., Any]) -> None:
        before = vars(self.network).get(name)
        if before is None:
            session.undo.callback(delattr, self.network, name)
        else:
            session.undo.callback(setattr, self.network, name, before)
        setattr(self.network, name, ours)

    def _enter(
        self, session: Session, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if path == "":
            self.running.clear()  # an interrupt may have left entries behind
        elif not self.running and session.subscribers and torch._C._current_graph_task_id() != -1:
            raise AttentionError(f"gradient checkpointing runs {path} once more, unseen; turn it off meanwhile")
        given = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        hidden = next((one for one in given if one.ndim == 3 and one.is_floating_point()), None)
        self.running.append((path, module, hidden))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        del self.running[-1:]

    def _one_step(self, session: Session, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if session.subscribers:
            session.refuse_other_threads()
        if self._within or not session.subscribers:
            return forward(*args, **kwargs)
        step, failed, self._within = _Step(self, session, args, kwargs), True, True
        try:
            with step:
                output = forward(*args, **kwargs)
            if step.call is None:
                name = type(self.network).__name__
                raise AttentionError(f"expected {name} to call F.scaled_dot_product_attention; it cannot be watched")
            failed = False
        finally:
            self._within = False
            session.end_call(failed=failed)
        return output

    def layer(self) -> tuple[str, nn.Module] | None:
        running = ((path, module) for path, module, _ in reversed(self.running))
        return next((one for one in running if self.layers is None or one[0] in self.layers), None)

    def entering(self, module: nn.Module, batch: int, queries: int) -> Tensor | None:
        """Return the input of a layer's block: the innermost running entry of a `ModuleList`, or of a `Sequential`."""
        for kind in (nn.ModuleList, nn.Sequential):
            for path, _, hidden in reversed(self.running):
                owner = self.network.get_submodule(path.rpartition(".")[0])
                if path and hidden is not None and isinstance(owner, kind):
                    hidden = hidden.transpose(0, 1) if getattr(module, "batch_first", True) is False else hidden
                    return hidden if hidden.shape[:2] == (batch, queries) else None
        return None


class _Step(TorchFunctionMode):
    """One forward call of a foreign network, whose step is read from its calls of attention."""

    def __init__(self, hooks: ForeignHooks, session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.hooks, self.session = hooks, session
        given = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
        self.whole = [one for one in given if one.ndim == 2 and one.dtype in (torch.int64, torch.int32)]
        self.call: Call | None = None
        self.shape = (0, 0)
        self.paths: list[str] = []  # of the layers so far

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is stock_attention:
            return self.attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            return self.multi_head(*args, **kwargs)
        return func(*args, **kwargs)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute attention in place of ``F.scaled_dot_product_attention``."""
        given = (query, key, value, attn_mask, dropout_p, is_causal)
        stock = partial(stock_attention, *given, scale=scale, enable_gqa=enable_gqa)
        layer = self.hooks.layer()
        if layer is None:
            return stock()
        path, index = layer[0] or "attention", len(self.paths)
        again = self.paths.count(path)
        name = f"{path}:{again}" if again else path
        self.paths.append(path)
        q, k, v, mask = _four_axes(query, key, value, attn_mask)
        if self.call is None:
            read = self._read(name, q, k, mask, heads=query.ndim == 4)
            self.call = self.session.begin_call(self.hooks.stacks[0], lambda: read)
        if (q.shape[2], k.shape[2]) != self.shape:
            raise AttentionError(
                f"expected {name} to have {self.shape[0]} queries on {self.shape[1]} keys as the layers before it, "
                f"found {q.shape[2]} on {k.shape[2]}; choose layers that belong together: foreign(network, layers=[…])"
            )
        hidden_states = self.hooks.entering(layer[1], q.shape[0], q.shape[2])
        if hidden_states is not None:
            self.call.hidden_states[layer[1]] = hidden_states
        record = self.call.named_layer(layer[1], name, index, q, k, v)
        factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
        output = self.call.attend(record, factor, mask, is_causal, dropout_p)
        if output is None:
            return stock()
        return output[:, 0] if query.ndim == 3 else output

    def multi_head(self, *args: Any, **kwargs: Any) -> Any:
        """Compute ``nn.MultiheadAttention``, one function of torch, by torch's own code around `attention`."""
        stock = functional.multi_head_attention_forward
        if self.hooks.layer() is None:
            return stock(*args, **kwargs)
        given = inspect.signature(stock).bind(*args, **kwargs)
        given.apply_defaults()
        if given.arguments["need_weights"] or given.arguments["bias_k"] is not None or given.arguments["add_zero_attn"]:
            raise AttentionError(
                "expected nn.MultiheadAttention with need_weights=False, without add_bias_kv and add_zero_attn, found "
                f"{self.hooks.layer()}; choose other layers: foreign(network, layers=[…])"
            )
        replaced = {"has_torch_function": lambda _: False, "scaled_dot_product_attention": self.attention}
        names = {**stock.__globals__, **replaced}
        ours = types.FunctionType(stock.__code__, names, stock.__name__, stock.__defaults__, stock.__closure__)
        return ours(*args, **kwargs)

    def _read(self, name: str, query: Tensor, key: Tensor, mask: Tensor | None, heads: bool) -> StackInput:
        """Return the step, read from its first layer, whose inputs have or lack an axis of heads."""
        batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]
        if keys < queries:
            raise AttentionError(f"expected {name} to look at all tokens so far, found {queries} queries, {keys} keys")
        before, self.shape = self.session.last_step(), (queries, keys)
        ids = next((one[:, -queries:] for one in self.whole if one.shape in ((batch, queries), (batch, keys))), None)
        rows = [len(one) for one in self.whole if one.shape[1] == queries]
        if not heads and ids is None and rows:
            raise AttentionError(
                f"expected inputs [batch, token, dim] of {name} to have as many rows as the tokens, found {batch} and "
                f"{rows[0]}; give heads an axis: [batch, head, token, dim]"
            )
        real = None
        if queries == keys:
            if before is not None and before.seen and self.hooks.stacks[0].causal:
                self.session.end_generation(failed=False)  # another text begins
            real = None if mask is None else real_tokens(mask).expand(batch, -1)
        elif before is None and not self.session.published:
            raise AttentionError(
                f"expected as many keys as tokens in {name}, found {queries} queries on {keys} keys in the first call; "
                "begin before the cache is filled, or choose other layers"
            )
        elif before is not None and (before.batch, before.total) == (batch, keys - queries):
            real = functional.pad(before.visible(), (0, queries), value=True)
        return StackInput(batch, queries, keys - queries, ids, real, None, query.device)


def _four_axes(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    if query.ndim == 3:
        query, key, value = query[:, None], key[:, None], value[:, None]
        mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    batch = max(query.shape[0], key.shape[0], value.shape[0])
    query, key, value = (one.expand(batch, -1, -1, -1) for one in (query, key, value))
    check_heads(query, key)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
        mask = mask.expand(*mask.shape[:3], key.shape[2])
    return query, key, value, mask
