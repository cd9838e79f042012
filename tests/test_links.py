"""Every link of a page leads to an existing file, and every anchor to a heading of that file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for folder in ("", "docs", "benchmarks", "results/*")
    for path in ROOT.glob(f"{folder}/*.md" if folder else "*.md")
)


def without_code(text: str) -> str:
    """The page without fenced and indented code and without code spans, in which brackets are no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^    .*$|`[^`\n]*`", "", text, flags=re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(
        r"^#+ (.*?)\s*$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    found: list[str] = []
    for heading in headings:
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().replace(" ", "-")
        name = "".join(letter for letter in plain if letter.isalnum() or letter in "-_")
        found.append(
            name if name not in found else f"{name}-{sum(one == name or one.startswith(f'{name}-') for one in found)}"
        )
    return set(found)


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            wrong.append(target)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert broken(page) == []
