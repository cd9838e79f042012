"""Every quirk that docs/quirks.md names has a test of that name; and each `Quirk:` in the code is in the document."""

from pathlib import Path

import pytest
from named_tests import existing_tests, named_tests, rows_of

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "quirks.md").read_text()


def test_every_test_that_is_named_exists():
    named = named_tests(DOCUMENT)
    assert len(named) >= 20
    assert not set(named) - existing_tests()


@pytest.mark.parametrize("row", rows_of(DOCUMENT), ids=lambda row: (named_tests(row) or ["none"])[0])
def test_every_quirk_names_its_test(row):
    assert len(named_tests(row)) == 1


def test_a_test_that_does_not_exist_is_noticed():
    assert set(named_tests("| x | y | `test_of_nothing_at_all` |")) - existing_tests() == {"test_of_nothing_at_all"}
    assert rows_of("| a | b |\n|---|---|\n| c | d |") == ["| c | d |"]


def test_quirks_of_the_code_are_in_the_document():
    code = {
        path.stem: path.read_text().count("Quirk:") for path in (ROOT / "src" / "sinkscope" / "decoding").rglob("*.py")
    }
    kinds = {"llada": "LLaDA", "mmada": "MMaDA", "dream": "Dream", "likelihood": "likelihood", "fast_dllm": "Fast-dLLM"}
    kinds |= {
        "dkv_cache": "dKV-Cache",
        "dkv_greedy": "dKV-Cache",
        "sparse_dllm": "Sparse-dLLM",
        "sdar": "SDAR",
        "llada2": "LLaDA 2",
    }
    kinds |= {"d2_cache": "d2Cache", "dllm_cache": "dLLM-Cache", "elastic_cache": "Elastic-Cache"}
    assert {name for name, count in code.items() if count} == set(kinds)
    for name, kind in kinds.items():
        rows = [row for row in rows_of(DOCUMENT) if kind in row.split("|")[1]]
        assert len(rows) >= code[name], f"{name}.py names {code[name]} quirks, the document {len(rows)}"
