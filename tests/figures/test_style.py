"""Labels of models and tokens, and what an import of the package loads."""

import os
import subprocess
import sys

import pytest

from sinkscope.figures import incoming
from sinkscope.figures.style import model_label, model_labels, plain, tick_label, token_label


def test_labels_of_tokens_and_models(wandering, causal):
    assert [token_label(wandering, token) for token in range(5)] == [
        "[M]",
        "↵",
        "<script>alert('x')</script>",
        "␣Tom",
        "$x$",
    ]
    assert [tick_label(wandering, token) for token in (2, 3, 6)] == ["<script>…", "Tom", "a very l…"]
    assert token_label(wandering, -1) == ""
    assert (model_label(wandering.manifest), model_label(causal.manifest)) == ("org/planted", "my-llama")
    assert model_labels([wandering.manifest, causal.manifest, wandering.manifest]) == [
        "org/planted (1)",
        "my-llama",
        "org/planted (2)",
    ]
    hidden = wandering.manifest | {"hidden": [{"rules": ["HideTopSinks(k=1)"]}]}
    assert model_labels([wandering.manifest, hidden]) == ["org/planted", "org/planted, keys hidden"]
    assert plain("$x$ 漢") == r"\$x\$ ▯"


def test_import_stays_light():
    code = "import sinkscope.figures, sys; print([m for m in ('torch', 'transformers', 'matplotlib', 'jinja2', 'scipy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


RC = """text.usetex: True
axes.grid: True
axes.facecolor: red
font.size: 30
image.cmap: hot
image.origin: lower
savefig.bbox: tight
savefig.dpi: 20
lines.linewidth: 9
figure.autolayout: True
"""


@pytest.mark.slow
def test_settings_and_backend_of_the_user_change_no_figure(wandering, tmp_path):
    (tmp_path / "matplotlibrc").write_text(RC)
    command = [sys.executable, "-m", "sinkscope", "figures", str(wandering.folder), "--only", "1,3,7"]
    theirs = {"MPLBACKEND": "TkAgg", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    for name, more in (("plain", {}), ("theirs", theirs)):
        done = subprocess.run(
            [*command, "--out", str(tmp_path / name)], capture_output=True, text=True, env={**os.environ, **more}
        )
        assert done.returncode == 0, done.stderr
    for path in (tmp_path / "plain").iterdir():
        assert path.read_bytes() == (tmp_path / "theirs" / path.name).read_bytes(), path.name


def test_settings_of_the_user_are_his_again_afterwards(wandering):
    import matplotlib

    with matplotlib.rc_context({"font.size": 31, "axes.grid": True}):
        before = dict(matplotlib.rcParams)
        incoming(wandering, 1, 2)
        assert dict(matplotlib.rcParams) == before
