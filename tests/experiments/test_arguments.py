"""Bad arguments of the scripts of experiments/: refused in one line, before anything is computed."""

import re
from pathlib import Path

import books_corpus
import pytest
from _arguments import Arguments, run_script

from sinkscope.errors import CallError

FOLDER = Path(books_corpus.__file__).parent


@pytest.mark.parametrize(
    "given",
    [
        "--problems 0",
        "--problems -3",
        "--shots -1",
        "--out nosuch/\0",
        "--out file/x",
        "--arms nosuch",
        "--minutes nan",
        "--seeds 0 -1",
    ],
)
def test_bad_arguments(tmp_path, monkeypatch, capsys, given):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    parser = Arguments("A script.")
    for name, kind, count in (
        ("problems", int, None),
        ("shots", int, None),
        ("minutes", float, None),
        ("seeds", int, "*"),
    ):
        parser.add_argument(f"--{name}", type=kind, nargs=count)
    for name in ("out", "arms"):
        parser.add_argument(f"--{name}", type=Path)
    assert parser.parse_args(["--problems", "1", "--out", "a/b/c", "--arms", "file"]).problems == 1
    with pytest.raises(SystemExit) as end:
        parser.parse_args(given.split(" "))
    name = given.split(" ")[0][2:]
    assert end.value.code == 2 and f"{name}: expected " in capsys.readouterr().err


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


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": "a"}', '{"title": 1, "prompt": "a"}', "\udc00"])
def test_a_damaged_excerpt(tmp_path, line):
    (tmp_path / "x.jsonl").write_bytes(line.encode(errors="surrogatepass") + b"\n")
    with pytest.raises(CallError, match=r"x\.jsonl"):
        list(books_corpus.read_excerpt(tmp_path / "x.jsonl"))
