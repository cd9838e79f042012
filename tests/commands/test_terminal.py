"""No name and no text of a model commands the terminal of its reader."""

import json
import shutil

import pytest


@pytest.fixture
def loud_model(diffusion_folder, tmp_path):
    return shutil.copytree(diffusion_folder, tmp_path / "m\x1b[31m\x9bX")


def test_names_are_shown_by_their_escape_sequences(run, loud_model, tmp_path):
    prompt = ("--prompt", "Q: Tom has 7 apples.\nA:", "--length", 4, "--block", 4)
    for command, shown in (
        (("trace", loud_model, "--out", tmp_path / "t", *prompt), False),
        (("sinks", tmp_path / "t"), False),
        (("figures", tmp_path / "t", "--out", tmp_path / "f", "--only", "1,6"), True),
        (("evaluate", loud_model, "--tasks", "lab-sums", "--limit", 1, "--length", 4, "--out", tmp_path / "e"), True),
        (("table", tmp_path / "e", "--json"), False),
    ):
        status, out, err = run(*command)
        assert status == 0, err
        assert "\x1b" not in out + err and "\x9b" not in out + err
        if "--json" in command:
            assert str(loud_model) in {row["model"] for row in json.loads(out)["rows"]}
        assert (r"m\x1b[31m\x9bX" in out + err) >= shown, command


def test_the_text_of_an_answer_keeps_its_lines_and_commands_nothing(capsys):
    from sinkscope.commands.output import note, say

    say("one\n\ttwo\x1b[2J\rthree", "四")
    note("\x07")
    assert capsys.readouterr() == ("one\n\ttwo\\x1b[2J\\x0dthree 四\n", "\\x07\n")
