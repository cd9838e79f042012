"""`fold`, `convert`: a sink token becomes constants, paper 2's checkpoints become folders."""

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


def convert(file: Positional[Path], out: Path, tokenizer: Path, heads: int | None = None) -> None:
    """Makes a model folder from one of paper 2's checkpoints; nothing in the file is executed.

    Args:
        file: a .pth that holds tensors only, or safetensors with the same names.
        out: a new or empty folder.
        tokenizer: folder with the tokenizer the model was trained with.
        heads: attention heads, to be told where the width is none of the published ones. (default: the published)
    """
    from sinkscope.models.smdm import convert as run

    print(run(file, out, tokenizer=tokenizer, heads=heads))
