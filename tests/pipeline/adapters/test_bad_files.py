"""Damaged and hostile files end in an error that names the file, and nothing else."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from pipeline.adapters import reader
from pipeline.adapters.adapter import Adapter
from pipeline.adapters.reader import read_adapter
from pipeline.checkpoints.tensors import MAX_HEADER_BYTES, Tensor
from pipeline.errors import CheckpointError

INVENTORY = {
    "unet": {
        "conv_in.weight": (4, 2, 3, 3),
        "conv_in.bias": (4,),
        "conv_norm_out.weight": (4,),
        "conv_norm_out.bias": (4,),
        "mid_block.attentions.0.proj_in.weight": (4, 4),
    }
}
GOOD = {
    "lora_unet_conv_in.lora_down.weight": np.ones((1, 2, 3, 3), np.float32),
    "lora_unet_conv_in.lora_up.weight": np.ones((4, 1, 1, 1), np.float32),
}


def read(file: Path) -> Adapter:
    return read_adapter(file, "a", INVENTORY)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "a.safetensors"
    file.write_bytes(save(GOOD))
    return file


def refusal(file: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


def read_or_refused(file: Path) -> Adapter | None:
    """Return the adapter, or None if the file was refused by an error that names it."""
    try:
        return read(file)
    except CheckpointError as error:
        if str(file) not in str(error):
            raise AssertionError("the message does not name the file") from error
        return None


def test_the_file_is_good(file: Path) -> None:
    assert list(read(file).changes["unet"]) == ["conv_in.weight"]


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("length", [0, 5, 8, 20, -1, -7])
def test_truncated(file: Path, length: int) -> None:
    file.write_bytes(file.read_bytes()[:length])
    refusal(file)


def test_bytes_behind_the_end(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"more")
    assert "not a valid safetensors file" in refusal(file)


@pytest.mark.parametrize("length", [2**63, 2**40, MAX_HEADER_BYTES + 1])
def test_huge_headers_are_not_read(file: Path, length: int) -> None:
    with file.open("wb") as stream:
        stream.write(length.to_bytes(8, "little"))
        stream.truncate(MAX_HEADER_BYTES + 100)
    refusal(file)


HEADERS: dict[str, Any] = {
    "no JSON": b"{",
    "no UTF-8": b'{"\xff": 1}',
    "a list": [],
    "nested": b"[" * 100_000,
    "a number for a tensor": {"a": 3},
    "negative": {"a": entry([-1, 4], 0, 16)},
    "a fraction": {"a": entry([1.5], 0, 4)},
    "a text in the shape": {"a": entry(["1"], 0, 4)},
    "an absurd shape": {"a": entry([2**62, 2**62], 0, 16)},
    "beyond the end": {"a": entry([8], 0, 32)},
    "overlapping": {"a": entry([4], 0, 16), "b": entry([4], 0, 16)},
    "a hole": {"a": entry([2], 0, 8), "b": entry([1], 12, 16)},
    "backwards": {"a": entry([4], 16, 0)},
    "a wrong length": {"a": entry([3], 0, 16)},
    "an unknown dtype": {"a": entry([4], 0, 16, "C64")},
    "notes that are no texts": {"__metadata__": {"a": 1}, "a": entry([4], 0, 16)},
    "one name twice": b'{"a": %b, "a": %b}' % (2 * (json.dumps(entry([4], 0, 16)).encode(),)),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers(file: Path, name: str) -> None:
    file.write_bytes(with_header(HEADERS[name], bytes(16)))
    refusal(file)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "opened",)

    for number, protocol in enumerate((2, 4, 5)):
        file = tmp_path / f"{number}.safetensors"
        file.write_bytes(pickle.dumps(Bomb(), protocol))
        assert "pickle, which can run code and is never opened" in refusal(file)
    with zipfile.ZipFile(tmp_path / "zip.safetensors", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb()))
    assert "pickle, which can run code and is never opened" in refusal(tmp_path / "zip.safetensors")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("content", "meaning"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!doctype html><html>", "a web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"GGUF\x03\0\0\0\1\0\0\0", "GGUF"),
    ],
)
def test_other_files_under_the_name(file: Path, content: bytes, meaning: str) -> None:
    file.write_bytes(content)
    assert meaning in refusal(file)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / "none.safetensors")


def test_a_file_that_is_replaced_while_it_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = file.with_name("b.safetensors")
    other.write_bytes(save({name: 2 * value for name, value in GOOD.items()}))
    open_file = reader.open_file

    def replaced(path: Path, *options: Any) -> Any:
        opened = open_file(path, *options)
        other.replace(path)
        return opened

    monkeypatch.setattr(reader, "open_file", replaced)
    assert "the file changed while it was read" in refusal(file)


def test_a_file_that_is_overwritten_while_it_is_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_tensor = Tensor.read
    cut = file.stat().st_size - 4

    def overwritten(tensor: Tensor) -> np.ndarray:
        with file.open("r+b") as stream:
            stream.truncate(cut)
        return read_tensor(tensor)

    monkeypatch.setattr(Tensor, "read", overwritten)
    assert "changed while it was read" in refusal(file)


KEYS = st.sampled_from(
    [
        f"{module}.{part}"
        for module in ("lora_unet_conv_in", "unet.conv_in", "lora_unet_out_0", "lora_unet_other")
        for part in (
            *("lora_down.weight", "lora_up.weight", "lora_mid.weight", "alpha", "dora_scale"),
            *("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"),
            *("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2"),
            *("diff", "diff_b", "w_norm", "b_norm", "set_weight", "lora_B.bias", "oft_blocks"),
        )
    ]
)
SIZES = st.integers(0, 5)
SHAPES = st.one_of(
    st.sampled_from(
        [(1, 2, 3, 3), (4, 1, 1, 1), (4, 1), (1, 18), (4, 2, 3, 3), (1, 1, 3, 3), (4,)]
    ),
    st.lists(SIZES, max_size=5).map(tuple),
)


@pytest.mark.lasting
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes=st.dictionaries(KEYS, SHAPES, max_size=6))
def test_any_parts_and_shapes_are_read_or_refused(
    file: Path, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Changes that are returned have their tensors' shapes."""
    file.write_bytes(save({key: np.ones(shape, np.float32) for key, shape in shapes.items()}))
    adapter = read_or_refused(file)
    for name, change in adapter.changes["unet"].items() if adapter else ():
        weight = np.ones(INVENTORY["unet"][name], np.float32)
        assert change.delta(weight, 0.5).shape == weight.shape


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "I64", "F8_E4M3", "BOOL", "X"]) | VALUES,
        "shape": st.lists(st.integers(-2, 2**64), max_size=4) | VALUES,
        "data_offsets": st.lists(st.integers(-2, 40), max_size=3) | VALUES,
    }
)


@pytest.mark.lasting
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    header=st.dictionaries(KEYS | st.just("__metadata__"), ENTRIES | VALUES, max_size=3),
    data=st.binary(max_size=40),
)
def test_any_header_is_read_or_refused(file: Path, header: dict[str, Any], data: bytes) -> None:
    file.write_bytes(with_header(header, data))
    read_or_refused(file)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_flipped_byte_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    content = bytearray(save(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    read_or_refused(file)
