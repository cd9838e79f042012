"""The plan of an evaluation: tasks, rules, settings and prompts, checked before the model writes; or its cost alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sinkscope.decoding import Settings, described, make_batch, resolve_settings, settings_of
from sinkscope.decoding.likelihood import encode_pair, refuse_block_diffusion
from sinkscope.errors import CallError
from sinkscope.evaluation.choices import LikelihoodSettings, Task, settings_for
from sinkscope.evaluation.cost import PROBLEMS, Part, Shape
from sinkscope.evaluation.protocols import AUTO, CHECKPOINTS, find_protocol
from sinkscope.evaluation.tasks import PUBLISHED, find_task
from sinkscope.interventions import Composed, Intervention, parse_rule
from sinkscope.interventions.intervention import canonical_rule
from sinkscope.models import FAMILIES, Family, Model, describe

Rule = Intervention | Composed
LENGTH, BLOCK = 64, 16
PUBLISHED_LENGTHS = {"gsm8k": 256, "gsm8k_cot": 256, "gsm8k_two_pass": 256, "humaneval": 512, "humaneval_instruct": 512}
INNER = ("intermediate_size", "n_inner", "ffn_dim")
"""Names of a network's inner width; of one that has none, such as GPT-2, it is four times the outer width."""


def data_of(task: str, data: Mapping[str, str | Path]) -> dict[str, str | Path]:
    """Return the part of given local files that is a task's."""
    return {name: path for name, path in data.items() if name in {task, PUBLISHED.get(task)}}


@dataclass(frozen=True)
class Request:
    """The arguments of `evaluate` that select the work; they are documented there."""

    tasks: Sequence[str]
    hide: Sequence[str | Rule] = ("none",)
    limit: int | None = None
    shots: int | None = None
    chat: bool = False
    protocol: str = AUTO
    data: Mapping[str, str | Path] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    allow_code_execution: bool = False

    def find_tasks(self) -> list[Task]:
        files = {name: Path(path) for name, path in self.data.items()}
        return [find_task(name, files) for name in dict.fromkeys(self.tasks)]


@dataclass(frozen=True)
class TaskPlan:
    """One task with its settings, its problems, their prompts as text and token ids; the protocol in words, or None."""

    task: Task
    sampler: Settings | LikelihoodSettings
    shots: int
    chat: bool
    protocol: str | None
    problems: Sequence[Any]
    prompts: Sequence[str]
    encoded: Sequence[list[int]]

    def describe(self) -> dict[str, Any]:
        """Return all values that affect the answers; a resumed run must have the same ones."""
        found = {name: getattr(self, name) for name in ("shots", "chat", "protocol")}
        found |= {"task": self.task.name, "problems": len(self.problems), "sampler": described(self.sampler)}
        found["data"] = self.task.fingerprint(self.shots)
        return found | ({"passes": self.task.passes} if self.task.passes > 1 else {})


def make_plans(model: Model, request: Request) -> tuple[list[TaskPlan], dict[str, Rule]]:
    """Return a plan for each task, and the rules by their one text, see `canonical_rule`; refuse what does not fit."""
    tasks = request.find_tasks()
    rules = {str(rule): rule for rule in map(parse_rule, request.hide)}
    for task in tasks:
        if task.runs_programs and not request.allow_code_execution:
            what = (
                "runs programs that the model wrote, in a sandbox without network or your files, as far as the system"
            )
            how = "Pass allow_code_execution=True (--allow-code-execution) to do so"
            raise CallError(f"{task.name} {what} allows. {how}")
    plans = [_plan(model, task, request) for task in tasks]
    for plan in plans:
        canvases = _canvases(model, plan, rules)
        for text, rule in rules.items():
            if min(canvases) < rule.least_tokens:
                found = f"that of problem {canvases.index(min(canvases))} has {min(canvases)}: choose fewer keys"
                raise CallError(f"hide: {text} needs a canvas of at least {rule.least_tokens} tokens; {found}")
    return plans, rules


def _plan(model: Model, task: Task, request: Request) -> TaskPlan:
    sampler, shots, chat, used = resolve_task(model.family, model.card.name, task, request)
    problems = task.problems()[: request.limit]
    if not chat:
        texts = [task.prompt(problem, index, shots) for index, problem in enumerate(problems)]
        encoded = [model.encode(text) for text in texts]
    elif task.messages is None:
        raise CallError(f"chat: {task.name} has raw text only; leave chat out")
    else:
        talks = [task.messages(problem, index, shots) for index, problem in enumerate(problems)]
        instead = "evaluate it on raw text, with --protocol none and without --chat"
        texts = [model.chat_text(talk, begun=talk[-1]["role"] == "assistant", instead=instead) for talk in talks]
        encoded = [model.encode(model.tokenize(text, special=False)) for text in texts]
    return TaskPlan(task, sampler, shots, chat, used, problems, texts, encoded)


