"""Single files whose tensors are not what their names promise: always a CheckpointError."""

import json
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError
from pipeline.families.reader import FamilyReader
from pipeline.runtime.loading import find_networks
from tests.damaged import DAMAGED, NAME, Reader, refused
from tests.original_layout import export
from tests.single_files import thin_folder

# Kinds of file, and the beginning of the names of a layer of each network.
LAYERS = {
    "sd_1": (".input_blocks.1", ".text_model.encoder.layers.0", ".encoder.down.0"),
    "sd_2": (".output_blocks.2", ".resblocks.0", ".decoder.up.1"),
    "sdxl": (".input_blocks.1", ".resblocks.1", ".encoder.down.0.block.0"),
}
KINDS = tuple(LAYERS)
WIDTHS = {"F64": 8, "F32": 4, "I64": 8, "F16": 2, "BF16": 2, "U8": 1}
# Tensors' names, with the dtype and the shape of each.
Tensors = dict[str, tuple[str, list[int]]]


def recognise(file: Path) -> Checkpoint:
    """Find the kind of a single file and the sizes of its networks."""
    return fetch(str(file), None, FamilyReader())


def read(file: Path) -> None:
    """Find a single file's networks, as a start of the server does before it loads them."""
    find_networks(recognise(file), np.dtype(np.float32))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensors]:
    """Return the tensors of a good file of each kind."""
    found = {}
    for kind in KINDS:
        folder = tmp_path_factory.mktemp("good") / kind
        export(thin_folder(folder, kind), folder / NAME)
        found[kind] = header_of(folder / NAME)
        shutil.rmtree(folder)
    return found


def header_of(file: Path) -> Tensors:
    with file.open("rb") as content:
        header = json.loads(content.read(int.from_bytes(content.read(8), "little")))
    del header["__metadata__"]
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


def write(file: Path, tensors: Tensors) -> None:
    """Write a file of zeros that take no place on the disk."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + WIDTHS[dtype] * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        output.truncate(8 + len(text) + end)


@pytest.mark.parametrize("kind", KINDS)
def test_the_good_files_are_read(kind: str, good: dict[str, Tensors], tmp_path: Path) -> None:
    write(tmp_path / NAME, good[kind])
    read(tmp_path / NAME)


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused(damage: str, tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_bytes(DAMAGED[damage])
    refused(read, file)


@pytest.mark.parametrize(
    ("numbers", "kind"),
    zip(["9" * 12, "9" * 5000, "-1", "\N{SUPERSCRIPT TWO}", ""], cycle(KINDS), strict=False),
)
def test_numbers_of_layers_that_no_model_has(
    numbers: str, kind: str, good: dict[str, Tensors], tmp_path: Path
) -> None:
    """A large number is no reason to count up to it."""
    for part in LAYERS[kind]:
        renamed = part.rpartition(".")[0] + f".{numbers}."
        tensors = {name.replace(f"{part}.", renamed): entry for name, entry in good[kind].items()}
        assert tensors.keys() != good[kind].keys()
        write(tmp_path / NAME, tensors)
        refused(read, tmp_path / NAME)


# A change of a file's tensors: removes one, renames a part of its name, or gives it another shape.
_SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 4, 9, 64, 77, 1024]), max_size=5)
_PARTS = st.sampled_from(["0", "1", "2", "99", "weight", "bias", "conv", "op", "attn1", "é", ""])
_CHANGES = st.tuples(
    st.sampled_from(["remove", "remove beginning", "rename", "copy", "reshape", "retype"]),
    st.integers(0, 10**6),
    st.integers(0, 10),
    _PARTS,
    _SHAPES,
    st.sampled_from([*WIDTHS]),
)


def change(
    tensors: Tensors, kind: str, which: int, place: int, part: str, shape: list, dtype: str
) -> Tensors:
    names = list(tensors)
    name = names[which % len(names)]
    parts = name.split(".")
    parts[place % len(parts)] = part
    renamed, beginning = ".".join(parts), ".".join(parts[: place % len(parts) + 1])
    entry = tensors[name]
    return {
        "remove": lambda: {key: value for key, value in tensors.items() if key != name},
        "remove beginning": lambda: {
            key: value for key, value in tensors.items() if not key.startswith(beginning[:-1])
        },
        "rename": lambda: {
            renamed if key == name else key: value for key, value in tensors.items()
        },
        "copy": lambda: tensors | {renamed: entry},
        "reshape": lambda: tensors | {name: (entry[0], shape)},
        "retype": lambda: tensors | {name: (dtype, entry[1])},
    }[kind]()


def changed(tensors: Tensors, changes: list[tuple[Any, ...]]) -> Tensors:
    for each in changes:
        tensors = change(tensors, *each) or tensors
    return tensors


FUZZING = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ANY_KIND, ANY_CHANGES = st.sampled_from(KINDS), st.lists(_CHANGES, min_size=1, max_size=3)


@pytest.mark.slow
@FUZZING
@given(kind=ANY_KIND, changes=ANY_CHANGES)
def test_fuzzed_tensors(
    kind: str, changes: list[tuple[Any, ...]], good: dict[str, Tensors], tmp_path: Path
) -> None:
    """The kind and the sizes of the networks are found, or the file is refused."""
    write(tmp_path / NAME, changed(good[kind], changes))
    read_or_refuse(tmp_path / NAME, recognise)


@pytest.mark.slow
@settings(FUZZING, max_examples=15)  # each takes a second
@given(kind=ANY_KIND, changes=ANY_CHANGES)
def test_fuzzed_tensors_of_all_networks(
    kind: str, changes: list[tuple[Any, ...]], good: dict[str, Tensors], tmp_path: Path
) -> None:
    write(tmp_path / NAME, changed(good[kind], changes))
    read_or_refuse(tmp_path / NAME, read)


def read_or_refuse(file: Path, reader: Reader) -> None:
    try:
        reader(file)
    except CheckpointError as error:
        message = str(error)
        assert str(file) in message
