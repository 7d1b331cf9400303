"""Damaged, huge and foreign files: every reader names the file, quickly and in little memory.

Any other exception than CheckpointError would end the server, and garbage would be drawn with.
"""

import os
import pickle
import struct
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pipeline.checkpoints.tensors import TensorFiles, open_file, open_tensors
from pipeline.checkpoints.weights import match_weights
from pipeline.errors import CheckpointError
from tests.damaged import DAMAGED, ENTRIES, GOOD, NAME, TRUNCATED, Header, Reader, content, refused

TENSORS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.arange(4, dtype=np.float16),
}


def read_folder(file: Path) -> dict[str, np.ndarray]:
    return _read_all(open_tensors(file.parent))


def read_file(file: Path) -> dict[str, np.ndarray]:
    return _read_all(open_file(file))


def _read_all(files: TensorFiles) -> dict[str, np.ndarray]:
    with files:
        return {name: tensor.read() for name, tensor in files.items()}


READERS = [read_folder, read_file]


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return request.param


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / NAME)
    return tmp_path / NAME


def test_the_readers_read_what_is_not_damaged(reader: Reader, file: Path) -> None:
    np.testing.assert_equal(reader(file), TENSORS)
    file.write_bytes(content(ENTRIES))
    zeros = {name: np.zeros_like(values) for name, values in TENSORS.items()}
    np.testing.assert_equal(reader(file), zeros)


TRUNCATED |= {f"all but {lost} bytes": GOOD[:-lost] for lost in (1, 8, 31, 32, 33)}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused(damage: str, reader: Reader, file: Path) -> None:
    file.write_bytes(DAMAGED[damage])
    assert len(refused(reader, file)) < 2000


class Canary:
    """An object that a pickle would make by creating a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.file),)


def test_a_pickle_is_not_run(reader: Reader, file: Path, tmp_path: Path) -> None:
    file.write_bytes(pickle.dumps(Canary(tmp_path / "ran")))
    refused(reader, file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mebibytes", [40, 99, 2000])
def test_a_huge_header_takes_no_memory(mebibytes: int, reader: Reader, file: Path) -> None:
    """The file is as long as it says, and takes no place on the disk."""
    with file.open("wb") as output:
        output.write(struct.pack("<Q", mebibytes * 2**20))
        output.truncate(8 + mebibytes * 2**20)
    tracemalloc.start()
    try:
        assert "header" in refused(reader, file)
        assert tracemalloc.get_traced_memory()[1] < 2 * 2**20
    finally:
        tracemalloc.stop()


def test_a_header_of_many_tensors_is_read(reader: Reader, file: Path) -> None:
    """The largest files have some thousands."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    file.write_bytes(content({f"t{number}": empty for number in range(20_000)}, b""))
    assert reader(file)


