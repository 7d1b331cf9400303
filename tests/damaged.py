"""Damaged files of tensors, and their readers."""

import json
import pickle
import struct
from collections.abc import Callable
from os.path import realpath
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import CheckpointError

Header = dict[str, Any]
NAME = "model.safetensors"
DEEP = 100_000
ENTRIES: Header = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]},
}
Reader = Callable[[Path], object]


def open_descriptors(file: Path) -> int:
    """Return how often this process has a file open; 0 where the system does not say."""
    return sum(realpath(link) == realpath(file) for link in Path("/proc/self").glob("fd/*"))


def refused(reader: Reader, file: Path) -> str:
    """Assert that a file is refused, by name, and closed; return the message."""
    with pytest.raises(CheckpointError) as caught:
        reader(file)
    assert open_descriptors(file) == 0
    assert str(file) in str(caught.value)
    return str(caught.value)


def raw(header: bytes, data: bytes = bytes(32), length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def content(header: object, data: bytes = bytes(32)) -> bytes:
    return raw(json.dumps(header).encode(), data)


def changed(**entry: Any) -> bytes:
    """Return a file whose first tensor's entry has other values; `...` leaves a key out."""
    other = {key: value for key, value in (ENTRIES["a"] | entry).items() if value is not ...}
    return content(ENTRIES | {"a": other})


GOOD = content(ENTRIES)
TRUNCATED = {f"the first {kept} bytes": GOOD[:kept] for kept in (0, 1, 7, 8, 9, 60)}
LENGTHS = {
    f"a header of {length} bytes": raw(json.dumps(ENTRIES).encode(), length=length)
    for length in (0, 1, 2**20, 2**31, 2**32, 2**47, 2**63, 2**64 - 1)
}
HEADERS = {
    "no object": content([ENTRIES]),
    "null": content(None),
    "a number": content(3),
    "a text": content("a"),
    "no JSON": raw(b"{'a': 1}"),
    "not finished": raw(b'{"a": {"dtype": "F32", "shape": [2, 3]'),
    "not a number": raw(b'{"a": NaN}'),
    "not UTF-8": raw(b'{"\xff\xfe": 1}'),
    "half a surrogate": raw(
        b'{"\\ud800": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}'
    ),
    "deep nesting": raw(b'{"a":' + b"[" * DEEP + b"]" * DEEP + b"}"),
    "many digits": raw(b'{"a": ' + b"9" * 100_000 + b"}"),
    "the same tensor twice": raw(
        b'{"a": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},'
        b' "a": {"dtype": "I32", "shape": [8], "data_offsets": [0, 32]}}'
    ),
    "two offsets of one tensor": raw(
        b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], "data_offsets": [16, 32]},'
        b' "b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}'
    ),
    "too many tensors": content(
        {f"n{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(60_000)},
        b"",
    ),
    "a long name": content({"a" * 2000: ENTRIES["a"], "b": ENTRIES["b"]}),
    "many axes": changed(shape=[1] * 100 + [2, 3]),
    "text behind it": raw(json.dumps(ENTRIES).encode() + b"{}"),
    "notes that are no texts": content(ENTRIES | {"__metadata__": {"format": 3}}),
    "notes that are no object": content(ENTRIES | {"__metadata__": ["pt"]}),
}
SHAPES = {
    "an unknown dtype": changed(dtype="F33"),
    "a dtype that is no text": changed(dtype=32),
    "a dtype that is not supported": changed(dtype="BOOL", shape=[24]),
    "complex numbers": changed(dtype="C64", shape=[3]),
    "a wider dtype": changed(dtype="F64"),
    "a narrower dtype": changed(dtype="F16"),
    "no dtype": changed(dtype=...),
    "no shape": changed(shape=...),
    "no offsets": changed(data_offsets=...),
    "an entry that is no object": content(ENTRIES | {"a": [0, 24]}),
    "a shape that is no list": changed(shape=6),
    "a negative side": changed(shape=[-2, -3]),
    "a fraction": changed(shape=[1.5, 4]),
    "a side that is a text": changed(shape=["2", 3]),
    "a larger shape": changed(shape=[2, 4]),
    "a smaller shape": changed(shape=[2, 2]),
    "a shape beyond 64 bits": changed(shape=[2**63, 2]),
    "sides whose product wraps around to the right one": changed(shape=[2**32, 2**32, 6]),
    "a side beyond 64 bits": changed(shape=[2**70]),
    "nothing of something": changed(shape=[0, 3]),
    "a million sides": changed(shape=[1] * 10**6 + [2]),
}
OFFSETS = {
    "overlap": changed(data_offsets=[8, 32]),
    "a gap": content(ENTRIES | {"a": ENTRIES["a"] | {"shape": [5], "data_offsets": [0, 20]}}),
    "a beginning later than nothing": content(
        {"b": {"dtype": "F16", "shape": [4], "data_offsets": [24, 32]}}
    ),
    "the same bytes twice": content(ENTRIES | {"c": ENTRIES["b"]}),
    "backwards": changed(data_offsets=[24, 0]),
    "before the data": changed(data_offsets=[-24, 0]),
    "behind the data": changed(data_offsets=[32, 56]),
    "beyond 64 bits": changed(data_offsets=[2**64, 2**64 + 24]),
    "one offset": changed(data_offsets=[24]),
    "three offsets": changed(data_offsets=[0, 12, 24]),
    "texts": changed(data_offsets=["0", "24"]),
    "bytes that no tensor has": content(ENTRIES, bytes(40)),
}
OTHER_FORMATS = {
    "a pickle": pickle.dumps({"a": np.ones(64)}, protocol=4),
    "an old pickle": pickle.dumps({"a": 1}, protocol=0),
    "torch's archive": b"PK\x03\x04" + bytes(200),
    "a web page": b"<!doctype html><title>Sign in</title>" + bytes(64),
    "a pointer of Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    ),
    "GGUF": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(64),
    "an index": b'{"weight_map": {"a": "model.safetensors"}}',
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
}
DAMAGED = TRUNCATED | LENGTHS | HEADERS | SHAPES | OFFSETS | OTHER_FORMATS
