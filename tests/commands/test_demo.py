"""`sinkscope demo` at its smallest: both bundled models, one problem, a short answer."""

import contextlib

import pytest

import sinkscope
from sinkscope.commands.demo import run_demo
from sinkscope.errors import CallError
from sinkscope.sinks import find_sinks, movement_test, track


@pytest.mark.slow
def test_the_demo_makes_traces_figures_and_a_page_with_the_same_numbers(tmp_path):
    said = []
    page = run_demo(tmp_path / "out", problems=1, length=16, block=8, say=said.append)
    html = page.read_text()
    for name, steps in (("lab-diffusion", 16), ("lab-autoregressive", None)):
        (trace,) = sinkscope.open_traces(tmp_path / "out" / "traces" / name)
        assert trace.complete
        assert steps is None or trace.steps == steps
        sinks = find_sinks(trace)
        tracks = track(sinks)
        test = movement_test(tracks.main, tracks.is_sink)
        line = next(one for one in said if one.startswith(name))
        assert f"{len(sinks)} sinks; {test.moves_per_head:.2f} moves a head, {test.null_moves[0]:.2f}" in line
        assert f"{test.drift_per_step:+.3f}" in html
        assert trace.manifest["text"].splitlines()[0] in html
    figures = tmp_path / "out" / "figures"
    for number in (1, 2, 3, 5, 7, 9, 10):
        (drawn,) = figures.glob(f"figure{number}-*.png")
        assert drawn.with_suffix(".pdf").stat().st_size > 1000
        assert len(drawn.with_suffix(".csv").read_text().splitlines()) > 10
    assert html.count("data:image/png;base64,") == len(list(figures.glob("*.png")))
    assert "http://" not in html.replace("http://www.w3.org", "")


@pytest.mark.slow
def test_the_demo_can_be_made_again_where_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("sinkscope.figures.draw_figures", lambda *_, **__: [])
    for overwrite in (False, True):
        run_demo(tmp_path, problems=1, length=8, block=8, overwrite=overwrite, say=lambda _: None)
    assert len(sinkscope.open_traces(tmp_path / "traces" / "lab-diffusion")) == 1
    with pytest.raises(CallError, match="already holds a demo; choose another folder, or replace it: --overwrite"):
        run_demo(tmp_path, problems=1, length=8, block=8)
    (tmp_path / "traces" / "lab-diffusion" / "mine.txt").write_text("keep me")
    with pytest.raises(CallError, match=r"already holds files \(mine\.txt"):
        run_demo(tmp_path, problems=1, length=8, block=8, overwrite=True)
    assert (tmp_path / "report.html").exists() and (tmp_path / "explorer.html").exists()
    (tmp_path / "traces" / "lab-diffusion" / "mine.txt").unlink()

    def stands(*_, **__):
        assert not (tmp_path / "report.html").exists() and not (tmp_path / "explorer.html").exists(), (
            "pages of other traces"
        )
        return []

    monkeypatch.setattr("sinkscope.figures.draw_figures", stands)
    run_demo(tmp_path, problems=1, length=8, block=8, overwrite=True, say=lambda _: None)


def test_a_demo_that_was_ended_early_is_made_anew(tmp_path, monkeypatch):
    def ends(*_, **__):
        raise KeyboardInterrupt

    for draws, overwrite in ((ends, False), (lambda *_, **__: [], True)):
        monkeypatch.setattr("sinkscope.figures.draw_figures", draws)
        with contextlib.suppress(KeyboardInterrupt):
            run_demo(tmp_path, problems=1, length=8, block=8, overwrite=overwrite, say=lambda _: None)
    assert (tmp_path / "explorer.html").exists()


def test_a_folder_in_use_and_a_wrong_count_are_refused(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(CallError, match=r"mine\.txt|holds"):
        run_demo(tmp_path)
    with pytest.raises(CallError, match="problems: expected 1 to"):
        run_demo(tmp_path / "out", problems=0)
    assert not (tmp_path / "out").exists()
