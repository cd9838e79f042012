"""What the tests of figures share."""

import pytest


@pytest.fixture
def unpainted(monkeypatch):
    """Figures are laid out and their files named, but not painted: most of the time goes there."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, file, **_: file.write(b"a picture"))
