"""What commands say of recordings that were ended before they had all their steps."""

import pytest
from wandering import wandering_columns, write_wandering


def numbered(folder, steps):
    for number, count in steps.items():
        write_wandering(folder / f"{number:06d}", wandering_columns()[:count], complete=count > 0)


def test_commands_leave_out_a_numbered_trace_without_a_whole_step(tmp_path, run):
    numbered(tmp_path / "t", {0: 3, 1: 2, 2: 0})
    status, _, err = run("export", tmp_path / "t", "--to", "numpy", "--out", tmp_path / "z")
    assert status == 0 and f"{tmp_path}/t/000002: left out, it holds no whole step" in err
    assert sorted(path.name for path in (tmp_path / "z").iterdir()) == ["000000.npz", "000001.npz"]


@pytest.mark.parametrize("number", ["", "000001"])
def test_a_trace_without_a_whole_step_is_named(tmp_path, run, number):
    numbered(tmp_path / "t", {1: 0})
    status, out, err = run("sinks", tmp_path / "t" / number)
    assert (status, out) == (1, "") and f"{tmp_path}/t/000001: the trace holds no whole step yet" in err
