"""What commands say of recordings that were ended before they had all their steps."""

import pytest
from wandering import wandering_columns, write_wandering


def numbered(folder, steps):
    for number, count in steps.items():
        write_wandering(folder / f"{number:06d}", wandering_columns()[:count], complete=count > 0)


@pytest.mark.parametrize("command", ["sinks", "export"])
def test_commands_leave_out_a_numbered_trace_without_a_whole_step(tmp_path, run, command):
    numbered(tmp_path / "t", {0: 3, 1: 2, 2: 0})
    more = {"export": ["--to", "numpy", "--out", tmp_path / "z"]}
    status, _, err = run(command, tmp_path / "t", *more.get(command, []))
    assert status == 0, err
    assert f"{tmp_path}/t/000002: left out, it holds no whole step" in err
    if command == "export":
        assert sorted(path.name for path in (tmp_path / "z").iterdir()) == ["000000.npz", "000001.npz"]


@pytest.mark.parametrize("command", [["sinks"], ["map", "--step", "0", "--layer", "0", "--head", "0"]], ids=str)
@pytest.mark.parametrize("number", ["", "000001"])
def test_a_trace_without_a_whole_step_is_named(tmp_path, run, command, number):
    numbered(tmp_path / "t", {1: 0})
    status, out, err = run(command[0], tmp_path / "t" / number, *command[1:])
    assert (status, out) == (1, "")
    assert (
        f"{tmp_path}/t/000001: the trace holds no whole step yet" in err and "record it again with --overwrite" in err
    )