def run_to_the_end(function: Callable[[], object]) -> None:
    """Run a function that might wait for ever."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "dangling link", "device"])
def test_no_regular_file(kind: str, file: Path) -> None:
    file.unlink()
    {
        "folder": lambda: file.mkdir(),
        "pipe": lambda: os.mkfifo(file),
        "loop": lambda: file.symlink_to(file),
        "dangling link": lambda: file.symlink_to(file.with_name("nothing")),
        "device": lambda: file.symlink_to("/dev/zero"),
    }[kind]()
    messages: list[str] = []
    for reader in READERS:
        run_to_the_end(lambda reader=reader: messages.append(refused(reader, file)))
    assert len(messages) == len(READERS)


def other_values() -> dict[str, np.ndarray]:
    return {name: values + 1 for name, values in TENSORS.items()}


def test_a_file_replaced_while_it_is_read_is_read_to_the_end(file: Path) -> None:
    """A rename leaves the old file to the reader, as a whole."""
    with open_file(file) as tensors:
        first = tensors["a"].read()
        save_file(other_values(), file.with_name("new"))
        file.with_name("new").replace(file)
        np.testing.assert_equal({"a": first, "b": tensors["b"].read()}, TENSORS)


def test_a_file_overwritten_while_it_is_read(file: Path) -> None:
    with open_file(file) as tensors:
        tensors["a"].read()
        file.write_bytes(content(ENTRIES))
        os.utime(file, (1, 1))  # clocks of file systems are coarse
        with pytest.raises(CheckpointError, match=rf"{file}: the file changed while it was read"):
            tensors["b"].read()


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_file_cut_short_while_it_is_read(kept: int, file: Path) -> None:
    with open_file(file) as tensors:
        tensors["a"].read()
        os.truncate(file, kept % file.stat().st_size)
        with pytest.raises(CheckpointError, match=rf"{file}: .*changed"):
            tensors["b"].read()


class Linear(nnx.Module):
    """A module whose weights are the tensor `a`."""

    def __init__(self) -> None:
        self.a = nnx.Param(jnp.zeros((2, 3)))


@pytest.mark.parametrize("other", [{"a": TENSORS["a"] + 1}, {"b": TENSORS["b"]}, {}])
@pytest.mark.parametrize("opened", [open_file, lambda file: open_tensors(file.parent)])
def test_a_file_replaced_before_its_weights_are_read(
    other: dict[str, np.ndarray], opened: Callable[[Path], TensorFiles], file: Path
) -> None:
    """Weights are matched and then read; a model of two files would be garbage."""
    save_file({"a": TENSORS["a"]}, file)
    pending = match_weights(Linear(), partial(opened, file))
    np.testing.assert_array_equal(pending.load(jnp.asarray).a.get_value(), TENSORS["a"])
    save_file(other, file.with_name("new"))
    file.with_name("new").replace(file)
    with pytest.raises(CheckpointError, match=rf"{file}: the file was replaced"):
        pending.load(jnp.asarray)


def test_a_symlink_to_a_file_is_read(reader: Reader, file: Path) -> None:
    """The Hub's cache consists of them."""
    file.rename(file.with_name("blob"))
    file.symlink_to("blob")
    np.testing.assert_equal(reader(file), TENSORS)


# Values that a header's fields have, or might have.
_NUMBERS = st.one_of(
    st.integers(-2, 40), st.sampled_from([2**31, 2**32, 2**63, 2**64, -(2**63)]), st.floats()
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
_DTYPES = st.sampled_from(["F32", "F16", "BF16", "F8_E4M3", "I64", "U8", "BOOL", "F64", "F4", "?"])
_ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": _DTYPES | _ANYTHING,
        "shape": st.lists(_NUMBERS, max_size=4) | _ANYTHING,
        "data_offsets": st.lists(_NUMBERS, min_size=2, max_size=2) | _ANYTHING,
        "extra": _ANYTHING,
    },
)
_HEADER = st.dictionaries(
    st.sampled_from(["a", "b", "__metadata__", ""]) | st.text(max_size=5), _ENTRY | _ANYTHING
)


def read_or_refuse(file: Path) -> None:
    """Assert that every reader reads a file or names it, and that all agree."""
    messages = set()
    for reader in READERS:
        try:
            reader(file)
            messages.add(None)
        except CheckpointError as error:
            messages.add(str(error))
    assert len(messages) == 1
    assert messages == {None} or str(file) in messages.pop()


@pytest.fixture
def fuzzed(tmp_path: Path) -> Path:
    return tmp_path / NAME


FUZZING = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZING
@given(header=_HEADER, data=st.binary(max_size=40))
@example(header=ENTRIES, data=bytes(32))
def test_fuzzed_headers(header: Header, data: bytes, fuzzed: Path) -> None:
    fuzzed.write_bytes(content(header, data))
    read_or_refuse(fuzzed)


@FUZZING
@given(
    position=st.integers(0, len(GOOD) - 1),
    replacement=st.binary(max_size=4),
    removed=st.integers(0, 4),
)
def test_fuzzed_bytes(position: int, replacement: bytes, removed: int, fuzzed: Path) -> None:
    fuzzed.write_bytes(GOOD[:position] + replacement + GOOD[position + removed :])
    read_or_refuse(fuzzed)


@FUZZING
@given(junk=st.binary(max_size=64))
def test_fuzzed_files(junk: bytes, fuzzed: Path) -> None:
    fuzzed.write_bytes(junk)
    read_or_refuse(fuzzed)
