"""The documentation site (`make docs`): the pages of the repository as they stand, the API from docstrings,
the commands from their help, the notebook, a gallery.
"""

import contextlib
import inspect
import io
import sys
from importlib import import_module
from importlib.metadata import version as installed
from pathlib import Path

from sphinx.domains.python import PyObject

from sinkscope.cli import main
from sinkscope.commands import COMMANDS

ROOT = Path(__file__).parents[2]

project = "sinkscope"
author = "The sinkscope contributors"
copyright = author
version = release = installed("sinkscope")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
root_doc = "README"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
    "docs/**.md",
    "docs/first-look.ipynb",
    "build/commands/*.md",
    "results/**.md",
    "tests/decoding/fixtures/README.md",
]

# Pages are written for GitHub: anchors of headings as it makes them, and links to any file of the repository.
myst_heading_anchors = 4
myst_links_external_new_tab = True
nb_execution_mode = "off"  # a test runs the notebook; its outputs are stored
suppress_warnings = [
    "myst.header",  # pages may begin at any level
    "ref.python",  # two classes may have an attribute of one name
    "toc.not_included",  # two linked pages have no title to stand in the table of contents
]

default_role = "literal"  # docstrings set names in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures hold shapes as strings; docstrings say them in words
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"sinkscope {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra", *(str(ROOT / "demo-output" / name) for name in ("explorer.html", "report.html"))]
html_show_sphinx = False

CONTENTS = {
    "Start": ["docs/start", "docs/first-look", "docs/glossary", "docs/site/gallery"],
    "Look": [
        "docs/explore",
        "docs/figures",
        "docs/statistics",
        "docs/roles",
        "docs/transplant",
        "docs/lens",
        "docs/exports",
        "docs/trace-format",
    ],
    "Change": [
        "docs/interventions",
        "docs/sink-token",
        "docs/caches",
        "docs/compression",
        "docs/evaluation",
    ],
    "Models": ["docs/models", "docs/any-model", "docs/quirks", "docs/lab"],
    "Reference": [
        "docs/site/api",
        "docs/json",
        "docs/speed",
        "docs/same-numbers",
        "docs/adding",
        "benchmarks/RESULTS",
    ],
    "Commands": [f"build/commands/{name}" for name in COMMANDS],
    "Project": ["CHANGELOG", "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY"],
    "Evidence": [
        "docs/findings",
        *sorted(
            path.relative_to(ROOT).with_suffix("").as_posix()
            for path in ROOT.glob("results/*/*.md")
            if path.name != "table.md"
        ),
    ],
}
"""The pages of each part of the table of contents."""


PARTS = {
    "sinkscope": "The names for every day",
    "sinkscope.traces": "Traces",
    "sinkscope.sinks": "Sinks",
    "sinkscope.statistics": "Statistics",
    "sinkscope.interventions": "Interventions",
    "sinkscope.roles": "Roles",
    "sinkscope.lenses": "Lenses",
    "sinkscope.emergence": "Emergence",
    "sinkscope.figures": "Figures",
    "sinkscope.evaluation": "Evaluation",
    "sinkscope.decoding": "Decoding",
    "sinkscope.models": "Models",
    "sinkscope.attention": "Attention",
    "sinkscope.errors": "Errors",
}
"""The packages of the API page, with their headings."""


def api():
    """Return the body of the API page: every public class and function, where it is offered first."""
    known, lines = set(), []
    for part, heading in PARTS.items():
        module = import_module(part)
        lines += ["", f"## {heading}", "", f"`import {part}`", "", "```{eval-rst}"]
        for name in getattr(module, "__all__", None) or [one for one in dir(module) if not one.startswith("_")]:
            found = getattr(module, name)
            if (
                not (inspect.isclass(found) or inspect.isfunction(found))
                or found in known
                or not found.__module__.startswith("sinkscope")
            ):
                continue
            known.add(found)
            lines += [f".. auto{'class' if inspect.isclass(found) else 'function'}:: {part}.{name}", ""]
        lines.append("```")
    return "\n".join(lines)


def write_help(app):
    """Write a page for each command, with what `--help` prints, where git ignores it."""
    folder = ROOT / "build/commands"
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
            sys.argv = ["sinkscope", name, "--help"]
            main()
        (folder / f"{name}.md").write_text(f"# {name}\n\n```text\n{text.getvalue().strip()}\n```\n", encoding="utf-8")


def fill(app, docname, source):
    """Append the table of contents to the README, which has none on GitHub, and its body to the API page."""
    if docname == "docs/site/api":
        source[0] += api()
    if docname == root_doc:
        for part, pages in CONTENTS.items():
            lines = "\n".join(f"/{page}" for page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n:titlesonly:\n\n{lines}\n```\n"


def setup(app):
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # not "Variables"
    app.connect("builder-inited", write_help)
    app.connect("source-read", fill)
