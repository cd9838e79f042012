"""Labels of models and tokens, and what an import of the package loads."""

import subprocess
import sys

import pytest

from sinkscope.figures import draw_figures
from sinkscope.figures.style import model_label, model_labels, plain, tick_label, token_label


def test_labels_of_tokens_and_models(wandering, causal):
    assert [token_label(wandering, token) for token in range(5)] == ["[M]", "↵", "<script>alert('x')</script>", "␣Tom", "$x$"]
    assert [tick_label(wandering, token) for token in (2, 3, 6)] == ["<script>…", "Tom", "a very l…"]
    assert token_label(wandering, -1) == ""
    assert (model_label(wandering.manifest), model_label(causal.manifest)) == ("org/planted", "my-llama")
    assert model_labels([wandering.manifest, causal.manifest, wandering.manifest]) == ["org/planted (1)", "my-llama", "org/planted (2)"]
    assert plain("$x$ 漢") == r"\$x\$ ▯"


def test_import_stays_light():
    code = (
        "import sinkscope.figures, sys; print([m for m in ('torch', 'transformers', 'matplotlib', 'jinja2', 'scipy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_old_name_of_the_package_warns_and_works():
    with pytest.warns(DeprecationWarning, match=r"sinkscope\.report is now sinkscope\.figures"):
        from sinkscope.report import draw_figures as old
    assert old is draw_figures
