"""Figure 8 draws the head whose sink stays and the head whose sink drifts."""

import csv
import sys

import numpy as np

import sinkscope
from sinkscope import cli
from sinkscope.figures.figure8_first_and_last_maps import chosen_heads
from sinkscope.figures.subject import subject_of


def test_it_names_its_heads(sudden):
    chosen = chosen_heads(subject_of(sudden))
    assert [(why, head.layer, head.head) for why, head in chosen] == [
        ("fixed sink", 0, 0),
        ("drifts left, -1.00 positions a step", 0, 2),
    ]


def test_the_command_recomputes_its_maps(diffusion, tmp_path, monkeypatch, capsys):
    with sinkscope.recording(diffusion, out=tmp_path / "t"):
        sinkscope.generate(diffusion, "Q: Write a function f(x) that returns x plus 3.\nA:", length=12, block=12)
    command = ["figures", str(tmp_path / "t"), "--out", str(tmp_path / "f"), "--only", "8, 10", "--excess", "0.5"]
    monkeypatch.setattr(sys, "argv", ["sinkscope", *command])
    cli.main()
    captured = capsys.readouterr()
    assert captured.err == ""
    assert [path.rpartition("/")[2] for path in captured.out.split()] == [
        f"{name}.{kind}" for name in ("figure8-first-and-last", "figure10-thresholds") for kind in ("png", "pdf", "csv")
    ]
    trace = sinkscope.open_trace(tmp_path / "t")
    with (tmp_path / "f" / "figure8-first-and-last.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == "fixed sink" and row["step"] == "0"]
    found = np.zeros(trace.column_sums.shape[-1])
    for row in rows:
        found[int(row["key"])] += float(row["attention"])
    np.testing.assert_allclose(found, trace.column_sums[0, int(rows[0]["layer"]), int(rows[0]["head"])], atol=0.01)
