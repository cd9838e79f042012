"""Results that hold arrays are equal to themselves only, as arrays are compared number by number."""

import ast
import re

import pytest
from planted import make_trace, sink_at
from test_architecture import FILES, SOURCE

import sinkscope
from sinkscope.sinks import find_sinks, track

ARRAYS = re.compile(r"\b(ndarray|Tensor|Arrays)\b")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_holds_arrays_is_not_compared_by_value(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            ways = [ast.unparse(one) for one in node.decorator_list]
            kinds = [ast.unparse(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)]
            if any(ARRAYS.search(kind) and not kind.startswith("Callable") for kind in kinds):
                compared = any(way.startswith("dataclass") and "eq=False" not in way for way in ways)
                assert not compared, f"{node.name}: write @dataclass(…, eq=False)"


def test_results_are_compared_and_hashed(diffusion):
    trace = make_trace(sink_at([4, 4, 7, 7]))
    made = (
        lambda: find_sinks(trace),
        lambda: track(find_sinks(trace)),
        lambda: sinkscope.generate(diffusion, "1+1=", length=2, block=2),
    )
    for make in made:
        one, other = make(), make()
        assert one == one and one != other and len({one, other, one}) == 2
    assert hash(diffusion) == hash(sinkscope.Model(**vars(diffusion)))
