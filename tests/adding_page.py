"""The files of docs/examples that docs/adding.md links to."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
EXAMPLES = PAGE.parent / "examples"


def files_of_the_page(text: str | None = None) -> dict[str, str]:
    """Return the text of each file by the path that it would have in the repository."""
    page = PAGE.read_text(encoding="utf-8") if text is None else text
    linked = re.findall(r"\]\(examples/(\S+\.py)\)", page)
    return {path: (EXAMPLES / path).read_text(encoding="utf-8") for path in linked}
