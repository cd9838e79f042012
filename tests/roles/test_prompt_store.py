"""Files of finished prompts: what was measured is read back; what is damaged or misplaced is measured again."""

import copy
import dataclasses
import json
import shutil

import _networks_by_hand
import pytest
from _networks_by_hand import SETTINGS

from sinkscope.errors import CallError
from sinkscope.roles import find, find_roles
from sinkscope.runs.files import with_checksum


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
    assert len(caplog.messages) == 1 and "000003.json" in caplog.text and "is measured again" in caplog.text
    assert (tmp_path / "found/judge/000003.json").read_bytes() == (folder / "judge/000003.json").read_bytes()


def test_another_dtype_is_another_run(whole):
    model, prompts, folder, _ = whole
    other = dataclasses.replace(model, card=dataclasses.replace(model.card, dtype="bfloat16"))
    converted = dataclasses.replace(other, network=copy.deepcopy(model.network).bfloat16())  # whose hashes differ too
    for one in (other, converted):
        with pytest.raises(CallError, match="another run: its dtype is 'float32', now it is 'bfloat16'; choose"):
            find_roles(one, prompts, out=folder, **SETTINGS)
