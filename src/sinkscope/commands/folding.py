"""`fold`: a sink token becomes constants."""

from pathlib import Path

from tyro.conf import Positional


def fold(model: Positional[str], out: Path) -> None:
    """Folds the sink token of a trained model into constants, which cost no row.

    Args:
        model: a bundled name, a folder, or a hub id.
        out: a new or empty folder.
    """
    from sinkscope.models.sink_token.folding import fold as run

    print(run(model, out))
