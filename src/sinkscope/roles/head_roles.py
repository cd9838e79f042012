"""`Roles`: the roles of a model's heads, as `find_roles` returns them and ``roles.json`` keeps them.

A verdict goes by rules fixed before a trained model was measured, but for two: the comparison with the
control prompt by prompt, and the share of the attention of the queries that predict.

The first word says whether the sink can go: **dispensable**, **needed** or **open**. The second says what it adds:

idle        Without its contribution (0 behind the softmax) the predictions stay as they are: attention is parked on it.
broadcast   Its contribution matters, and all queries that predict get the same amount of it.
carrier     Its contribution matters, and some queries that predict get it more than others.
undecided   Anything else, such as too little difference, or a sink at which queries that predict hardly look.

An idle sink may be needed: its attention has to go somewhere, to a substitute or to the text.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from sinkscope.counts import counted
from sinkscope.errors import CallError, EvaluationError
from sinkscope.notebook_card import MOST_ROWS, card
from sinkscope.runs.files import compare_checksum, read_json_object, validated, with_checksum, write_whole
from sinkscope.runs.folder import made_folder
from sinkscope.sinks.definition import Rule, check_excess
from sinkscope.sinks.finding import EXCESS

Need = Literal["dispensable", "needed", "open"]
"""Whether predictions stay as they are when a sink is hidden in its head alone, change, or the interval holds both."""
Role = Literal["idle", "broadcast", "carrier", "undecided"]
NEEDS: tuple[Need, ...] = ("dispensable", "needed", "open")
ROLES: tuple[Role, ...] = ("idle", "broadcast", "carrier", "undecided")


@dataclass(frozen=True)
class Rules:
    """The numbers in the rules.

    Attributes:
        changed: mean KL divergence from which predictions count as changed, in nats a prediction.
        small: output norm of an idle key, over the median of its canvas, where nothing else tells it from others.
        even: evenness from which all queries that predict get the same.
        lasting: share of canvases in which a head has a sink, of ``excess`` ε in queries' worth.
        faint: share of the attention of the queries that predict below which evenness and control do not decide.
    """

    changed: float = 0.005
    small: float = 0.5
    even: float = 0.8
    lasting: float = 0.9
    excess: float = EXCESS
    faint: float = 0.01

    def __post_init__(self) -> None:
        check_excess(float(self.excess), "queries")


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts with its 95 % interval; None where there is none."""

    mean: float | None
    low: float | None
    high: float | None


def decide(
    lasting: float,
    zeroed: Estimate,
    matched: Estimate,
    matched_over: Estimate,
    norm_ratio: Estimate,
    evenness: Estimate,
    taken: Estimate,
    rules: Rules,
) -> tuple[Role, str]:
    """Return the role of a head's sink, and the reason, by KL divergences: ``zeroed`` without what the sink adds,
    ``matched`` without what other keys of as much attention do, ``matched_over`` the difference prompt by prompt;
    ``norm_ratio``: its output norm over the median; ``taken``: its share of the attention of queries that predict.
    """
    faint = taken.high is not None and taken.high < rules.faint
    under = f"give it under {100 * rules.faint:.3g} % of their attention"
    if lasting < rules.lasting:
        return "undecided", "no lasting sink on the prompts that judge"
    if zeroed.low is None or zeroed.high is None:
        return "undecided", "too few prompts with a sink for an interval"
    if zeroed.high < rules.changed:
        if norm_ratio.high is not None and norm_ratio.high < rules.small:
            return "idle", "adds little: a small output norm"
        if (matched.mean or 0.0) > rules.changed and (matched_over.low or 0.0) > 0:
            return "idle", "adds nothing that matters; other keys with as much attention do"
        if faint:
            return "undecided", f"what it adds changes nothing, but the queries that predict {under}"
        return "undecided", "what it adds changes nothing; that other keys with as much attention matter is not shown"
    if zeroed.low <= rules.changed:
        return "undecided", "the interval of what it adds holds both"
    if faint:
        through = f"what it adds matters through other queries: those that predict {under}"
        return "undecided", f"{through}, so that evenness and control say nothing"
    if evenness.low is not None and evenness.low > rules.even:
        return "broadcast", "what it adds matters, to all queries that predict alike"
    if evenness.high is not None and evenness.high < rules.even:
        return "carrier", "what it adds matters, to some queries that predict more than to others"
    return "undecided", "what it adds matters, but the interval of its evenness holds both"


