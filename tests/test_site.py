"""The documentation site has every page; `make docs` builds it, and a warning is an error there."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONF = ROOT / "docs/site/conf.py"


def listed(source: str) -> set[str]:
    """The pages that the table of contents in a conf.py names; those of a glob are not among them."""
    tree = ast.parse(source)
    contents = next(
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CONTENTS"
    )
    words = [
        node.value
        for node in ast.walk(contents.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return set(words)


def missing(source: str) -> set[str]:
    """The pages in docs that are not in the table of contents."""
    pages = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for kind in ("*.md", "site/*.md", "*.ipynb")
        for path in (ROOT / "docs").glob(kind)
    }
    return pages - listed(source)


def test_every_page_is_in_the_table_of_contents():
    assert missing(CONF.read_text()) == set()


def test_a_page_that_is_left_out_is_found():
    assert missing(CONF.read_text().replace('"docs/roles",', "")) == {"docs/roles"}


def test_every_page_of_the_table_exists():
    named = {
        name for name in listed(CONF.read_text()) if "/" in name and "*" not in name and not name.endswith("README")
    }
    assert len(named) > 15
    assert not [name for name in named if not list(ROOT.glob(f"{name}.*"))]


def test_the_parts_of_the_api_page_are_the_packages_that_offer_names():
    from importlib import import_module

    tree = ast.parse(CONF.read_text())
    parts = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS"
    )
    assert all(import_module(part).__name__ == part for part in parts)
    offering = {
        f"sinkscope.{path.parent.name}"
        for path in (ROOT / "src/sinkscope").glob("*/__init__.py")
        if "__all__" in path.read_text()
    }
    assert offering - set(parts) <= {"sinkscope.recorder", "sinkscope.lab"}