def resolve_task(family: Family, name: str, task: Task, request: Request) -> tuple[Any, int, bool, str | None]:
    """Return settings, shots, whether it is a chat, and the protocol's line, for a model of this family and name."""
    protocol = find_protocol(family.name, name, task.name, request.protocol)
    settings, published = dict(request.settings), protocol.settings if protocol else {}
    if task.asks_likelihoods:
        sampler: Any = settings_for(settings, published, family, name)
    else:
        names = settings_of(family.sampler).__dataclass_fields__
        length = settings.get("length", PUBLISHED_LENGTHS.get(task.name, LENGTH))
        defaults = {"length": length} | ({"steps": length} if "steps" in names else {})
        if {"steps", "block"} <= names.keys():
            defaults["block"] = min(2 * BLOCK if task.name in PUBLISHED_LENGTHS else BLOCK, length)
        sampler = resolve_settings(family, **dict(published or defaults) | settings)
    shots, chat, used = task.shots, request.chat, None
    if protocol is not None:
        shots, chat = protocol.shots, protocol.chat or request.chat
        changed = [f"{name} {value}" for name, value in settings.items() if published.get(name) != value]
        changed += [f"shots {request.shots}"] if request.shots not in (None, shots) else []
        changed += ["chat"] if chat != protocol.chat else []
        used = protocol.line() + (f"; changed: {', '.join(changed)}" if changed else "")
    if request.shots and not task.takes_shots:
        raise CallError(f"shots: {task.name} is asked without any, found {request.shots}")
    return sampler, shots if request.shots is None else request.shots, chat, used


def _canvases(model: Model, plan: TaskPlan, rules: Mapping[str, Rule]) -> list[int]:
    """Return the tokens of each problem's canvas; CallError where one is too long, or a rule would hide nothing."""
    if not isinstance(plan.sampler, LikelihoodSettings):
        make_batch(model, [max(plan.encoded, key=len)], [None], plan.sampler.length)
        for text, rule in rules.items():
            count, parts = plan.sampler.most_calls, rule.parts if isinstance(rule, Composed) else (rule,)
            parts = [part for part in parts if not part.idle]
            in_force = [part.steps is None or any(part.waits <= at < count for at in part.steps) for part in parts]
            if parts and not any(in_force):
                waits = "; it needs the step before each" if all(part.waits for part in parts) else ""
                where = f"in none of the steps 0 to {count - 1} of an answer to {plan.task.name}{waits}"
                raise CallError(f"hide: {text} is in force {where}; choose other steps")
        written = 1 if model.family.causal else plan.sampler.length
        return [len(ids) + written for ids in plan.encoded]
    refuse_block_diffusion(model)
    lengths = [
        max(sum(map(len, encode_pair(model, question.context, f" {choice}"))) for choice in question.choices)
        for question in plan.problems
    ]
    if max(lengths) > model.card.max_positions:
        longest = f"problem {lengths.index(max(lengths))} with its longest choice has {max(lengths)} tokens"
        raise CallError(f"{plan.task.name}: {longest}, {model.limit}")
    if waiting := [text for text, rule in rules.items() if rule.waits]:
        expected = f"expected observe=current, as in {waiting[0].partition('@')[0]}@current"
        raise CallError(f"hide: {waiting[0]} decides by the step before, and a likelihood has one step; {expected}")
    return lengths


# The cost, from the config.json of a checkpoint alone


def parts_of(name: str, request: Request) -> list[Part]:
    """Return a part for each task of an evaluation of a checkpoint."""
    family, shape = family_and_shape(name)
    rules, parts = tuple(dict.fromkeys(map(canonical_rule, request.hide))), []
    for task in request.find_tasks():
        sampler, shots, _, _ = resolve_task(family, name, task, request)
        problems = len(task.problems()) if data_of(task.name, request.data) else PROBLEMS[task.name]
        prompts = min(request.limit or problems, problems)
        parts.append(Part("evaluate", name, task.name, rules, prompts, shots, asdict(sampler), shape))
    return parts


def family_and_shape(name: str) -> tuple[Family, Shape]:
    """Return the family of a checkpoint and the shape of its network; paper 1's are known without a config.json."""
    if name in CHECKPOINTS:
        return FAMILIES[CHECKPOINTS[name].family], CHECKPOINTS[name].shape
    family, _, network = describe(name)
    config, parameters = network.config.get_text_config(), sum(one.numel() for one in network.parameters())
    heads, width = config.num_attention_heads, config.hidden_size
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    inner = next((one for name in INNER if (one := getattr(config, name, None))), 4 * width)
    sizes = (config.num_hidden_layers, heads, kv_heads, width, inner, config.vocab_size, parameters)
    return family, Shape(*sizes, family.causal, bool(config.tie_word_embeddings), getattr(config, "head_dim", None))
