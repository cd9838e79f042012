"""What an evaluation, or a comparison of caches, would cost, from the config.json of a checkpoint alone."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sinkscope.counts import counted
from sinkscope.decoding import resolve_settings
from sinkscope.errors import CallError
from sinkscope.evaluation.cache_arms import Arm
from sinkscope.evaluation.cache_comparison import check_family, check_settings
from sinkscope.evaluation.cost import AT_MOST, CARD, Card, cost_document, text_tokens
from sinkscope.evaluation.papers.paper import PROBLEMS, Part, Shape
from sinkscope.evaluation.papers.paper1 import CHECKPOINTS
from sinkscope.evaluation.task_plans import Request, check_request, resolve_task
from sinkscope.evaluation.tasks import PUBLISHED, find_task
from sinkscope.interventions.intervention import Composed
from sinkscope.interventions.rules import canonical_rule, parse_rule
from sinkscope.models import FAMILIES, Family, describe

SURELY = 1.25
"""Typical lengths of prompts may be wrong by this factor."""


def parts_of(name: str, request: Request) -> list[Part]:
    """Return a part for each task of an evaluation.

    Args:
        name: of the checkpoint, as for `load`. Those of paper 1 are known; of any other its config.json is read or
            fetched.
        request: as for the evaluation itself.

    Raises:
        CallError: a name, task, rule or setting that does not fit.
        ModelError: a checkpoint that sinkscope does not load.
    """
    check_request(request)
    rules = tuple(dict.fromkeys(map(canonical_rule, request.hide)))
    family, shape = family_and_shape(name)
    for text in rules:
        _check_limits(text, shape)
    parts = []
    for task in (find_task(one, request.files) for one in dict.fromkeys(request.tasks)):
        sampler, shots, _, _ = resolve_task(family, name, task, request)
        local = task.name in request.data or PUBLISHED.get(task.name) in request.data
        problems = len(task.problems()) if local else PROBLEMS[task.name]
        prompts = min(request.limit or problems, problems)
        part = Part("", "evaluate", name, task.name, rules, prompts, shots, asdict(sampler), shape)
        _check_canvas(part)
        parts.append(part)
    return parts


def _check_limits(text: str, shape: Shape) -> None:
    """Raise CallError for a rule that is limited to layers or heads which a network does not have."""
    rule = parse_rule(text)
    for part in rule.parts if isinstance(rule, Composed) else (rule,):
        layers, heads = part.layers or (), part.heads or ()
        if any(layer >= shape.layers for layer in layers) or any(
            layer >= shape.layers or head >= shape.heads for layer, head in heads
        ):
            raise CallError(f"hide: {text}: the model has {shape.layers} layers of {shape.heads} heads, counted from 0")


def _check_canvas(part: Part) -> None:
    """Raise CallError for shots or rules that typical prompts of a task leave no room for."""
    if "length" not in part.settings:  # likelihoods
        return
    length = part.settings["length"]
    canvas = text_tokens(part.task, part.shots) + length
    typical = f"{part.task} with {counted(part.shots, 'shot')} and {length} to write makes about {canvas} tokens"
    if part.shape.positions is not None and canvas > SURELY * part.shape.positions:
        raise CallError(
            f"{typical}, {part.model} was made for {part.shape.positions}: use fewer --shots or a smaller --length"
        )
    for text in part.rules:
        if (needed := parse_rule(text).least_tokens) > SURELY * canvas:
            raise CallError(f"hide: {text} needs a canvas of at least {needed} tokens; {typical}: choose fewer keys")


def family_and_shape(name: str) -> tuple[Family, Shape]:
    """Return the family of a checkpoint and the shape of its network, from its config.json alone.

    Raises:
        CallError, ModelError: a checkpoint that sinkscope does not load.
    """
    if name in CHECKPOINTS:
        return FAMILIES[CHECKPOINTS[name].family], CHECKPOINTS[name].shape
    family, config, parameters = describe(name)
    sizes = (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.hidden_size)
    tied, head_dim = bool(config.tie_word_embeddings), getattr(config, "head_dim", None)
    positions = getattr(config, "max_position_embeddings", None)
    return family, Shape(
        *sizes, config.intermediate_size, config.vocab_size, parameters, family.causal, tied, head_dim, positions
    )


def cost_of_comparison(name: str, request: Request, arms: Sequence[Arm], card: Card = CARD) -> dict[str, Any]:
    """Return the costs of each task under each arm, as `cost_document` has them.

    Raises:
        CallError: a name, task, policy or setting that does not fit.
        ModelError: a checkpoint that sinkscope does not load.
    """
    check_settings(request.settings)
    family, _ = family_and_shape(name)
    check_family(family)
    parts = []
    for part in parts_of(name, request):
        for arm in arms:
            settings = {**part.settings, **arm.settings}
            resolve_settings(family, **settings)  # refuses a policy that the family cannot have
            parts.append(replace(part, name=arm.text, settings=settings))
    costs = cost_document(parts, card)
    return {**costs, "assumptions": list(dict.fromkeys([*costs["assumptions"], AT_MOST]))}
