"""Labels of models and tokens, and what an import of the package loads."""

import pytest

from sinkscope.figures import draw_figures
from sinkscope.figures.style import model_label, model_labels, plain, tick_label, token_label


def test_labels_of_tokens_and_models(wandering, causal):
    assert [token_label(wandering, token) for token in (-1, 0, 1, 3)] == ["", "[M]", "↵", "␣Tom"]
    assert [tick_label(wandering, token) for token in (2, 3, 6)] == ["<script>…", "Tom", "a very l…"]
    assert (model_label(wandering.manifest), model_label(causal.manifest)) == ("org/planted", "my-llama")
    assert model_labels([wandering.manifest, causal.manifest, wandering.manifest]) == [
        "org/planted (1)",
        "my-llama",
        "org/planted (2)",
    ]
    hidden = wandering.manifest | {"hidden": [{"rules": ["HideTopSinks(k=1)"]}]}
    assert model_labels([wandering.manifest, hidden]) == ["org/planted", "org/planted, keys hidden"]
    assert plain("$x$ 漢") == r"\$x\$ ▯"


@pytest.mark.slow
def test_settings_of_the_user_change_no_figure_and_are_his_again_afterwards(wandering, tmp_path):
    import matplotlib

    theirs = {"font.size": 31, "axes.grid": True, "axes.facecolor": "red", "image.cmap": "hot", "savefig.dpi": 20}
    plain = draw_figures([wandering], tmp_path / "plain", only=["3"])
    with matplotlib.rc_context(theirs):
        before = dict(matplotlib.rcParams)
        drawn = draw_figures([wandering], tmp_path / "theirs", only=["3"])
        assert dict(matplotlib.rcParams) == before
    assert [path.read_bytes() for path in drawn] == [path.read_bytes() for path in plain]
