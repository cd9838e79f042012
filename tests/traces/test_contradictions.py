"""A trace whose checksums fit and whose content contradicts itself is refused."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import sinkscope
from sinkscope.errors import TraceError

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"


@pytest.fixture(scope="module")
def recorded(diffusion, autoregressive, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    for name, model, settings in (
        ("diffusion", diffusion, {"steps": 8, "block": 8}),
        ("autoregressive", autoregressive, {}),
    ):
        with sinkscope.recording(model, out=folder / name):
            sinkscope.generate(model, PROMPT, length=8, **settings)
    return folder


@pytest.fixture
def edited(recorded, tmp_path):
    """Edits the tensors and the manifest of a trace, and makes its checksums fit: ``edited("diffusion", tensors=…,
    manifest=…)``.
    """

    def edit(name, tensors=lambda held: None, manifest=lambda values: None):
        folder = tmp_path / name
        shutil.copytree(recorded / name, folder)
        (path,) = folder.glob("steps-*")
        with safe_open(path, framework="np") as file:
            held, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
        tensors(held)
        save_file(held, path, metadata)
        values = json.loads((folder / "manifest.json").read_text())
        del values["checksum"]
        values["parts"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest(values)
        (folder / "manifest.json").write_text(json.dumps(values))
        return folder

    return edit


def _scale(name, factor):
    return lambda held: held.update({name: held[name] * held[name].dtype.type(factor)})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (_scale("column_sums", 20), "column_sums: expected sums of attention, found"),
        (_scale("value_norms", -1), "value_norms: expected norms from 0 upwards, found"),
        (_scale("value_norms", np.inf), "value_norms: expected finite numbers, found"),
        (lambda held: held.update(masked=1 - held["masked"]), "masked: expected 1 where tokens has the mask token"),
        (lambda held: held.update(tokens=-5 * held["tokens"]), "tokens: expected tokens and positions, found"),
        (lambda held: held["lengths"].fill(1), "lengths: expected the longest to be the [0-9]+ positions of tokens"),
        (lambda held: held["lengths"].__setitem__(0, 1), "expected NaN beyond the length of a canvas"),
    ],
)
def test_values_that_cannot_be_are_found_by_verify(edited, tensors, message):
    trace = sinkscope.open_trace(edited("diffusion", tensors))
    with pytest.raises(TraceError, match=message):
        trace.verify()


def test_a_part_of_another_generation(diffusion, tmp_path):
    """The manifest of an incomplete trace does not list the last part, as a kill leaves it."""
    for name, prompt in (("one", PROMPT), ("other", PROMPT.replace("7", "8"))):
        with sinkscope.recording(diffusion, out=tmp_path / name):
            sinkscope.generate(diffusion, prompt, length=20, steps=20, block=20)
    path = tmp_path / "one" / "manifest.json"
    values = json.loads(path.read_text())
    assert len(values["parts"]) == 2
    del values["checksum"]
    values |= {"complete": False, "parts": values["parts"][:1], "steps": 16}
    path.write_text(json.dumps(values))
    assert sinkscope.open_trace(tmp_path / "one").steps == 20
    shutil.copy(tmp_path / "other/steps-000001.safetensors", tmp_path / "one")
    with pytest.raises(
        TraceError,
        match=r"steps-000001\.safetensors: expected a part of the generation of steps-000000\.safetensors, found",
    ):
        _ = sinkscope.open_trace(tmp_path / "one").steps


def test_one_trace_beside_numbered_ones(recorded, tmp_path):
    shutil.copytree(recorded / "diffusion", tmp_path / "t")
    shutil.copytree(recorded / "diffusion", tmp_path / "t" / "000000")
    with pytest.raises(
        TraceError,
        match=r"t: expected one trace or numbered ones, found both \(000000\)",
    ):
        sinkscope.open_traces(tmp_path / "t")


def test_what_was_not_edited_is_read(edited):
    for name in ("diffusion", "autoregressive"):
        trace = sinkscope.open_trace(edited(name))
        assert trace.column_sums[0].size and sinkscope.analyse([trace]).prompts == 1
