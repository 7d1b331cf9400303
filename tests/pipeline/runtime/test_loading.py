"""Loading of a checkpoint's tokenizers and weights, and the cache for the next start."""

import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError
from pipeline.families import FamilyReader
from pipeline.runtime.executables import ExecutableCache
from pipeline.runtime.loading import (
    find_networks,
    load_networks,
    load_tokenizers,
)
from tests.checkpoints import SMALLEST, change_json, copy_checkpoint


@pytest.fixture
def cache(tmp_path: Path) -> ExecutableCache:
    return ExecutableCache(tmp_path / "cache")


def fetched(folder: Path, prefer_fp16: bool = False) -> Checkpoint:
    return fetch(str(folder), None, FamilyReader(), prefer_fp16)


def test_cached_tokenizers_need_no_transformers(cache: ExecutableCache) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from pipeline.checkpoints.source import fetch
        from pipeline.families import FamilyReader
        from pipeline.runtime.executables import ExecutableCache
        from pipeline.runtime.loading import load_tokenizers

        folder, cache = map(Path, sys.argv[1:])
        checkpoint = fetch(str(folder), None, FamilyReader())
        tokenizers = load_tokenizers(checkpoint, ExecutableCache(cache))
        ids, cut = tokenizers.tokenize(["red star " * 40])
        print("transformers" in sys.modules, ids.tolist(), cut)
    """
    command = [sys.executable, "-c", program, str(SMALLEST), str(cache.folder)]
    first, second = (subprocess.check_output(command, text=True) for _ in range(2))
    assert first.startswith("True ")
    assert second == first.replace("True", "False", 1)


def test_changed_tokenizers_are_read_again(cache: ExecutableCache, tmp_path: Path) -> None:
    folder = copy_checkpoint(tmp_path)
    (folder / "tokenizer/notes.old").mkdir()  # not a tokenizer's file
    checkpoint = fetched(folder)
    before = load_tokenizers(checkpoint, cache)
    for name in ("tokenizer", "tokenizer_2"):
        change_json(folder / name / "tokenizer_config.json", model_max_length=20)
    after = load_tokenizers(checkpoint, cache)
    assert (before.length, after.length) == (77, 20)
    (folder / "tokenizer_2/tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer_2: the tokenizer cannot be read"):
        load_tokenizers(checkpoint, cache)


def test_networks_are_traced_once(cache: ExecutableCache, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, dtype = fetched(SMALLEST), np.dtype(np.float32)
    traced = find_networks(checkpoint, dtype, cache)
    monkeypatch.setattr(
        "pipeline.runtime.loading.module_factories", lambda _: pytest.fail("traced again")
    )
    kept = find_networks(checkpoint, dtype, cache)
    for name, stored in traced.items():
        (one, shapes), (other, kept_shapes) = map(nnx.split, (stored.module, kept[name].module))
        assert one == other
        assert jax.tree.map(repr, shapes) == jax.tree.map(repr, kept_shapes)


@pytest.mark.parametrize("prefer_fp16", [False, True])
def test_the_weight_files_that_were_chosen_are_read(tmp_path: Path, prefer_fp16: bool) -> None:
    """The chosen files are read even if a cache holds both precisions."""
    folder = copy_checkpoint(tmp_path)
    for half in folder.rglob("*.fp16.safetensors"):
        twice = {name: 2 * value.astype(np.float32) for name, value in load_file(half).items()}
        save_file(twice, half.with_name(half.name.replace(".fp16", "")))
    checkpoint = fetched(folder, prefer_fp16)
    for name in checkpoint.config.networks:
        with checkpoint.tensors(name) as tensors:
            files = {tensor.file.name for tensor in tensors.values()}
        assert all((".fp16" in file) == prefer_fp16 for file in files)
    found = find_networks(checkpoint, np.dtype(np.float32))
    networks = load_networks(found, jax.numpy.asarray)
    [file] = (folder / "unet").glob("*.fp16.safetensors")
    stored = load_file(file)["conv_norm_out.weight"].astype(np.float32)
    read = networks["unet"].conv_norm_out.scale.get_value()
    np.testing.assert_array_equal(read, stored * (1 if prefer_fp16 else 2))
