"""What the tests of figures share: traces with planted sinks, and the rows of a drawn figure."""

import numpy as np
import pytest
from sudden import map_of, sudden_columns, write_sudden
from wandering import wandering_columns, write_causal, write_wandering

from sinkscope.figures import find_figures
from sinkscope.figures.subject import subject_of


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are laid out and their files named, but not painted: most of the time goes there."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **_: file.write(b"a picture"))


@pytest.fixture(scope="session")
def wandering(tmp_path_factory):
    return write_wandering(tmp_path_factory.mktemp("traces") / "wandering", wandering_columns())


@pytest.fixture(scope="session")
def causal(tmp_path_factory):
    return write_causal(tmp_path_factory.mktemp("traces") / "causal")


@pytest.fixture(scope="session")
def sudden(tmp_path_factory):
    return write_sudden(tmp_path_factory.mktemp("traces") / "sudden", *sudden_columns())


@pytest.fixture(scope="session")
def blocks(tmp_path_factory):
    """A trace of block diffusion: sinks of all queries stand, those of the newest ones move."""
    newest, masked = sudden_columns()
    columns = np.random.default_rng(7).random(newest.shape).astype(np.float32) * 0.4
    columns[:, :, 0, 1] = columns[:, :, 1, 4] = columns[:, :, 2:, 6] = 15
    return write_sudden(
        tmp_path_factory.mktemp("traces") / "blocks", columns, np.minimum(masked, columns), newest=newest
    )


@pytest.fixture(scope="session")
def draw():
    """Draws one figure of traces side by side: ``draw("3", trace)``."""

    def drawn(name, *traces, excess=3.0, maps=map_of):
        return find_figures()[name].draw([subject_of(trace, excess, maps=maps) for trace in traces])

    return drawn


@pytest.fixture(scope="session")
def draw_head():
    """Draws one figure of the head that is asked for: ``draw_head("1", trace, (layer, head))``."""

    def drawn(name, trace, place):
        return find_figures()[name].draw([subject_of(trace, maps=map_of, place=place)])

    return drawn


@pytest.fixture(scope="session")
def rows_of():
    """Gives the rows of a drawn figure as its CSV file has them, those that match: ``rows_of(drawn, layer=1)``."""

    def rows(drawn, **where):
        found = [dict(zip(drawn.header, map(str, row), strict=True)) for row in drawn.rows]
        return [row for row in found if all(row[key] == str(value) for key, value in where.items())]

    return rows
