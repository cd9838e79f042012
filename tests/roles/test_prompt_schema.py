"""Files of finished prompts: what was measured is read back, and a changed field is measured again under a right checksum."""

import copy
import dataclasses
import json
import math
import os
import shutil

import _networks_by_hand
import pytest
from _networks_by_hand import SETTINGS

from sinkscope.checksums import with_checksum
from sinkscope.errors import CallError
from sinkscope.roles import find, find_roles
from sinkscope.roles.prompt_schema import TOGETHER, together_fields
from sinkscope.roles.prompt_store import PromptStore


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model, its prompts, a folder of finished prompts, and the roles."""
    folder = tmp_path_factory.mktemp("whole")
    model, _, prompts = _networks_by_hand.make(folder / "model", "idle with a substitute", 1, 3, 1)
    return model, prompts, folder / "found", find_roles(model, prompts, out=folder / "found", **SETTINGS)


def test_finished_prompts_are_not_measured_again(whole, monkeypatch, caplog):
    model, prompts, folder, roles = whole

    def never(*arguments, **settings):
        raise AssertionError("nothing is left to measure")

    monkeypatch.setattr(find, "make_probes", never)
    assert find_roles(model, prompts, out=folder, **SETTINGS) == roles
    assert not caplog.messages


def test_the_current_folder_may_change_while_prompts_are_measured(whole, tmp_path, monkeypatch):
    model, prompts, folder, roles = whole
    shutil.copytree(folder, tmp_path / "found")
    (tmp_path / "found/judge/000003.json").unlink()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    assert (
        find_roles(model, prompts, out="found", on_prompt=lambda number: os.chdir(tmp_path / "other"), **SETTINGS)
        == roles
    )
    assert (tmp_path / "found/judge/000003.json").exists() and not os.listdir(tmp_path / "other")


SINK = ("rows", 0, "sink")
HEAD = ("rows", 0)
CHANGES = [
    ("choose/000000.json", ("rows",), [], "rows: expected at least 1 values, found a list of 0"),
    ("choose/000000.json", ("rows",), {}, "rows: expected a list, found an object"),
    ("choose/000000.json", SINK, [[True]], "rows[0].sink[0]: expected at least 3 values, found a list of 1"),
    ("choose/000000.json", (*SINK, 0, 0), math.nan, "rows[0].sink[0][0]: expected true or false, found nan"),
    ("choose/000000.json", (*SINK, 0), [[[]]], "rows[0].sink[0][0]: expected true or false, found a list of 1"),
    ("judge/000001.json", (*HEAD, "kl.sink"), -1.0, "rows[0].kl.sink: expected a number from 0.0 upwards, found -1.0"),
    ("judge/000001.json", (*HEAD, "kl.sink"), None, "rows[0].kl.sink: expected a number, found null"),
    ("judge/000001.json", (*HEAD, "kl.top.2"), 10**40, "rows[0].kl.top.2: expected a number up to 3.5e+38"),
    (
        "judge/000001.json",
        (*HEAD, "norm_ratio"),
        math.inf,
        "rows[0].norm_ratio: expected a number from 0 upwards or NaN, found inf",
    ),
    ("judge/000001.json", (*HEAD, "evenness"), math.nan, "rows[0].evenness: expected a finite number, found nan"),
    ("judge/000001.json", (*HEAD, "token"), 10**9, "rows: expected tokens below "),
    ("judge/000001.json", (*HEAD, "prompt"), 3, "rows: expected rows of prompt 1"),
    ("judge/000001.json", (*HEAD, "head"), 77, "rows: expected one row a canvas for each of the 1 heads, in order"),
    ("judge/000001.json", (*HEAD, "sink"), False, "rows[0]: expected nothing measured of a head without a sink"),
    (
        "judge/000001.json",
        (*HEAD, "kl.rowmass"),
        ...,
        "rows[0]: expected all that is measured of a sink, kl.rowmass among it",
    ),
    ("judge/000001.json", (*HEAD, "more"), 1, "rows[0].more: expected no such field, found 1"),
    ("judge/000001.json", ("rows",), [], "rows: expected one row a canvas for each of the 1 heads, in order"),
    ("judge/000001.json", ("rows",), ..., "rows: expected a value, found none"),
    ("judge/000001.json", ("run",), ..., "run: expected a value, found none"),
    ("judge/000001.json", ("run",), "0" * 64, "found '0000000"),
    (
        "judge/000001.json",
        ("kind",),
        "choose",
        "kind: expected 'judge', found 'choose'; it was written for another place",
    ),
    ("choose/000000.json", ("number",), 2, "number: expected 0, found 2"),
    ("choose/000000.json", ("number",), False, "number: expected a whole number, found false"),
    ("judge/000001.json", ("heads",), [[7, 7]], "heads: expected [["),
    ("choose/000000.json", ("canvases",), 1, "rows: expected 1 rows, 1 of each of 1 canvases, found a list of 2"),
    ("judge/000001.json", ("canvases",), 1, "rows: expected 1 rows, 1 of each of 1 canvases, found a list of 2"),
    ("judge/000001.json", ("canvases",), 3, "canvases: expected a number up to 2, found 3"),
]


@pytest.mark.parametrize(("name", "path", "value", "says"), CHANGES, ids=lambda value: str(value)[:40])
def test_a_changed_field_is_measured_again(whole, tmp_path, caplog, name, path, value, says):
    model, prompts, folder, roles = whole
    shutil.copytree(folder, tmp_path / "found")
    file = tmp_path / "found" / name
    document = json.loads(file.read_text())
    at = document
    for key in path[:-1]:
        at = at[key]
    if value is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    file.write_text(json.dumps(with_checksum(document)))
    assert find_roles(model, prompts, out=tmp_path / "found", **SETTINGS) == roles
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(f"{file}: ") and says in caplog.messages[0]
    assert json.loads(file.read_text()) == json.loads((folder / name).read_text())


def test_what_hiding_together_costs_is_checked(tmp_path, caplog):
    store, row = PromptStore(tmp_path), {f"{kind}.{name}": 0.5 for kind in ("kl", "kept") for name in TOGETHER}
    heads = [(0, 1), (2, 0)]
    store.write("together", 1, heads, 1, [row])
    assert store.read("together", 1, heads, together_fields(1)) == [row]
    store.write("together", 1, heads, 1, [row | {"kept.sink": 2.0}])
    assert store.read("together", 1, heads, together_fields(1)) is None
    assert "rows[0].kept.sink: expected a number up to 1.001, found 2.0; the prompt is measured again" in caplog.text


def test_what_hiding_together_costs_is_of_its_heads_and_all_canvases(tmp_path, caplog):
    store, row = PromptStore(tmp_path), {f"{kind}.{name}": 0.5 for kind in ("kl", "kept") for name in TOGETHER}
    store.write("together", 1, [(0, 1), (2, 0)], 2, [row])
    assert store.read("together", 1, [(0, 1), (2, 0)], together_fields(2)) is None
    assert "rows: expected 2 rows, 1 of each of 2 canvases, found a list of 1" in caplog.messages[-1]
    store.write("together", 1, [(0, 1), (2, 0)], 1, [row])
    assert store.read("together", 1, [(0, 1), (2, 0)], together_fields(2)) is None
    assert "canvases: expected a number from 2 upwards, found 1" in caplog.messages[-1]
    assert store.read("together", 1, [(0, 1), (2, 1)], together_fields(1)) is None
    assert "heads: expected [[0, 1], [2, 1]], found [[0, 1], [2, 0]]" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("choose/000002.json", "choose/000000.json"),
        ("judge/000003.json", "judge/000001.json"),
        ("choose/000000.json", "judge/000001.json"),
    ],
)
def test_a_file_in_the_place_of_another_is_measured_again(whole, tmp_path, caplog, source, place):
    model, prompts, folder, roles = whole
    found = shutil.copytree(folder, tmp_path / "found")
    shutil.copy(folder / source, found / place)
    assert find_roles(model, prompts, out=found, **SETTINGS) == roles
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(f"{found / place}: ")
    assert caplog.messages[0].endswith("; the prompt is measured again")
    assert (found / place).read_text() == (folder / place).read_text()


def test_a_file_of_another_run_is_measured_again(whole, tmp_path, caplog):
    """It fits in all but the hash of run.json."""
    model, prompts, folder, roles = whole
    find_roles(model, prompts, out=tmp_path / "other", **SETTINGS, control_seed=1)
    found = shutil.copytree(folder, tmp_path / "found")
    for kind in ("choose/000000.json", "judge/000001.json"):
        shutil.copy(tmp_path / "other" / kind, found / kind)
    assert find_roles(model, prompts, out=found, **SETTINGS) == roles
    assert len(caplog.messages) == 2
    for message, kind in zip(caplog.messages, ("choose/000000.json", "judge/000001.json"), strict=True):
        assert message.startswith(f"{found / kind}: run: expected ")


def test_another_dtype_is_another_run(whole):
    model, prompts, folder, _ = whole
    other = dataclasses.replace(model, card=dataclasses.replace(model.card, dtype="bfloat16"))
    with pytest.raises(
        CallError,
        match="holds the roles of another run: its dtype is 'float32', now it is 'bfloat16'; choose another folder",
    ):
        find_roles(other, prompts, out=folder, **SETTINGS)
    converted = dataclasses.replace(other, network=copy.deepcopy(model.network).bfloat16())  # whose hashes differ too
    with pytest.raises(
        CallError, match="another run: its dtype is 'float32', now it is 'bfloat16'; choose another folder"
    ):
        find_roles(converted, prompts, out=folder, **SETTINGS)


def test_a_setting_that_is_said_is_the_one_that_is_resolved(whole, caplog):
    model, prompts, folder, roles = whole
    settings = {name: value for name, value in roles.settings.items() if name != "canvases"}
    assert find_roles(model, prompts, out=folder, **{**SETTINGS, **settings}) == roles and not caplog.messages
