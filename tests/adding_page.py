"""The files that docs/adding.md writes out, and those of docs/examples, which it links to."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "adding.md"
EXAMPLES = PAGE.parent / "examples"


def files_of_the_page(text: str | None = None) -> dict[str, str]:
    """Return the text of each file by its path in the repository: code blocks whose first line is a comment with the path, and examples."""
    page = PAGE.read_text(encoding="utf-8") if text is None else text
    blocks = dict(re.findall(r"^```python\n# ((?:src|tests)/\S+\.py)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    linked = re.findall(r"\]\(examples/(\S+\.py)\)", page)
    return blocks | {path: (EXAMPLES / path).read_text(encoding="utf-8") for path in linked}
