"""Weights on disk: choice of the files, reading, and messages for every kind of damage."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.checkpoints.arrays import copy
from pipeline.checkpoints.tensors import choose_weight_files, open_tensors
from pipeline.errors import CheckpointError
from tests.damaged import DAMAGED
from tests.original_layout import Entry, write_safetensors

UNET = "unet/diffusion_pytorch_model"
SHARDS = [f"{UNET}-0000{i}-of-00002.safetensors" for i in (1, 2)]
FP16_SHARDS = [f"{UNET}.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX, FP16_INDEX = f"{UNET}.safetensors.index.json", f"{UNET}.safetensors.index.fp16.json"
FIRST, SECOND = (Path(name).name for name in SHARDS)
ONE = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("names", "prefer_fp16", "chosen"),
    [
        ([f"{UNET}.safetensors", f"{UNET}.bin"], False, [f"{UNET}.safetensors"]),
        (["unet/model.safetensors"], False, ["unet/model.safetensors"]),
        ([f"{UNET}.fp16.safetensors"], False, [f"{UNET}.fp16.safetensors"]),
        (
            [f"{UNET}.safetensors", f"{UNET}.fp16.safetensors"],
            False,
            [f"{UNET}.safetensors"],
        ),
        (
            [f"{UNET}.safetensors", f"{UNET}.fp16.safetensors"],
            True,
            [f"{UNET}.fp16.safetensors"],
        ),
        ([*SHARDS, INDEX], True, [INDEX, *SHARDS]),
        ([*FP16_SHARDS, FP16_INDEX], False, [FP16_INDEX, *FP16_SHARDS]),
        ([*FP16_SHARDS, FP16_INDEX, *SHARDS, INDEX], False, [INDEX, *SHARDS]),
        ([*FP16_SHARDS, FP16_INDEX, *SHARDS, INDEX], True, [FP16_INDEX, *FP16_SHARDS]),
        # Full precision is not complete, so fp16 is taken.
        ([SHARDS[0], INDEX, f"{UNET}.fp16.safetensors"], False, [f"{UNET}.fp16.safetensors"]),
        # No set is complete; opening the file names the missing shard.
        ([SHARDS[0], INDEX], False, [INDEX, SHARDS[0]]),
        (
            ["sd_xl_base.safetensors", "unet_ema/model.safetensors", "unet/model.safetensors"],
            False,
            ["unet/model.safetensors"],
        ),
    ],
)
def test_choice_of_files(names: list[str], prefer_fp16: bool, chosen: list[str]) -> None:
    assert choose_weight_files(names, "unet", prefer_fp16) == chosen


@pytest.mark.parametrize("suffix", ["bin", "ckpt", "pt", "msgpack"])
def test_only_a_pickle_is_refused_by_name(suffix: str) -> None:
    with pytest.raises(
        CheckpointError, match=rf"unet/weights\.{suffix}.*never opened.*safetensors"
    ):
        choose_weight_files([f"unet/weights.{suffix}", "vae/model.safetensors"], "unet")


def test_no_weights_says_what_is_expected() -> None:
    with pytest.raises(CheckpointError, match=r"unet/: no weights.*diffusion_pytorch_model\.safe"):
        choose_weight_files(["unet/config.json"], "unet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "unet"
    path.mkdir()
    return path


def write_sharded(folder: Path, contents: list[dict[str, np.ndarray]], weight_map=None) -> None:
    names = [Path(name).name for name in SHARDS]
    for name, tensors in zip(names, contents, strict=True):
        save_file(tensors, folder / name)
    if weight_map is None:
        pairs = zip(names, contents, strict=True)
        weight_map = {key: name for name, tensors in pairs for key in tensors}
    (folder / Path(INDEX).name).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 1, 4), (0, 4)])
def test_reads_every_dtype_and_shape(folder: Path, dtype: type, shape: tuple[int, ...]) -> None:
    values = np.asarray(np.random.default_rng(0).integers(-9, 9, shape)).astype(dtype)
    save_file({"a": values, "b": np.ones(2, np.float32)}, folder / "model.safetensors")
    with open_tensors(folder) as tensors:
        assert sorted(tensors) == ["a", "b"]
        assert (tensors["a"].shape, tensors["a"].dtype) == (shape, values.dtype)
        assert tensors["a"].file == folder / "model.safetensors"
        read = tensors["a"].read()
    assert read.dtype == values.dtype
    np.testing.assert_array_equal(read, values)


def test_reads_shards(folder: Path) -> None:
    first, second = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float16)
    write_sharded(folder, [{"a": first}, {"b": second}])
    with open_tensors(folder) as tensors:
        np.testing.assert_array_equal(tensors["a"].read(), first)
        np.testing.assert_array_equal(tensors["b"].read(), second)


def test_a_closed_file_cannot_be_read(folder: Path) -> None:
    save_file({"a": np.ones(2, np.float32)}, folder / "model.safetensors")
    with open_tensors(folder) as tensors:
        pass
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'a'"):
        tensors["a"].read()


@pytest.mark.parametrize("kept", [0, 4, 20, -4])
def test_truncated_file(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    save_file({"a": np.ones(64, np.float32)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: not a complete safetensors file"
    ):
        open_tensors(folder)


@pytest.mark.parametrize("content", [b"<html>Not found</html>", b"\xff" * 64, b"PK\x03\x04" * 99])
def test_not_a_safetensors_file(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: not a (valid )?safetensors file"
    ):
        open_tensors(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "the first 60 bytes",
            "complete .*ends within its header, after 60 bytes; fetch it again$",
        ),
        ("behind the data", r"complete safetensors file: it has \d+ of \d+ bytes; fetch it again$"),
        ("bytes that no tensor has", r"valid .*: its header describes \d+ of its \d+ bytes$"),
        ("no JSON", "valid safetensors file: invalid JSON in header: key must be a string"),
        ("an unknown dtype", "valid .*unknown variant `F33`"),
        ("overlap", "valid safetensors file: invalid offset for tensor `a`$"),
        ("a larger shape", "valid safetensors file: invalid shape, data type, or offset for"),
    ],
)
def test_a_message_says_what_is_broken(folder: Path, damage: str, message: str) -> None:
    """Only what lacks bytes is worth fetching again."""
    (folder / "model.safetensors").write_bytes(DAMAGED[damage])
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: not a {message}"):
        open_tensors(folder)


def test_float64_is_read(folder: Path) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    save_file({"a": values}, folder / "model.safetensors")
    with open_tensors(folder) as tensors:
        assert tensors["a"].dtype == np.float64
        result = np.empty((3, 4), np.float32)
        copy(tensors["a"].read(), result)
    np.testing.assert_array_equal(result, values.astype(np.float32))


def quantized(ends: tuple[str, str], scale: np.ndarray) -> dict[str, Entry]:
    """Return a weight in ComfyUI's scaled float8, whose products have these marks."""
    values = {
        "a.weight": np.array([[1, 2], [3, -4]]).astype(ml_dtypes.float8_e4m3fn),
        f"a.{ends[0]}": scale,
        ends[1]: np.zeros(0).astype(ml_dtypes.float8_e4m3fn),
        "a.scale_input": np.ones(1, np.float32),
    }
    return {
        name: Entry(value.shape, value.dtype, lambda value=value: value)
        for name, value in values.items()
    }


