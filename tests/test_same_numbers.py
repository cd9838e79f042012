"""docs/same-numbers.md: every promise names a test that exists, and every page that promises equality leads to it."""

from pathlib import Path

import pytest
from named_tests import existing_tests, named_tests, rows_of

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "same-numbers.md").read_text()


@pytest.mark.parametrize(
    "row", [row for row in rows_of(PAGE) if "make test-all" not in row], ids=lambda row: row.split("|")[1].strip()
)
def test_every_promise_names_its_test(row):
    named = named_tests(row)
    assert named and not set(named) - existing_tests()


@pytest.mark.parametrize("name", ["evaluation", "exports", "interventions", "lab", "quirks", "sink-token"])
def test_pages_that_promise_equality_say_on_what_it_rests(name):
    assert "(same-numbers.md" in (DOCS / f"{name}.md").read_text()


def test_a_promise_without_a_test_would_be_noticed():
    (row,) = rows_of("| what | test |\n|---|---|\n| all is well | `test_of_nothing_at_all` |")
    assert set(named_tests(row)) - existing_tests() == {"test_of_nothing_at_all"}
