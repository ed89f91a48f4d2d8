import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labeldp.features.cache import read_metadata, read_tensors, write_tensors


@given(
    shapes=st.dictionaries(st.text("abc.0", min_size=1, max_size=5), st.lists(st.integers(0, 3), max_size=3)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]),
)
def test_what_is_written_is_read(shapes, dtype, tmp_path_factory):
    path = tmp_path_factory.mktemp("tensors") / "x.safetensors"
    tensors = {name: (100 * torch.rand(shape)).to(dtype) for name, shape in shapes.items()}
    write_tensors(path, tensors)
    found = read_tensors(path)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)
    assert read_metadata(path) == {}
    assert list(path.parent.iterdir()) == [path]


def by_hand(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_file_made_by_the_published_layout(tmp_path):
    """The format's own description: header length, header, numbers; here [[1, 2], [3, 4]] as float32."""
    header = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"by": "hand"}}
    path = tmp_path / "w.safetensors"
    path.write_bytes(by_hand(header, struct.pack("<4f", 1, 2, 3, 4)))
    assert read_tensors(path)["w"].tolist() == [[1, 2], [3, 4]]
    assert read_metadata(path) == {"by": "hand"}


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x01\x02",
        struct.pack("<Q", 1 << 60) + b"{}",
        struct.pack("<Q", 4) + b"nope",
        struct.pack("<Q", 2) + b"[]",
        by_hand({"w": GOOD}, b"\0" * 7),
        by_hand({"w": GOOD | {"shape": [3]}}, b"\0" * 8),
        by_hand({"w": GOOD | {"data_offsets": [-8, 0]}}, b"\0" * 8),
        by_hand({"w": GOOD | {"dtype": "F99"}}, b"\0" * 8),
        by_hand({"w": GOOD | {"shape": [-1, -2]}}, b"\0" * 8),
        by_hand({"w": 3}, b"\0" * 8),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, content):
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.safetensors"):
        read_tensors(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "w.safetensors"
    write_tensors(path, {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="'z'"):
        write_tensors(path, {"w": torch.zeros(2), "z": torch.zeros(2, dtype=torch.complex128)})
    assert torch.equal(read_tensors(path)["w"], torch.ones(2))


def test_half_takes_half_the_bytes(tmp_path):
    for dtype, size in ((torch.float32, 4), (torch.float16, 2)):
        write_tensors(tmp_path / "w", {"w": torch.zeros(1000, dtype=dtype)})
        assert (tmp_path / "w").stat().st_size < size * 1000 + 120
