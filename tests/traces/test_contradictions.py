"""A trace whose checksums fit and whose content contradicts itself is refused."""

import shutil

import numpy as np
import pytest
from grown_traces import edit_manifest, make_steps, write_trace
from safetensors import safe_open
from safetensors.numpy import save_file

import sinkscope
from sinkscope.errors import TraceError
from sinkscope.runs.files import sha256_of

PROMPT = "Q: Tom has 7 apples and buys 5 more. How many apples does Tom have now?\nA:"


@pytest.fixture(scope="module")
def recorded(diffusion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "t"
    with sinkscope.recording(diffusion, out=folder):
        sinkscope.generate(diffusion, PROMPT, length=8, steps=8, block=8)
    return folder


def _scale(name, factor):
    return lambda held: held.update({name: held[name] * held[name].dtype.type(factor)})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (lambda held: None, None),
        (_scale("column_sums", 20), "column_sums: expected sums of attention, found"),
        (_scale("value_norms", np.inf), "value_norms: expected finite numbers, found"),
        (lambda held: held["column_sums"].__setitem__((0, 0, 0, 1), np.nan), "expected a number for every token"),
        (lambda held: held.update(masked=1 - held["masked"]), "masked: expected 1 where tokens has the mask token"),
        (lambda held: held["lengths"].fill(1), "lengths: expected the longest to be the [0-9]+ positions of tokens"),
        (lambda held: held["lengths"].__setitem__(0, 1), "expected NaN beyond the length of a canvas"),
        (lambda held: held.update(column_sums=held["column_sums"][:, :1]), "column_sums: expected step 8 × layer"),
        (
            lambda held: held.update(tokens=held["tokens"].astype("f4")),
            "tokens: expected .* of type I32, found .* of type F32",
        ),
    ],
)
def test_tensors_that_cannot_be_are_found_by_verify(recorded, tmp_path, tensors, message):
    """The checksums are made to fit."""
    folder = shutil.copytree(recorded, tmp_path / "t")
    path = folder / "steps-000000.safetensors"
    with safe_open(path, framework="np") as file:
        held, metadata = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    tensors(held)
    save_file(held, path, metadata)
    (listed,) = sinkscope.open_trace(folder).manifest["parts"]
    edit_manifest(folder, parts=[{**listed, "sha256": sha256_of(path)}])
    if message is None:
        sinkscope.open_trace(folder).verify()
        return
    with pytest.raises(TraceError, match=message):
        sinkscope.open_trace(folder).verify()


def test_a_part_of_another_generation(tmp_path):
    """The manifest of an incomplete trace does not list the last part, as a kill leaves it."""
    steps = make_steps(20)
    one, other = write_trace(tmp_path / "one", steps), write_trace(tmp_path / "other", steps[1:] + steps[:1])
    edit_manifest(one, complete=False, parts=sinkscope.open_trace(one).manifest["parts"][:1], steps=16)
    assert sinkscope.open_trace(one).steps == 20
    shutil.copy(other / "steps-000001.safetensors", one)
    with pytest.raises(TraceError, match=r"steps-000001\.safetensors: expected .*, of the generation of steps-000000"):
        _ = sinkscope.open_trace(one).steps
