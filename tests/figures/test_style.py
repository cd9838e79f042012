"""Labels of models and tokens."""

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
