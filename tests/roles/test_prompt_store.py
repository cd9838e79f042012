"""Files of finished prompts: what was measured is read back; what is damaged or misplaced is measured again."""

import dataclasses
import json
import shutil

import _networks_by_hand
import pytest
import torch
from _networks_by_hand import SETTINGS

from sinkscope.errors import CallError, EvaluationError
from sinkscope.roles import find, find_roles, read_roles
from sinkscope.runs.files import with_checksum
from sinkscope.runs.folder import run_folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A model, its prompts, a folder of finished prompts, and the roles."""
    folder = tmp_path_factory.mktemp("whole")
    model, _, prompts = _networks_by_hand.make(folder / "model", "idle with a substitute", 1, 3, 1)
    return model, prompts, folder / "found", find_roles(model, prompts, out=folder / "found", **SETTINGS)


def test_a_run_that_was_cut_off_goes_on_to_the_same_roles(whole, tmp_path, monkeypatch):
    model, prompts, folder, roles = whole

    def cut(unit, done, whole):
        if unit == "layers" and done > 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_roles(model, prompts, out=tmp_path / "cut", on_progress=cut, **SETTINGS)
    assert 0 < len([*(tmp_path / "cut/judge").iterdir()]) < 5
    again = find_roles(model, prompts, out=tmp_path / "cut", **SETTINGS)
    assert again == roles == read_roles(tmp_path / "cut") == read_roles(folder)
    monkeypatch.setattr(find, "make_probes", None)  # nothing is left to measure
    assert find_roles(model, prompts, out=tmp_path / "cut", **SETTINGS) == roles


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def change_a_number(path):
    path.write_text(path.read_text().replace("0", "1", 3))


def of_another_prompt(path):
    shutil.copy(path.with_name("000005.json"), path)


def of_another_run(path):
    path.write_text(json.dumps(with_checksum({**json.loads(path.read_text()), "run": "0" * 64})))


@pytest.mark.parametrize("damage", [cut, change_a_number, of_another_prompt, of_another_run])
def test_a_file_that_is_damaged_or_of_another_place_is_measured_again(whole, damage, tmp_path, caplog):
    model, prompts, folder, roles = whole
    shutil.copytree(folder, tmp_path / "found")
    damage(tmp_path / "found/judge/000003.json")
    assert find_roles(model, prompts, out=tmp_path / "found", **SETTINGS) == roles
    assert len(caplog.messages) == 1 and "000003.json" in caplog.text and "is done again" in caplog.text
    assert (tmp_path / "found/judge/000003.json").read_bytes() == (folder / "judge/000003.json").read_bytes()


def test_another_run_is_refused(whole, tmp_path):
    model, prompts, folder, _ = whole
    other = dataclasses.replace(model, card=dataclasses.replace(model.card, dtype="bfloat16"))
    with pytest.raises(CallError, match="another run: its dtype is 'float32', now it is 'bfloat16'; choose"):
        find_roles(other, prompts, out=folder, **SETTINGS)
    with pytest.raises(CallError, match="holds the roles of another run: other prompts; choose"):
        find_roles(model, prompts[::-1], out=folder, **SETTINGS)
    weight = next(model.network.parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[0] += 1
        with pytest.raises(CallError, match="roles of another run: the weights in memory were changed"):
            find_roles(model, prompts, out=folder, **SETTINGS)
        weight.copy_(kept)
    identity = json.loads((folder / "run.json").read_text())
    writing = run_folder(folder, "run.json", identity, EvaluationError, "another run")
    with writing, pytest.raises(EvaluationError, match="another run is writing into it"):
        find_roles(model, prompts, out=folder, **SETTINGS)
    (tmp_path / "file").write_text("")
    with pytest.raises(CallError, match=r"holds something else \(file …\), no run.json; choose a new"):
        find_roles(model, prompts, out=tmp_path, **SETTINGS)
