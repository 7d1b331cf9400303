"""Executables on disk: they are found again, checked for damage, and optional."""

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.runtime import executables
from pipeline.runtime.executables import ExecutableCache
from tests.checkpoints import CompilationCount


def get(
    cache: ExecutableCache, about: object = "twice", factor: float = 2.0, device: int = 0
) -> tuple[bool, np.ndarray]:
    """Get an executable; return whether it was cached, and its results for 0, 1, 2, 3."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[device])
    args = (jax.ShapeDtypeStruct((4,), jnp.float32, sharding=place),)

    def build() -> jax.stages.Compiled:
        return jax.jit(lambda x: x * factor).lower(*args).compile()

    where = [jax.devices()[device]]
    executable = cache.load("test", about, where)
    found = executable is not None
    if executable is None:
        executable = build()
        cache.store("test", about, where, executable)
    return found, np.asarray(executable(jax.device_put(np.arange(4, dtype=np.float32), place)))


@pytest.fixture
def cache(tmp_path: Path) -> ExecutableCache:
    return ExecutableCache(tmp_path / "below" / "cache")


def stored(cache: ExecutableCache) -> Path:
    [file] = cache.folder.iterdir()
    return file


def test_found_again_without_compiling(cache: ExecutableCache) -> None:
    found, values = get(cache)
    assert not found
    with CompilationCount() as count:
        found, again = get(ExecutableCache(cache.folder), factor=3.0)  # cached, so not 3
    assert found
    assert count.value == 0
    assert again.tolist() == values.tolist() == [0, 2, 4, 6]


def test_the_folder_is_made_private(cache: ExecutableCache) -> None:
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    get(cache)
    assert stored(cache).stat().st_mode & 0o077 == 0


def test_the_cache_key_decides(cache: ExecutableCache) -> None:
    get(cache)
    assert get(cache, about="three times", factor=3.0)[1].tolist() == [0, 3, 6, 9]
    assert get(cache, device=1)[0] is False
    assert len(list(cache.folder.iterdir())) == 3
    assert get(cache)[1].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("name", "value"), [("XLA_FLAGS", "--xla_other=1"), ("LIBTPU_INIT_ARGS", "--other=1")]
)
def test_compiler_flags_decide(
    cache: ExecutableCache, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    get(cache)
    monkeypatch.setenv(name, value)
    assert get(cache)[0] is False


def test_jax_settings_decide(cache: ExecutableCache) -> None:
    get(cache)
    with jax.threefry_partitionable(not jax.config.values["jax_threefry_partitionable"]):
        assert get(cache)[0] is False
    with jax.default_prng_impl("rbg"):
        assert get(cache)[0] is False
    assert get(cache)[0] is True


def test_versions_and_processor_decide(
    cache: ExecutableCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(cache)
    with monkeypatch.context() as patch:
        patch.setattr(jax, "__version__", "0.0.1")
        assert get(cache)[0] is False
    with monkeypatch.context() as patch:
        patch.setattr(executables, "_processor", lambda: "another")
        assert get(cache)[0] is False
    assert get(cache)[0] is True


def test_the_least_recently_used_entry_makes_room(cache: ExecutableCache) -> None:
    get(cache, about="first")
    first = stored(cache)
    small = ExecutableCache(cache.folder, max_bytes=first.stat().st_size * 5 // 2)
    get(small, about="second")
    for file in cache.folder.iterdir():
        os.utime(file, (1, 1 if file == first else 2))
    other = cache.folder / "somebody's"
    other.write_bytes(bytes(small.max_bytes))
    assert get(small, about="first")[0] is True  # now "second" is the least recently used
    get(small, about="third")
    found = [get(small, about=name)[0] for name in ("first", "third", "second")]
    assert found == [True, True, False]
    assert other.exists()
    assert len(list(cache.folder.iterdir())) == 3


def test_a_part_that_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    program = """
import sys
from os import kill, getpid
from pathlib import Path
from pipeline.runtime.executables import ExecutableCache
Path.replace = lambda *_: kill(getpid(), 9)
ExecutableCache(Path(sys.argv[1])).put("text", 1, "left")
"""
    folder = tmp_path / "cache"
    killed = subprocess.run([sys.executable, "-c", program, folder], check=False)
    assert killed.returncode == -9
    [part] = folder.iterdir()
    os.utime(part, (1, 1))
    cache = ExecutableCache(folder)
    assert cache.get("text", 1) is None
    cache.put("text", 1, "here")
    assert cache.get("text", 1) == "here"
    assert not part.exists()


def damage_by_cutting(content: bytes) -> bytes:
    return content[: len(content) // 2]


def damage_the_middle(content: bytes) -> bytes:
    """Flip a byte in the middle; XLA would crash if it loaded this."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def damage_the_end(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def damage_by_emptying(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize(
    "damage", [damage_by_cutting, damage_the_middle, damage_the_end, damage_by_emptying]
)
def test_damaged_file_is_replaced(
    cache: ExecutableCache, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    get(cache)
    file = stored(cache)
    file.write_bytes(damage(file.read_bytes()))
    found, values = get(cache)
    assert not found
    assert values.tolist() == [0, 2, 4, 6]
    assert [str(file) in message and "damaged" in message for message in caplog.messages] == [True]
    assert get(cache)[0] is True
    assert stored(cache) == file


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit files to `size` bytes, as on a disk with only that much room left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_a_warning(cache: ExecutableCache, caplog: pytest.LogCaptureFixture) -> None:
    with largest_file(512):
        found, values = get(cache)
    assert not found
    assert values.tolist() == [0, 2, 4, 6]
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{cache.folder}/test-" in record.message
    assert "was not stored" in record.message
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_is_gone_is_a_warning(
    cache: ExecutableCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.folder.rmdir()
    assert get(cache)[1].tolist() == [0, 2, 4, 6]
    assert "was not stored" in caplog.text


def test_a_folder_in_place_of_the_file_is_a_warning(
    cache: ExecutableCache, caplog: pytest.LogCaptureFixture
) -> None:
    get(cache)
    file = stored(cache)
    file.unlink()
    file.mkdir()
    assert get(cache)[1].tolist() == [0, 2, 4, 6]
    assert "could not be loaded" in caplog.text
    assert "was not stored" in caplog.text
    assert stored(cache).is_dir()


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 700 {tmp_path}"):
        ExecutableCache(tmp_path)


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_folder_for_several_users_is_not_to_be_closed(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match=f"name a new one, such as {tmp_path}/sdxl-jax"):
        ExecutableCache(tmp_path)


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    ExecutableCache(tmp_path)
    somebody = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(PermissionError, match="must be private"):
        ExecutableCache(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "cache"):
        with pytest.raises(OSError, match="name another folder") as caught:
            ExecutableCache(folder)
        assert str(folder) in str(caught.value)
