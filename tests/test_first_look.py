"""The notebook of the documentation runs from top to bottom in a kernel, and shows the outputs stored in it."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first-look.ipynb"


def shown(cell):
    """The kinds of output that a cell shows."""
    outputs = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return [(output["output_type"], sorted(output.get("data", ()))) for output in outputs]


@pytest.mark.slow
def test_the_notebook_runs_and_shows_the_stored_outputs(tmp_path, monkeypatch):
    reason = "no kernel here: pip install 'sinkscope[dev,notebook]'"
    nbformat, nbclient, *_ = (
        pytest.importorskip(name, reason=reason) for name in ("nbformat", "nbclient", "ipykernel", "anywidget")
    )
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    stored = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for old, new in zip(stored, notebook.cells, strict=True):
        if old["cell_type"] == "code":
            assert shown(new) == shown(old), "".join(old["source"])
    assert (tmp_path / "notebook.trace" / "manifest.json").exists()
