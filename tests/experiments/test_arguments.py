"""The scripts of experiments/ share a parser and print an error in one line."""

import re
from pathlib import Path

import books_corpus
import pytest
from _settings import run_script

from sinkscope.errors import CallError

FOLDER = Path(books_corpus.__file__).parent


@pytest.mark.parametrize("error", [CallError("a\nb"), OSError(2, "No such file", "x"), KeyboardInterrupt()])
def test_an_error_is_told_in_one_line(error):
    def main():
        raise error

    with pytest.raises(SystemExit) as end:
        run_script(main)
    assert str(end.value).startswith("error: ") and "\n" not in str(end.value)


def test_every_script_with_arguments_uses_them():
    for path in FOLDER.glob("[a-z]*.py"):
        text = path.read_text()
        assert "ArgumentParser" not in text and not re.search(r"^    main\(\)$", text, re.MULTILINE), path.name


@pytest.mark.parametrize("line", ["{", '{"prompt": "a"}'])
def test_a_damaged_excerpt(tmp_path, line):
    (tmp_path / "x.jsonl").write_text(line + "\n")
    with pytest.raises(CallError, match=r"x\.jsonl"):
        list(books_corpus.read_excerpt(tmp_path / "x.jsonl"))
