"""What holds arrays is equal to itself only: whether two arrays are equal is one answer for each number, not one answer."""

import ast
import re

import pytest
from planted import make_trace, sink_at
from test_architecture import FILES, SOURCE

import sinkscope
from sinkscope.sinks import find_sinks, track

ARRAYS = re.compile(r"\b(ndarray|Tensor|Arrays)\b")
COMPARED = """
@dataclass(frozen=True)
class Compared:
    name: str
    places: Int[np.ndarray, " sink"] | None = None
"""


def compared_by_value(source: str) -> list[str]:
    """Dataclasses with a field that is an array, whose ``==`` would compare it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            ways = [ast.unparse(one) for one in node.decorator_list]
            kinds = [ast.unparse(one.annotation) for one in node.body if isinstance(one, ast.AnnAssign)]
            arrays = any(ARRAYS.search(kind) and not kind.startswith("Callable") for kind in kinds)
            if arrays and any(way.startswith("dataclass") and "eq=False" not in way for way in ways):
                found.append(node.name)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_what_holds_arrays_is_not_compared_by_value(path):
    assert not compared_by_value(path.read_text()), "write @dataclass(…, eq=False)"


def test_a_dataclass_that_compares_arrays_is_found():
    assert compared_by_value(COMPARED) == ["Compared"]
    assert not compared_by_value(COMPARED.replace("True", "True, eq=False"))
    assert not compared_by_value(COMPARED.replace("Int[np.ndarray", "Callable[[np.ndarray]"))


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


def test_models_are_hashed(diffusion):
    assert hash(diffusion) == hash(sinkscope.Model(**vars(diffusion))) and diffusion == sinkscope.Model(
        **vars(diffusion)
    )
