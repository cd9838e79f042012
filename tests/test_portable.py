"""`make test-portable`: its settings bite, and no test with a tolerance is left out of it."""

import re
from pathlib import Path
from subprocess import CompletedProcess

import portable
import pytest

ROOT = Path(__file__).parents[1]
IMPORTS = re.compile(r"^(?:from|import) (?:closeness|other_kernels|odd_places)\b", re.MULTILINE)


def left_out(files):
    """Test files that compare numbers and are not on the list."""
    listed = tuple(ROOT / path for path in portable.NUMERICAL)
    return [
        path
        for path, text in files.items()
        if IMPORTS.search(text) and not any(path.is_relative_to(one) for one in listed)
    ]


def test_every_test_with_a_tolerance_is_on_the_list():
    files = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    assert sum(bool(IMPORTS.search(text)) for text in files.values()) > 30
    assert left_out(files) == []


def test_a_test_that_is_left_out_is_noticed():
    elsewhere = ROOT / "tests" / "elsewhere" / "test_numbers.py"
    assert left_out({elsewhere: "import torch\nfrom closeness import assert_close\n"}) == [elsewhere]
    listed = ROOT / "tests" / "models" / "test_new.py"
    assert left_out({elsewhere: '"""closeness of other_kernels"""\n', listed: "import closeness\n"}) == []


def test_what_is_listed_exists():
    assert all((ROOT / path).exists() for path in [*portable.NUMERICAL, *portable.NOT_SHORT])


def test_the_short_form_names_nothing_that_it_leaves_out():
    """pytest runs what is named, whatever it is told to ignore."""
    named = [path for path in portable.selection(True) if not path.startswith("--ignore=")]
    ignored = [path.removeprefix("--ignore=") for path in portable.selection(True) if path not in named]
    assert not set(named) & set(portable.NOT_SHORT) and set(named) < set(portable.NUMERICAL)
    assert all(any(Path(path).is_relative_to(one) for one in named) for path in ignored)
    assert set(portable.NOT_SHORT) == set(ignored) | (set(portable.NUMERICAL) - set(named))
    assert portable.selection(False) == list(portable.NUMERICAL)


@pytest.mark.parametrize("setting", portable.SHORT.values(), ids=portable.SHORT)
def test_a_capability_is_in_force(setting):
    """Or left out, where the processor has less; it never has more."""
    found = portable.capability(setting)
    assert found == setting[portable.ATEN].upper() or found == "DEFAULT"


def test_a_capability_that_is_not_here_is_left_out(monkeypatch, capsys):
    monkeypatch.setattr(portable, "capability", lambda setting: "DEFAULT")
    monkeypatch.setattr(portable.subprocess, "run", lambda *_, **__: pytest.fail("it ran"))
    assert portable.run("avx2", portable.SHORT["avx2"], True, 2, []) == 0
    assert capsys.readouterr().out == "avx2: left out, torch has DEFAULT here\n"


def test_a_run_that_fails_is_shown_and_fails(monkeypatch, capsys):
    ran = []

    def fail(command, env, **_):
        ran.append((command, env))
        return CompletedProcess(command, 1, "off by 3\n1 failed\n")

    monkeypatch.setattr(portable, "capability", lambda setting: "AVX512")
    monkeypatch.setattr(portable.subprocess, "run", fail)
    assert portable.run("avx2, two threads", {"OMP_NUM_THREADS": "2"}, False, 2, ["-x"]) == 1
    assert capsys.readouterr().out.startswith(
        "off by 3\n1 failed\n\navx2, two threads: 1 failed (torch's kernels: AVX512; "
    )
    ((command, env),) = ran
    assert env["OMP_NUM_THREADS"] == "2" and command[command.index("-n") + 1] == "1", (
        "as many processes as there are cores for"
    )
    assert command[-len(portable.NUMERICAL) - 1 :] == [*portable.NUMERICAL, "-x"]
