"""JSON lines that a user gives: what a line is, and how much a packed file may hold."""

import gzip

import pytest

from sinkscope import json_lines
from sinkscope.errors import CallError


@pytest.mark.parametrize(
    "text", ["", "\n", " \n\t\n", "a", "a\n", "\n\n a \n\n\nb c\n", "\u2028\na\x0bb\n \x1c \nc", "a\r\n\r\nb"]
)
def test_lines_are_those_that_say_something(text):
    assert list(json_lines.numbered(text)) == [
        (number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()
    ]


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "UNPACKED", 1 << 16)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"{}\n" + b" " * (1 << 22)))
    with pytest.raises(
        CallError, match=r"rows: expected at most [0-9,]+ bytes of JSON lines in [0-9,]+ of gzip, found more; unpack it"
    ):
        json_lines.read_lines(path, "rows", "get it again", CallError)
    path.write_bytes(gzip.compress(b"{}\n" * 999))
    assert json_lines.read_lines(path, "rows", "get it again", CallError) == "{}\n" * 999
