"""The cost of an evaluation, or a comparison of caches, from the config.json of a checkpoint alone."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sinkscope.decoding import resolve_settings
from sinkscope.evaluation.cache_arms import Arm
from sinkscope.evaluation.cache_comparison import check_family, check_settings
from sinkscope.evaluation.cost import AT_MOST, CARD, PROBLEMS, Card, Part, Shape, cost_document
from sinkscope.evaluation.papers import CHECKPOINTS
from sinkscope.evaluation.task_plans import Request, check_request, data_of, resolve_task
from sinkscope.evaluation.tasks import find_task
from sinkscope.interventions.rules import canonical_rule
from sinkscope.models import FAMILIES, Family, describe

INNER = ("intermediate_size", "n_inner", "ffn_dim")
"""Names of a network's inner width; of one that has none, such as GPT-2, it is four times the outer width."""


def parts_of(name: str, request: Request) -> list[Part]:
    """Return a part for each task of an evaluation of a checkpoint."""
    check_request(request)
    rules = tuple(dict.fromkeys(map(canonical_rule, request.hide)))
    family, shape = family_and_shape(name)
    parts = []
    for task in (find_task(one, request.files) for one in dict.fromkeys(request.tasks)):
        sampler, shots, _, _ = resolve_task(family, name, task, request)
        problems = len(task.problems()) if data_of(task.name, request.data) else PROBLEMS[task.name]
        prompts = min(request.limit or problems, problems)
        parts.append(Part("evaluate", name, task.name, rules, prompts, shots, asdict(sampler), shape))
    return parts


def family_and_shape(name: str) -> tuple[Family, Shape]:
    """Return the family of a checkpoint and the shape of its network; paper 1's are known without a config.json."""
    if name in CHECKPOINTS:
        return FAMILIES[CHECKPOINTS[name].family], CHECKPOINTS[name].shape
    family, config, parameters = describe(name)
    config, heads = config.get_text_config(), config.get_text_config().num_attention_heads
    kv_heads, width = getattr(config, "num_key_value_heads", None) or heads, config.hidden_size
    sizes = (config.num_hidden_layers, heads, kv_heads, width)
    tied, head_dim = bool(config.tie_word_embeddings), getattr(config, "head_dim", None)
    inner = next((one for name in INNER if (one := getattr(config, name, None))), 4 * width)
    wide = (inner, config.vocab_size, parameters)
    return family, Shape(*sizes, *wide, family.causal, tied, head_dim)


def cost_of_comparison(name: str, request: Request, arms: Sequence[Arm], card: Card = CARD) -> dict[str, Any]:
    """Return the costs of each task under each arm, as `cost_document` has them."""
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
