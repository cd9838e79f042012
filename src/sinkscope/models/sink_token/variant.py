"""The kinds of sink that a network can be given, as frozen values; the config.json of a checkpoint names its own."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from sinkscope.errors import CallError, ModelError

KEY = "sink_token"  # in config.json
COUNTS = (1, 2, 4)


@dataclass(frozen=True)
class SinkToken:
    """A place for attention that holds no text (arXiv 2601.19657, §3).

    Attributes:
        kind: ``token``: learned embeddings; each attends only to itself, and all tokens of the text attend to it.
            ``logit``: one score for each layer and head that takes part in the softmax and has no value (gpt-oss).
            ``gate``: no sink; the output of attention is multiplied by sigmoid(X W_g) before the output projection (the
            paper's baseline GA).
        position: of a token: in front of the text (the text's RoPE positions begin behind it) or at its end.
        count: of a token: 1, 2 or 4 of them.
        zero_value: of a token: whether its value is zero, so that it takes attention and gives nothing.
        learned: of a logit: False is softmax-off-by-one, where all scores are 0.
        folded: of a token: whether its keys and values are stored as constants; see `folding`.
        token_id: of a token: its id in a tokenizer, which no other token may have.
        seed: of the initial values.
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
            if (found := getattr(self, name)) not in allowed:
                raise CallError(f"sink token: {name}: expected one of {', '.join(map(repr, allowed))}, found {found!r}")
        plain = SinkToken.__dataclass_fields__
        of_tokens = ("position", "count", "zero_value", "folded", "token_id")
        beside = [name for name in of_tokens if self.kind != "token" and getattr(self, name) != plain[name].default]
        beside += ["learned"] if self.kind != "logit" and not self.learned else []
        if beside:
            owner = "logit" if beside == ["learned"] else "token"
            raise CallError(
                f"sink token: {', '.join(beside)} belongs to kind {owner!r}, found with kind {self.kind!r}; leave "
                "it out"
            )

    @property
    def name(self) -> str:
        """A name for tables and messages: that of `VARIANTS`, or the attributes that differ from the plain token's."""
        for name, variant in VARIANTS.items():
            if variant is not None and _plain(variant) == _plain(self):
                return name + (" (folded)" if self.folded else "")
        return ", ".join(f"{key} {value}" for key, value in _plain(self).items() if value != _plain(SinkToken())[key])

    def as_config(self) -> dict[str, Any]:
        """Return plain values, for config.json."""
        return asdict(self)


def _plain(variant: SinkToken) -> dict[str, Any]:
    """Return the attributes on which the mathematics depend."""
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
    """Return the variant of a name; None for ``"none"``.

    Raises:
        CallError: there is no such variant.
    """
    if name not in VARIANTS:
        raise CallError(f"sink token: no variant {name!r}; expected one of {', '.join(VARIANTS)}")
    return VARIANTS[name]


def read_variant(stored: Any, where: str) -> SinkToken:
    """Return the variant that a config.json describes; ``where`` names its folder in errors.

    Raises:
        ModelError: this version does not know the variant.
    """
    try:
        return SinkToken(**stored)
    except (TypeError, CallError) as error:
        raise ModelError(
            f"{where}: {KEY} in config.json names a variant that this version does not know ({error})"
        ) from error
