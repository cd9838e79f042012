"""What a comparison of caches costs at most, from the config.json of a checkpoint alone. Neither weights nor problems are read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sinkscope.decoding import resolve_settings
from sinkscope.evaluation.cache_arms import Arm
from sinkscope.evaluation.cache_comparison import check_family, check_settings
from sinkscope.evaluation.cost import AT_MOST, CARD, Card, cost_document
from sinkscope.evaluation.dry_run import family_and_shape, parts_of
from sinkscope.evaluation.task_plans import Request


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
