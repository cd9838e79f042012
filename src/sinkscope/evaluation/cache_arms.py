"""The arms of a comparison of caches: a policy, perhaps parallel, such as ``fast-dllm-dual@threshold=0.9``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.decoding import known_caches, parse_cache
from sinkscope.errors import CallError

PARALLEL = ("threshold", "factor")
"""Settings of a sampler that decode in parallel, which is no cache."""


@dataclass(frozen=True)
class Arm:
    """One way to write the answers: a policy as `parse_cache` reads it, and parallel decoding (0 is off)."""

    cache: str = "none"
    threshold: float = 0.0
    factor: float = 0.0

    @property
    def text(self) -> str:
        """The arm as `read_arms` reads it."""
        options = [f"{name}={getattr(self, name)}".removesuffix(".0") for name in PARALLEL if getattr(self, name)]
        return f"{self.cache}@{','.join(options)}" if options else self.cache

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a sampler in which it differs from plain sampling."""
        return {name: value for name, value in vars(self).items() if value != getattr(Arm, name)}

    @property
    def keep(self) -> str | None:
        """Which keys outside of the block it reads, for a policy that chooses them within a budget; None for others."""
        return getattr(parse_cache(self.cache), "keep", None) if self.budget is not None else None

    @property
    def budget(self) -> int | None:
        """How many keys outside of the block it reads; None where the policy has no such number."""
        return getattr(parse_cache(self.cache), "budget", None)


PLAIN = Arm()


def read_arms(text: str, budgets: Sequence[int] = ()) -> list[Arm]:
    """Return the arms of a text, each once, plain sampling first.

    Args:
        text: arms separated by commas, such as ``fast-dllm-dual,none@threshold=0.9,block:keep=sinks``. A piece belongs
            to the options of the arm before it unless it begins with the name of a policy.
        budgets: how many keys a policy reads whose text leaves this open; it stands for an arm a number.

    Raises:
        CallError: a policy or an option that is not known, or no budget where one is needed.
    """
    known, pieces = ("none", *known_caches()), list[str]()
    for piece in filter(None, map(str.strip, text.split(","))):
        if pieces and piece.partition(":")[0].partition("@")[0] not in known and "=" in piece:
            pieces[-1] += f",{piece}"
        else:
            pieces.append(piece)
    arms = [PLAIN]
    for piece in pieces:
        cache, _, options = piece.partition("@")
        opened = "keep=" in cache and "keep=all" not in cache and "budget=" not in cache
        if opened and not budgets:
            raise CallError(
                f"policy {piece!r}: expected a budget of keys; give --budget 16,64, or write {cache},budget=64"
            )
        for end in [f",budget={budget}" for budget in budgets] if opened else [""]:
            policy = parse_cache(cache + end)
            arms.append(Arm("none" if policy is None else policy.text, **_parallel(piece, options)))
    return list(dict.fromkeys(arms))


def _parallel(piece: str, options: str) -> dict[str, float]:
    """Return the settings of parallel decoding behind the ``@`` of an arm."""
    found = {}
    for option in filter(None, map(str.strip, options.split(","))):
        name, _, value = option.partition("=")
        if name not in PARALLEL:
            raise CallError(f"policy {piece!r}: expected threshold=… or factor=… behind the @, found {option!r}")
        found[name] = float(value)
    return found


def read_budgets(text: str) -> list[int]:
    """Return the budgets of a text, such as ``16,64``."""
    return list(dict.fromkeys(int(one) for one in text.split(",") if one.strip()))
