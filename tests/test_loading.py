"""What of a checkpoint is read, and what is kept of it for the next start."""

import gc
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from pipeline.config import read_config
from pipeline.errors import CheckpointError
from pipeline.executables import ExecutableCache
from pipeline.loading import find_networks, load_tokenizers, without_collecting_garbage
from tests.checkpoints import SMALLEST, change_json, copy_checkpoint


@pytest.fixture
def cache(tmp_path: Path) -> ExecutableCache:
    return ExecutableCache(tmp_path / "cache")


def test_kept_tokenizers_need_no_transformers(cache: ExecutableCache) -> None:
    program = """if True:
        import sys
        from pathlib import Path
        from pipeline.config import read_config
        from pipeline.executables import ExecutableCache
        from pipeline.loading import load_tokenizers

        folder, cache = map(Path, sys.argv[1:])
        tokenizers = load_tokenizers(folder, read_config(folder), ExecutableCache(cache))
        ids, cut = tokenizers.tokenize(["red star " * 40])
        print("transformers" in sys.modules, ids.tolist(), cut)
    """
    command = [sys.executable, "-c", program, str(SMALLEST), str(cache.folder)]
    first, second = (subprocess.check_output(command, text=True) for _ in range(2))
    assert first.startswith("True ")
    assert second == first.replace("True", "False", 1)


def test_other_tokenizers_are_read(cache: ExecutableCache, tmp_path: Path) -> None:
    folder = copy_checkpoint(tmp_path)
    (folder / "tokenizer/notes.old").mkdir()  # no file of theirs
    config = read_config(folder)
    before = load_tokenizers(folder, config, cache)
    for name in ("tokenizer", "tokenizer_2"):
        change_json(folder / name / "tokenizer_config.json", model_max_length=20)
    after = load_tokenizers(folder, config, cache)
    assert (before.length, after.length) == (77, 20)
    (folder / "tokenizer_2/tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer_2: the tokenizer cannot be read"):
        load_tokenizers(folder, config, cache)


def test_networks_are_traced_once(cache: ExecutableCache, monkeypatch: pytest.MonkeyPatch) -> None:
    config, dtype = read_config(SMALLEST), np.dtype(np.float32)
    traced = find_networks(SMALLEST, config, dtype, cache)
    monkeypatch.setattr("pipeline.loading.blueprints", lambda _: pytest.fail("traced again"))
    kept = find_networks(SMALLEST, config, dtype, cache)
    for name, stored in traced.items():
        (one, shapes), (other, kept_shapes) = map(nnx.split, (stored.module, kept[name].module))
        assert one == other
        assert jax.tree.map(repr, shapes) == jax.tree.map(repr, kept_shapes)


def test_garbage_is_collected_again_after_a_start() -> None:
    with without_collecting_garbage():
        assert not gc.isenabled()
        with without_collecting_garbage():  # in another thread, perhaps
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), without_collecting_garbage():
        raise KeyError
    assert gc.isenabled()