FILE = "roles.json"
MOST_TRIED = 8


@dataclass(frozen=True)
class HeadRole:
    """The role of one head's sink: ``need``, whether it can go; ``role``, what it adds, by which ``reason``.

    Attributes:
        lasting: share of the judged canvases in which the head has a sink.
        place: mean position over the length of the canvas; position, token: most frequent, None where two are.
        measured: {name: estimate over the judged prompts}: ``share`` of all attention; ``committed_share`` of that of
            the queries committed; ``norm_ratio``: output norm over the median; ``evenness``: see `Sight`; ``kl.RULE``,
            ``kept.RULE``: see `removals_of`; ``to_…``: where the head's attention goes without the sink.
        substitutes: the least number of largest columns, of 1, 2, 3, 4, 6 and 8, that are shown to change the
            predictions when hidden; None where none are.
        substitutes_at_least: the least number that may change them, one more than are shown to change nothing.
    """

    layer: int
    head: int
    need: Need
    role: Role
    reason: str
    lasting: float
    place: float | None
    position: int | None
    token: str | None
    measured: Mapping[str, Estimate]
    substitutes: int | None
    substitutes_at_least: int

    @property
    def verdict(self) -> str:
        """Both words, such as ``needed, idle``."""
        return f"{self.need}, {self.role}"

    @property
    def sink(self) -> str:
        """The token of the sink, for tables; its position where the token differs."""
        return f"at {self.position}" if self.token is None else repr(self.token)

    @property
    def to_hide(self) -> str:
        """How many keys must be hidden, for tables: ``2``, ``2–3``, ``> 8``; ``≥ 3`` and ``?`` where it is open."""
        least, most = self.substitutes_at_least, self.substitutes
        if most is None:
            return "?" if least == 1 else f"> {least - 1}" if least > MOST_TRIED else f"≥ {least}"
        return str(most) if least >= most else f"{least}–{most}"


