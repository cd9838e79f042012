"""No name and no text of a model commands the terminal of its reader."""


def test_the_text_of_an_answer_keeps_its_lines_and_commands_nothing(capsys):
    from sinkscope.commands.output import note, say

    say("one\n\ttwo\x1b[2J\rthree", "四")
    note("\x07")
    assert capsys.readouterr() == ("one\n\ttwo\\x1b[2J\\x0dthree 四\n", "\\x07\n")
