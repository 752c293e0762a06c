"""A tensor file is proved by its header before its data is used."""

from __future__ import annotations

import json
import os
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from pss_engine.errors import StateFormatError
from pss_engine.state.tensor_file import _DTYPES, MAX_HEADER_BYTES, TensorEntry, TensorFile

DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
)
GOOD = save({"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})


def with_header(header: dict, data: bytes = b"\0" * 8) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def refused(path, data, match):
    path.write_bytes(data)
    with pytest.raises(StateFormatError, match=match) as caught, TensorFile(path) as file:
        file.load()
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_entries_and_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    with TensorFile(path) as file:
        assert file.entries == {"a": TensorEntry("F32", (2, 3), 0, 24), "b": TensorEntry("BF16", (4,), 24, 8)}
        assert file.load()["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.uint16, torch.float8_e4m3fn], ids=str)
def test_tensors_of_any_dtype_may_begin_at_any_byte(tmp_path, dtype):
    values = (torch.arange(5) % 2).to(dtype)
    kind = next(name for name, (_, known) in _DTYPES.items() if getattr(torch, known) == dtype)
    end = 3 + values.nbytes
    header = {"a": entry((3,), (0, 3), "I8"), "b": entry((5,), (3, end), kind), "c": entry((0, 4), (end, end), kind)}
    path = tmp_path / "x.safetensors"
    path.write_bytes(with_header(header, b"\1\2\3" + values.view(torch.uint8).numpy().tobytes()))
    with TensorFile(path) as file:
        found = file.load()
    assert found["a"].tolist() == [1, 2, 3]
    assert (found["b"].dtype, found["b"].tolist()) == (dtype, values.tolist())
    assert found["c"].shape == (0, 4)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "truncated: 0 bytes"),
        (GOOD[:7], "truncated: 7 bytes"),
        (GOOD[:20], "truncated: header of"),
        (GOOD[:-1], "truncated: 31 bytes of tensor data in the file, the header declares 32"),
        (GOOD + b"x", "bytes after the last tensor"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", f"at most {MAX_HEADER_BYTES} allowed"),
        (struct.pack("<Q", 2**63) + b"{}", f"at most {MAX_HEADER_BYTES} allowed"),
        (with_header({"a": entry(), "b": entry(offsets=(4, 12))}), "must follow on at 8"),
        (with_header({"a": entry(offsets=(8, 16))}), "must follow on at 0"),
        (with_header({"a": entry(shape=(3,))}), "takes 12 bytes, the header gives it 8"),
        (with_header({"a": entry(shape=(2**62, 2**62))}), "takes"),
        (with_header({"a": entry(shape=(-2,))}), "non-negative"),
        (with_header({"a": entry(offsets=(8, 0))}), "gives it -8"),
        (with_header({"a": entry(dtype="F3")}), "dtype 'F3' is unknown; choices: F64"),
        (with_header({"a": 3}), "needs dtype, shape and data_offsets"),
        (struct.pack("<Q", 7) + b'{"a":1,', "not valid JSON"),
        (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "the name 'a' is repeated"),
        (struct.pack("<Q", 40000) + b"[" * 40000, "not valid JSON"),
        (struct.pack("<Q", 2) + b"[]", "an object is needed"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, data, match):
    refused(tmp_path / "x.safetensors", data, match)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255), st.integers(0, len(GOOD)))
@settings(max_examples=200, deadline=None)
def test_any_damage_loads_or_is_refused_but_never_crashes(tmp_path_factory, at, flip, length):
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    data = bytearray(GOOD)
    data[at] ^= flip
    path.write_bytes(bytes(data[:length]))
    try:
        with TensorFile(path) as file:
            entries, tensors = file.entries, file.load()
    except StateFormatError:
        return
    assert length == len(GOOD)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {n: e.shape for n, e in entries.items()}


def test_missing_links_and_other_things_are_refused(tmp_path):
    good, link, pipe = tmp_path / "good", tmp_path / "link", tmp_path / "pipe"
    good.write_bytes(GOOD)
    link.symlink_to(good)
    os.mkfifo(pipe)
    with TensorFile(link) as file:
        assert set(file.entries) == {"a", "b"}
    for path, match in ((link, "symbolic link"), (pipe, "not a regular file"), (tmp_path / "none", "no such file")):
        with pytest.raises(StateFormatError, match=match):
            TensorFile(path, follow_symlinks=False)