@pytest.mark.parametrize(
    "ends", [("scale_weight", "scaled_fp8"), ("weight_scale", "a.comfy_quant")]
)
@pytest.mark.parametrize("shape", [(), (1,)])
def test_scaled_float8_is_multiplied(folder: Path, ends: tuple, shape: tuple) -> None:
    scale = np.full(shape, 0.3, np.float32)
    write_safetensors(folder / "model.safetensors", quantized(ends, scale))
    with open_tensors(folder) as tensors:
        [tensor] = tensors.values()
        right = np.array([[1, 2], [3, -4]], np.float32) * np.float32(0.3)
        assert (tensor.name, tensor.dtype) == ("a.weight", np.float32)
        np.testing.assert_array_equal(tensor.read(), right)
        np.testing.assert_array_equal(tensor.transposed().read(), right.T)


def test_scales_of_blocks_are_refused(folder: Path) -> None:
    entries = quantized(("weight_scale", "scaled_fp8"), np.ones((2, 1), np.float32))
    write_safetensors(folder / "model.safetensors", entries)
    with pytest.raises(CheckpointError, match=r"'a\.weight_scale' is no scale of a float8 tensor;"):
        open_tensors(folder)


def test_unsupported_dtype(folder: Path) -> None:
    save_file({"mask": np.ones(4, np.bool_)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'mask' has dtype BOOL"):
        open_tensors(folder)


def test_unreadable_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"a": np.ones(2, np.float32)}, folder / "model.safetensors")

    def refuse(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # permissions would not stop root
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*Permission denied"):
        open_tensors(folder)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vae: cannot be read as a folder: No such file"):
        open_tensors(tmp_path / "vae")


def test_missing_shard(folder: Path) -> None:
    write_sharded(folder, [{"a": ONE}, {"b": ONE}])
    (folder / Path(SHARDS[1]).name).unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00002\.safetensors: .*No such file"):
        open_tensors(folder)


@pytest.mark.parametrize(
    ("contents", "weight_map", "message"),
    [
        (
            [{"a": ONE}, {"b": ONE}],
            {"a": FIRST, "b": SECOND, "c": SECOND},
            r"tensor 'c' is listed in .*00002-of-00002\.safetensors, which does not hold it",
        ),
        (
            [{"a": ONE, "b": ONE}, {"c": ONE}],
            {"a": FIRST, "b": SECOND, "c": SECOND},
            r"tensor 'b' is listed in .*00002-of-00002\.safetensors, which does not hold it",
        ),
        (
            [{"a": ONE}, {"a": ONE, "b": ONE}],
            {"a": FIRST, "b": SECOND},
            r"00002-of-00002\.safetensors: tensor 'a' is also in .*00001-of-00002",
        ),
        (
            [{"a": ONE, "x": ONE}, {"b": ONE}],
            {"a": FIRST, "b": SECOND},
            r"00001-of-00002\.safetensors: tensor 'x' is not listed in .*index\.json",
        ),
        (
            [{"a": ONE}, {"b": ONE}],
            {"a": "../../secret.safetensors"},
            r"weight_map\['a'\] is '\.\./\.\./secret\.safetensors'",
        ),
        ([{"a": ONE}, {"b": ONE}], {"a": 3}, r"weight_map\['a'\] is 3"),
        ([{"a": ONE}, {"b": ONE}], {"a": "weights.bin"}, r"weight_map\['a'\] is 'weights\.bin'"),
        ([{"a": ONE}, {"b": ONE}], {}, r"index\.json: 'weight_map' must name"),
    ],
)
def test_index_and_shards_must_agree(
    folder: Path, contents: list, weight_map: dict, message: str
) -> None:
    write_sharded(folder, contents, weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_tensors(folder)


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"weight_map": []}'])
def test_damaged_index(folder: Path, content: str) -> None:
    (folder / Path(INDEX).name).write_text(content)
    message = r"index\.json: (not a readable JSON|expected a JSON object|weight_map = \[\])"
    with pytest.raises(CheckpointError, match=message):
        open_tensors(folder)


READ_ALL = """
import sys
from pathlib import Path
from pipeline.checkpoints.tensors import open_tensors
def peak():
    return int(next(x for x in open("/proc/self/status") if x.startswith("VmHWM")).split()[1])
before = peak()
with open_tensors(Path(sys.argv[1])) as tensors:
    total = sum(float(tensor.read()[0]) for tensor in tensors.values())
print(total, peak() - before)
"""


@pytest.mark.lasting
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_file(folder: Path) -> None:
    tensor = np.ones(16 * 2**18, np.float32)  # 16 MiB
    save_file({f"t{i}": tensor for i in range(24)}, folder / "model.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, str(folder)],
        capture_output=True, text=True, check=True, env=os.environ,
    )  # fmt: skip
    total, grown = done.stdout.split()
    assert float(total) == 24
    assert int(grown) < 220 * 1024  # 384 MiB file: a 128 MiB window and one tensor
