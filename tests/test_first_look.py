"""The notebook of the documentation runs from top to bottom in a kernel, and shows what it shows in the repository."""

import json
import os
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first-look.ipynb"


def shown(cell):
    """The kinds of output that a cell shows."""
    return [
        (output["output_type"], sorted(output.get("data", ())))
        for output in cell["outputs"]
        if output.get("name") != "stderr"
    ]


def code_cells():
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_what_it_shows_here(tmp_path, monkeypatch):
    reason = "no kernel here: pip install 'sinkscope[dev,notebook]'"
    nbformat, nbclient = (pytest.importorskip(name, reason=reason) for name in ("nbformat", "nbclient"))
    for name in ("ipykernel", "anywidget"):
        pytest.importorskip(name, reason=reason)
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    fresh = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for old, new in zip(code_cells(), fresh, strict=True):
        assert shown(new) == shown(old), "".join(old["source"])
    html = fresh[1]["outputs"][0]["data"]["text/html"]
    assert "notebook.trace" in html and "64 × 6 × 6 × 87" in html
    assert (tmp_path / "notebook.trace" / "manifest.json").exists()


def test_it_shows_every_kind_of_thing_and_stays_small():
    kinds = {kind for cell in code_cells() for _, found in shown(cell) for kind in found}
    assert {"text/html", "image/png", "application/vnd.jupyter.widget-view+json"} <= kinds
    assert not [cell for cell in code_cells() if any(output["output_type"] == "error" for output in cell["outputs"])]
    assert NOTEBOOK.stat().st_size < 400_000
    assert "/tmp/" not in NOTEBOOK.read_text(encoding="utf-8")


def test_its_links_lead_somewhere():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    links = [
        link
        for cell in cells
        if cell["cell_type"] == "markdown"
        for link in re.findall(r"\]\(([^)]+)\)", "".join(cell["source"]))
    ]
    assert len(links) >= 5
    assert all((NOTEBOOK.parent / link).exists() for link in links)
