"""docs/emergence.md says what results/emergence/emergence.csv holds."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/emergence.md").read_text()
UPDATES = (400, 1000, 4500, 9000, 20000)
MODELS = {"autoregressive": "lab-text-autoregressive", "diffusion": "lab-text-diffusion"}


def cells(kind):
    """The five rows of numbers of one kind, as they are written."""
    rows = [line.split("|")[3:-1] for line in PAGE.splitlines() if re.match(r"\| [a-z ]*\| (heads|largest|windows|cost)", line)]
    assert len(rows) == 10
    return [[cell.strip().replace("−", "-") for cell in row] for row in rows[5 * (kind == "diffusion") :][:5]]


@pytest.mark.parametrize("kind", MODELS)
def test_the_table_is_computed_from_the_file(kind):
    with (ROOT / "results/emergence/emergence.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == MODELS[kind]]
    for column, update in enumerate(UPDATES):
        mine = [row for row in rows if int(row["update"]) == update]
        shares, stayed = (np.array([float(row[name]) for row in mine]) for name in ("share", "stayed"))
        loss, top, rowmass = (float(mine[0][name]) for name in ("loss", "loss_without_top", "loss_without_rowmass"))
        expected = [
            str((shares >= 0.1).sum()),
            f"{shares.max():.2f}",
            f"{stayed.mean():.2f}",
            f"{top - loss:+.3f}",
            f"{rowmass - loss:+.3f}",
        ]
        assert [row[column] for row in cells(kind)] == expected
    last = np.array([float(row["share"]) for row in rows if int(row["update"]) == 20000])
    assert (last > 0.3).sum() == {"autoregressive": 4, "diffusion": 0}[kind]
