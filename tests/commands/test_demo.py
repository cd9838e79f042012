"""`sinkscope demo` at its smallest: both bundled models, one problem, a short answer."""

import contextlib

import pytest

import sinkscope
from sinkscope.commands.demo import Demo
from sinkscope.errors import CallError
from sinkscope.sinks import find_sinks, movement_test, track

SMALL = {"problems": 1, "length": 8, "block": 8}


@pytest.mark.slow
def test_the_demo_makes_traces_figures_and_a_page_with_the_same_numbers(tmp_path, capsys):
    Demo(out=tmp_path / "out", problems=1, length=16, block=8).run()
    html, said = (tmp_path / "out" / "report.html").read_text(), capsys.readouterr().err.splitlines()
    for name, steps in (("lab-diffusion", 16), ("lab-autoregressive", None)):
        (trace,) = sinkscope.open_traces(tmp_path / "out" / "traces" / name)
        assert trace.complete
        assert steps is None or trace.steps == steps
        sinks = find_sinks(trace)
        tracks = track(sinks)
        test = movement_test(tracks.main, tracks.is_sink, uncounted=tracks.uncounted)
        line = next(one for one in said if one.startswith(name))
        assert f"{len(sinks)} sinks; {test.moves_per_head:.2f} moves a head, {test.null_moves[0]:.2f}" in line
        assert f"{test.drift_per_step:+.3f}" in html
        assert trace.manifest["text"].splitlines()[0] in html
    figures = tmp_path / "out" / "figures"
    for number in (1, 2, 3, 5, 7, 9, 10):
        (drawn,) = figures.glob(f"figure{number}-*.png")
        assert len(drawn.with_suffix(".csv").read_text().splitlines()) > 10
    assert html.count("data:image/png;base64,") == len(list(figures.glob("*.png")))
    assert "http://" not in html.replace("http://www.w3.org", "")


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
