"""docs/findings.md says what results/emergence/emergence.csv holds."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/findings.md").read_text()
UPDATES = (400, 1000, 4500, 9000, 20000)
MODELS = {"autoregressive": "lab-text-autoregressive", "diffusion": "lab-text-diffusion"}


def cells(kind):
    """The five rows of numbers of one kind, as they are written."""
    rows = [
        line.split("|")[3:-1]
        for line in PAGE.splitlines()
        if re.match(r"\| [a-z ]*\| (heads|largest|windows|cost)", line)
    ]
    assert len(rows) == 10
    return [[cell.strip().replace("−", "-") for cell in row] for row in rows[5 * (kind == "diffusion") :][:5]]


def rows_of(kind):
    with (ROOT / "results/emergence/emergence.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["model"] == MODELS[kind]]


@pytest.mark.parametrize("kind", MODELS)
def test_the_table_is_computed_from_the_file(kind):
    rows = rows_of(kind)
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


def test_the_last_updates_of_the_autoregressive_network_are_told_as_measured():
    rows = [row for row in rows_of("autoregressive") if int(row["update"]) == 25000]
    shares = np.array([float(row["share"]) for row in rows])
    loss, top, rowmass = (float(rows[0][name]) for name in ("loss", "loss_without_top", "loss_without_rowmass"))
    assert len(rows) == 36 and (shares > 0.3).sum() == 4
    told = re.sub(r"\s+", " ", PAGE)
    assert f"still four heads, {shares.max():.2f} at most; hiding it costs {top - loss:.3f} nats" in told
    assert f"hiding random keys with as much attention {rowmass - loss:.3f}." in told


def test_what_the_sinks_do_is_computed_from_the_files():
    moments = []
    for kind in ("autoregressive", "diffusion"):
        moments += json.loads((ROOT / f"results/emergence/roles-{kind}.json").read_text())["moments"]
    assert [one["update"] for one in moments] == [20000, 3000, 20000]

    def row(name):
        line = next(line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
        return [cell.strip() for cell in line.split("|")[2:-1]]

    counts = [[one["counts"][role] for role in ("idle", "broadcast", "carrier", "undecided")] for one in moments]
    assert row("heads with a lasting sink, of 36") == [str(sum(one)) for one in counts]
    assert row("idle / broadcast / carrier / undecided") == [" / ".join(map(str, one)) for one in counts]
    assert row("heads that can lose it for nothing") == [
        str(sum(head["removable"] is True for head in one["heads"])) for one in moments
    ]
    assert row("heads with a main sink while 64 tokens are written")[1:] == [
        f"{one['heads_with_main_sink']:.1f}" for one in moments[1:]
    ]
    moved = [f"{one['moves_per_head']:.1f} / {one['moves_shuffled']:.1f}" for one in moments[1:]]
    assert row("moves of it per head / with the steps shuffled")[1:] == moved
    idle = [head for head in moments[0]["heads"] if head["role"] == "idle"]
    assert {head["token"] for head in idle} == {"<|bos|>"}
    norms = [head["norm_ratio"] for head in idle]
    assert f"{min(norms):.2f} to {max(norms):.2f} of the median" in PAGE


def test_short_trainings_with_a_sink_token_are_told_as_measured():
    page = re.sub(r"\s+", " ", (ROOT / "results/sink-token/README.md").read_text())
    rows = json.loads((ROOT / "results/emergence/knobs.json").read_text())["rows"]

    def of(arm, name, digits):
        found = [row[name] for row in sorted(rows, key=lambda row: row["seed"]) if row["arm"] == f"diffusion-{arm}"]
        assert len(found) == 3
        return ", ".join(f"{one:.{digits}f}" for one in found)

    arms = ("base", "sink-token", "sink-zero")
    losses, moves = ([of(arm, name, digits) for arm in arms] for name, digits in (("loss", 2), ("moves_per_head", 1)))
    assert f"is {losses[0]} without, {losses[1]} with the token, and {losses[2]} with a value of zero" in page
    assert f"({'; '.join(moves)})".replace(";", " moves per head;", 1) in page


def test_the_training_is_as_good_as_a_plain_one():
    losses = {
        row["arm"]: row["loss"]
        for row in json.loads((ROOT / "results/emergence/knobs.json").read_text())["rows"]
        if row["seed"] == 0
    }
    plain, ours = (losses[f"autoregressive-{arm}"] for arm in ("plain", "cosine"))
    assert f"own loss and optimiser reach {plain:.2f}, the lab's {ours:.2f}" in re.sub(r"\s+", " ", PAGE)
    assert abs(plain - ours) < 0.1


def test_what_each_setting_does_is_told_as_measured():
    rows = {
        row["arm"]: row
        for row in json.loads((ROOT / "results/emergence/knobs.json").read_text())["rows"]
        if row["seed"] == 0
    }
    table = (ROOT / "results/emergence/README.md").read_text()
    lines = table[table.index("## What each setting does") :].split("\n\n")[2].splitlines()[2:]
    arms = ("base", "cosine", "plain", "rate", "decay", "first", "context", "depth", "batch")
    arms = [arm for arm in arms if f"autoregressive-{arm}" in rows]
    for line, row in zip(lines, (rows[f"autoregressive-{arm}"] for arm in arms), strict=True):
        assert [cell.strip() for cell in line.split("|")[2:-1]] == [
            f"{row['loss']:.2f}",
            f"{row['heads_over_a_tenth']} of {row['heads']}",
            f"{row['largest_share']:.2f}",
            f"{row['its_value_ratio']:.1f}",
            f"{row['largest_first_share']:.2f}",
        ]
    rate, decay, plain, cosine = (rows[f"autoregressive-{arm}"] for arm in ("rate", "decay", "plain", "cosine"))
    assert f"up to {100 * rate['largest_share']:.0f} % of a head" in PAGE and 0 < rate["its_commonest_place"] < 8
    assert decay["its_commonest_place"] == 0 and decay["its_value_ratio"] < 0.5
    assert f"worse by {decay['loss'] - rows['autoregressive-base']['loss']:.1f}" in PAGE
    assert plain["largest_first_share"] > 3 * cosine["largest_first_share"]
    fast, usual = (rows[f"diffusion-{arm}"] for arm in ("rate", "base"))
    told = re.sub(r"\s+", " ", PAGE)
    assert (
        f"{fast['heads_over_a_tenth']} heads with 10 % or more on one key, {fast['largest_share']:.2f} at most" in told
    )
    assert f"({usual['heads_over_a_tenth']} and {usual['largest_share']:.2f} at 3e-3)" in told
    assert f"values of {fast['its_value_ratio']:.1f} ({usual['its_value_ratio']:.1f}) times the median" in told
    assert f"a loss of {fast['loss']:.2f} ({usual['loss']:.2f})" in told
    bos = rows["diffusion-first"]
    assert f"keeps its sinks ({bos['heads_over_a_tenth']} heads, {bos['largest_share']:.2f} at most)" in told
    assert f"BOS is none of them ({bos['largest_first_share']:.2f} at most)" in told
