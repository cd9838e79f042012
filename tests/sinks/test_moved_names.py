import pytest

import sinkscope.sinks
import sinkscope.statistics


@pytest.mark.parametrize(("old", "new"), sinkscope.sinks._MOVED.items())
def test_a_name_that_moved_is_found_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=rf"sinkscope.sinks.{old} is sinkscope.statistics.{new} now"):
        assert getattr(sinkscope.sinks, old) is getattr(sinkscope.statistics, new)


def test_a_name_that_never_was_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'profile_of'"):
        sinkscope.sinks.profile_of  # noqa: B018
