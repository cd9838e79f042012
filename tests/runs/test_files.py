import gzip
import json
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from sinkscope.errors import TraceError
from sinkscope.runs import files

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def write(path, content):
    files.write_whole(path, content, TraceError, "make room")


@given(document=VALUES)
def test_what_is_printed_is_read_again(document):
    found = files.parse_json(files.json_text(document), "text", TraceError)
    assert found == json.loads(json.dumps(document), parse_constant=lambda name: None)


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "one.json"
    write(path, b"old")

    def pieces():
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, pieces())
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    with pytest.raises(TraceError, match="cannot be written"):
        files.write_together({path: b"new", tmp_path / "nowhere" / "two": b"new"}, TraceError, "make room")
    assert path.read_bytes() == b"old"


@given(place=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error(place, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("sealed") / "one.safetensors"
    tensors = {"column": np.arange(6, dtype=np.float32).reshape(2, 3), "key": np.arange(4)}
    write(path, files.sealed(save(tensors, {"update": "7"})))
    assert files.compare_sealed(path, TraceError)["update"] == "7"
    assert all(np.array_equal(load_file(path)[name], one) for name, one in tensors.items())
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)
    try:
        metadata = files.compare_sealed(path, TraceError)
    except TraceError:
        return
    # Only where the name of the checksum itself was hit is there none to compare with.
    assert files.SHA256 not in metadata


def test_an_object_holds_its_checksum():
    document = files.with_checksum({"rows": [1, 2], "name": "x"})
    files.compare_checksum(json.loads(json.dumps(document)), "here", TraceError)
    with pytest.raises(TraceError, match="checksum"):
        files.compare_checksum({**document, "rows": [1, 3]}, "here", TraceError)


def test_json_lines_plain_and_packed(tmp_path):
    text = '{"a": 1}\n\n{"b": "\u2028"}\n'
    (tmp_path / "plain").write_text("\ufeff" + text, encoding="utf-8")
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    for name in ("plain", "packed"):
        lines = files.numbered(files.read_text(tmp_path / name, TraceError))
        assert list(lines) == [(1, '{"a": 1}'), (3, '{"b": "\u2028"}')]
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(TraceError, match="cannot be read"):
        files.read_text(tmp_path / "packed", TraceError)


@dataclass(frozen=True)
class Part:
    name: str
    unit: Literal["queries", "percent"]
    shape: tuple[int, ...] = ()


def test_a_dataclass_is_the_schema():
    found = files.validated(Part, {"name": "x", "unit": "queries", "shape": [2, 3]}, "part.json", TraceError)
    assert found == Part("x", "queries", (2, 3))
    with pytest.raises(TraceError, match=r"part\.json: unit: .*'queries' or 'percent', found 'share'; write it again"):
        files.validated(Part, {"name": "x", "unit": "share"}, "part.json", TraceError, "write it again")
