"""The kinds of sink a network can be given, as frozen values; a checkpoint's config.json names its own."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sinkscope.errors import CallError, ModelError

KEY = "sink_token"  # in config.json
COUNTS = (1, 2, 4)


@dataclass(frozen=True)
class SinkToken:
    """A place for attention that holds no text (arXiv 2601.19657, §3).

    Attributes:
        kind: ``token``: learned embeddings, each seeing only itself and seen by all; ``logit``: one score per layer and
            head in the softmax, dropped after it (gpt-oss); ``gate``: no sink at all, but the attention output times
            sigmoid(X W_g) before the output projection (the paper's baseline GA).
        position: of a token: before the text (RoPE positions 0 …, text behind it) or behind it.
        count: of a token: 1, 2 or 4 of them, each seeing only itself.
        zero_value: of a token: its value is zero, so it only takes attention away.
        learned: of a logit: False is softmax-off-by-one, all scores 0.
        folded: of a token: keys and values are stored as constants; see `fold`.
        token_id: of a token: id it has in a tokenizer, which nothing else may have.
        seed: of its initial values.
    """

    kind: Literal["token", "logit", "gate"] = "token"
    position: Literal["front", "end"] = "front"
    count: int = 1
    zero_value: bool = False
    learned: bool = True
    folded: bool = False
    token_id: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (("kind", ("token", "logit", "gate")), ("position", ("front", "end")), ("count", COUNTS)):
            found = getattr(self, name)
            if found not in allowed or isinstance(found, bool):
                raise CallError(f"sink token: {name}: expected one of {', '.join(map(repr, allowed))}, found {found!r}")
        for name in ("zero_value", "learned", "folded"):
            if not isinstance(getattr(self, name), bool):
                raise CallError(f"sink token: {name}: expected true or false, found {getattr(self, name)!r}")
        for name in ("token_id", "seed"):
            found = getattr(self, name)
            if (found is None and name == "token_id") or (isinstance(found, int) and not isinstance(found, bool) and found >= 0):
                continue
            raise CallError(f"sink token: {name}: expected a whole number from 0, found {found!r}")
        plain = SinkToken.__dataclass_fields__
        of_tokens = ("position", "count", "zero_value", "folded", "token_id")
        beside = [name for name in of_tokens if self.kind != "token" and getattr(self, name) != plain[name].default]
        beside += ["learned"] if self.kind != "logit" and not self.learned else []
        if beside:
            owner = "logit" if beside == ["learned"] else "token"
            raise CallError(f"sink token: {', '.join(beside)} belongs to kind {owner!r}, found with kind {self.kind!r}; leave it out")

    @property
    def name(self) -> str:
        """One word for tables and messages, as in `VARIANTS`; with what departs from it in brackets."""
        for name, variant in VARIANTS.items():
            if variant is not None and _plain(variant) == _plain(self):
                return name + (" (folded)" if self.folded else "")
        return ", ".join(f"{key} {value}" for key, value in _plain(self).items() if value != _plain(SinkToken())[key])

    def as_config(self) -> dict[str, Any]:
        """Plain values, for config.json."""
        return asdict(self)


def _plain(variant: SinkToken) -> dict[str, Any]:
    """What decides the mathematics."""
    return {key: value for key, value in asdict(variant).items() if key not in ("folded", "token_id", "seed")}


VARIANTS: dict[str, SinkToken | None] = {
    "none": None,
    "token": SinkToken(),
    "token-end": SinkToken(position="end"),
    "token-2": SinkToken(count=2),
    "token-4": SinkToken(count=4),
    "token-zero-value": SinkToken(zero_value=True),
    "logit": SinkToken(kind="logit"),
    "off-by-one": SinkToken(kind="logit", learned=False),
    "gate": SinkToken(kind="gate"),
}


def variant_of(name: str) -> SinkToken | None:
    """The variant of a name; None for ``"none"``.

    Raises:
        CallError: no such variant.
    """
    if name not in VARIANTS:
        raise CallError(f"sink token: no variant {name!r}; expected one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def read_variant(stored: Any, where: str) -> SinkToken:
    """The variant a config.json names.

    Raises:
        ModelError: one that this version does not know.
    """
    known = [field.name for field in fields(SinkToken)]
    if not isinstance(stored, Mapping):
        raise ModelError(f"{where}: {KEY} in config.json: expected an object with {', '.join(known)}, found {stored!r}")
    unknown = sorted(set(stored) - set(known))
    if unknown:
        raise ModelError(
            f"{where}: {KEY} in config.json: expected only {', '.join(known)}, found {unknown[0]} = {stored[unknown[0]]!r}; "
            "this version of sinkscope does not know that variant"
        )
    try:
        return SinkToken(**stored)
    except CallError as error:
        raise ModelError(f"{where}: {KEY} in config.json names a variant that this version does not know ({error})") from error
