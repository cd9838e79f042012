"""What is found once and kept: nobody who was handed it can change it for the others."""

import pytest

from sinkscope.decoding import known_caches, parse_cache
from sinkscope.interventions import known_controls, known_rules, parse_rule
from sinkscope.statistics import EPSILONS, all_definitions, definition_of


@pytest.mark.parametrize("known", [known_rules, known_controls, known_caches, all_definitions])
def test_a_registry_cannot_be_emptied(known):
    before = dict(known())
    for change in (lambda found: found.clear(), lambda found: found.update(mine=1), lambda found: found.popitem()):
        try:
            change(known())
        except AttributeError:
            continue
    assert dict(known()) == before
    assert parse_rule("top:1") and parse_cache("block") and definition_of("movement.drift")


def test_the_grid_of_the_curve_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        EPSILONS[0] = 1
