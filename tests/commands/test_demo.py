"""`sinkscope demo` on the lab's models; its default models are the same commands on larger weights."""

import contextlib

import pytest

import sinkscope
from sinkscope.commands.demo import Demo
from sinkscope.errors import CallError
from sinkscope.evaluation.text_likelihood import text_likelihood
from sinkscope.sinks import find_sinks
from sinkscope.sinks.tracking import place_of

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"
SMALL = {"models": "lab-autoregressive,lab-diffusion", "prompt": PROMPT, "length": 16}


@pytest.mark.slow
def test_the_demo_tells_the_main_sink_and_its_cost_and_makes_both_pages(tmp_path, capsys):
    Demo(out=tmp_path / "out", **SMALL).run()
    html, said = (tmp_path / "out" / "report.html").read_text(), capsys.readouterr().out.splitlines()
    for name, rule in (("lab-autoregressive", "top:1@last_row"), ("lab-diffusion", "top:1")):
        trace = sinkscope.open_trace(tmp_path / "out" / "traces" / name)
        assert trace.complete
        sentence = next(one for one in said if one.startswith(name))
        place = place_of(find_sinks(trace), trace.tokens[:])
        assert f"position {place.position}, " in sentence and f"main sink of {place.heads} of 36 heads" in sentence
        assert f"{rule} +" in sentence or f"{rule} -" in sentence
        assert trace.manifest["text"].split("\n")[0] in html
    model = sinkscope.load("lab-autoregressive")
    text = PROMPT + sinkscope.open_trace(tmp_path / "out" / "traces" / "lab-autoregressive").manifest["text"]
    cut = {"context": len(model.tokenize(PROMPT)), "answer": 16}
    cost = text_likelihood(model, [text], ["top:1@last_row"], **cut)["rows"][1]["difference"]
    assert f"top:1@last_row {cost:+.2f} nats a token" in said[0]
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) >= 6


@pytest.mark.slow
def test_a_demo_that_was_ended_early_is_made_anew_and_a_whole_one_where_that_is_said(tmp_path, monkeypatch):
    def ends(*_, **__):
        raise KeyboardInterrupt

    for draws, overwrite in ((ends, False), (lambda *_, **__: [], True)):
        monkeypatch.setattr("sinkscope.figures.draw_figures", draws)
        with contextlib.suppress(KeyboardInterrupt):
            Demo(out=tmp_path, overwrite=overwrite, **SMALL).run()
    assert (tmp_path / "explorer.html").exists()
    with pytest.raises(CallError, match="already holds a demo; choose another folder, or replace it: --overwrite"):
        Demo(out=tmp_path, **SMALL).run()