@dataclass(frozen=True)
class Roles:
    """The roles of a model's ``heads``, all that have a lasting sink on the prompts that choose.

    Attributes:
        prompts, judged: how many prompts there were, and how many of them judged; failed: {prompt: why}.
        settings: of the sampler, and ``canvases`` of each prompt; empty where they are not known, as source may be.
        together: {``dispensable`` or a role: {``kl.RULE``, ``kept.RULE``: estimate}} of hiding the sinks of all such
            heads at once; RULE: ``sink``, ``sink.zero``, ``rowmass`` or ``rowmass.zero``.
        source: where the prompts came from, ``task`` with ``shots`` or ``file``.
        canvas_tokens: tokens of the shortest and the longest canvas with the whole answer; None where not known.
        rule: by which sinks are found, see `sinks.rule_of`.
        dtype, config_hash: of weights and measurement, see `models.ModelCard`; empty where not known.
    """

    model: str
    weight_hash: str
    layers: int
    heads_in_layer: int
    rules: Rules
    heads: tuple[HeadRole, ...]
    prompts: int
    judged: int
    failed: Mapping[int, str]
    settings: Mapping[str, Any] = field(default_factory=dict)
    together: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    source: Mapping[str, str | int] = field(default_factory=dict)
    canvas_tokens: tuple[int, int] | None = None
    config_hash: str = ""
    dtype: str = ""
    rule: Rule = "eq3"

    def of_head(self, layer: int, head: int) -> HeadRole | None:
        """Return the role of a head; None where it has no lasting sink."""
        return next((one for one in self.heads if (one.layer, one.head) == (layer, head)), None)

    def doubt(self, manifests: Sequence[Mapping[str, Any]]) -> str | None:
        """Return a sentence if traces of this model have shorter or longer canvases than the roles; else None."""
        if self.canvas_tokens is None:
            return None
        least, most = self.canvas_tokens
        mine = [one for one in manifests if self.are_of(one.get("model", {}))]
        lengths = [(one.get("prompt_length"), one.get("sampler", {}).get("length")) for one in mine]
        found = [prompt + answer for prompt, answer in lengths if isinstance(prompt, int) and isinstance(answer, int)]
        if not (others := [length for length in found if not least <= length <= most]):
            return None
        theirs, ours = (" to ".join(map(str, sorted({*ends}))) for ends in ((least, most), (min(others), max(others))))
        return (
            f"the roles were found on canvases of {theirs} tokens{self.from_where}; {len(others)} of "
            f"{len(mine)} traces have {ours}, where a sink may do something else"
        )

    def are_of(self, model: Mapping[str, Any]) -> bool:
        known = {self.config_hash, model.get("config_hash") or ""} - {""}
        return model.get("weight_hash") == self.weight_hash and len(known) < 2

    @property
    def from_where(self) -> str:
        """The source of the prompts in brackets behind a space; nothing where it is not known."""
        if "file" in self.source:
            return f" ({self.source['file']})"
        return f" ({self.source['task']}, {self.source.get('shots', 0)} shots)" if "task" in self.source else ""

    def by_head(self) -> list[dict[str, Any]]:
        names = ("layer", "head", "need", "role", "substitutes", "substitutes_at_least")
        return [{name: getattr(one, name) for name in names} for one in self.heads]

    def _repr_html_(self) -> str:
        rows, ordered = [], self.ordered
        for one in ordered[:MOST_ROWS]:
            known = {name: found.mean for name, found in one.measured.items() if found.mean is not None}
            share = f"{known['share']:.1%}" if "share" in known else None
            adds = f"{known['kl.sink.zero']:.4f}" if "kl.sink.zero" in known else None
            rows.append((one.layer, one.head, one.verdict, one.sink, share, adds))
        facts = {
            "heads with a lasting sink": f"{len(self.heads)} of {self.layers * self.heads_in_layer}",
            "can they go": self.counts(NEEDS),
            "roles": self.counts(ROLES),
            "judged on": counted(self.judged, "prompt"),
        }
        columns = ("layer", "head", "verdict", "token", "share", "adds, nats")
        return card(f"Roles of the sinks of {self.model}", facts, columns, rows, len(ordered) - len(rows))

    @property
    def ordered(self) -> list[HeadRole]:
        """The heads by verdict, then by place."""
        return sorted(self.heads, key=lambda one: (NEEDS.index(one.need), ROLES.index(one.role), one.layer, one.head))

    def in_lines(self) -> str:
        groups = groupby(self.ordered, key=lambda one: one.verdict)
        return "\n".join(f"  {name}: {', '.join(f'{one.layer}.{one.head}' for one in mine)}" for name, mine in groups)

    def count(self, word: Need | Role) -> int:
        return sum(word in (one.need, one.role) for one in self.heads)

    def counts(self, words: Sequence[Need | Role]) -> str:
        return ", ".join(f"{self.count(word)} {word}" for word in words)

    def as_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))

    def save(self, folder: str | Path) -> Path:
        """Write ``roles.json`` into a folder, new or not, for `read_roles`, and return its path."""
        path = Path(folder) / FILE
        content = json.dumps(with_checksum(self.as_dict()), ensure_ascii=False, indent=1) + "\n"
        with made_folder(path.parent):
            write_whole(path, content.encode(), EvaluationError, "choose another folder")
        return path

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Roles":
        """Return the roles that `as_dict` made these values of; raise CallError for others."""
        given = {**values, "rules": {"faint": 0.0, **values.get("rules", {})}}  # older files lack that rule
        return validated(cls, given, FILE, CallError)


def read_roles(path: str | Path) -> Roles:
    """Read the roles that ``sinkscope roles`` wrote, from its folder or ``roles.json`` in it; CallError without any."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    values = read_json_object(file, CallError, "`sinkscope roles MODEL --out FOLDER` writes roles")
    compare_checksum(values, file, CallError)
    return Roles.from_dict(values)


def roles_for(weight_hash: str | None, given: Roles | None, config_hash: str | None = None) -> Roles | None:
    """Return the roles given, or None; CallError where they are of another model."""
    if given is not None and not given.are_of({"weight_hash": weight_hash, "config_hash": config_hash}):
        raise CallError(
            f"the roles are of {given.model} with weights {given.weight_hash[:12]}… and the config.json "
            f"{given.config_hash[:12]}…, the trace is of weights {str(weight_hash)[:12]}… and the config.json "
            f"{str(config_hash)[:12]}…; find the roles of this model with `sinkscope roles`"
        )
    return given
