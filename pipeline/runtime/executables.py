"""Compilation of the sampler's programs ahead of time, and the cache of what it made.

The cache is a folder on disk. Beside each executable it keeps how much of the devices' memory it
takes. JAX's own cache would need every program traced at each start, half a minute for SDXL.
"""

import hashlib
import logging
import os
import pickle
import platform
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import flax
import jax
import jaxlib
from flax import nnx
from jax.experimental import serialize_executable

from pipeline.runtime.programs import Programs, Target, cache_key, program_names

T = TypeVar("T")
log = logging.getLogger(__name__)

# On a TPU v5e-4, SDXL's programs take 1 GB for every size of pictures.
MAX_BYTES = 16 << 30

# Whole files, and parts of such that killed processes left. Others are never removed.
_FILE = re.compile(r"[a-z_]+-[0-9a-f]{32}(\.\w+)?")
_LEFT_AFTER_S = 3600  # no write takes so long

# JAX's settings that change the executable compiled from the same source.
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)


class ExecutableCache:
    """A folder of serialised executables and other results of startup, of at most `max_bytes`.

    The least recently used files are removed to make room for new ones. Loading a file runs the
    code in it, so the folder must belong to this user and be closed to all others. A missing
    folder is created that way.

    Raises:
        PermissionError: if the folder belongs to another user or is open to others.
        OSError: if the folder cannot be created.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES):
        self.folder = folder
        self.max_bytes = max_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"cannot create the executable cache ({error.strerror}); name another folder"
            raise OSError(error.errno, reason, str(folder)) from error
        status = folder.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            # A folder in which others may write, such as /tmp, is not for one user to close.
            is_shared = stat.S_IMODE(status.st_mode) & 0o022
            remedy = f"name a new one, such as {folder / 'sdxl-jax'}"
            if status.st_uid == os.getuid() and not is_shared:
                remedy = f"chmod 700 {folder}, or name another folder"
            raise PermissionError(
                f"{folder}: the executable cache must be private to the user who runs this; "
                f"{remedy}"
            )
        # Read here, because the threads that load would each read them.
        self._sources = _sources()

    def load(
        self, name: str, cache_key: object, devices: Sequence[jax.Device]
    ) -> jax.stages.Compiled | None:
        """Return the executable stored under a key for `devices`; None if none can be loaded."""

        def read(content: bytes) -> jax.stages.Compiled:
            parts = pickle.loads(content)
            return serialize_executable.deserialize_and_load(*parts, execution_devices=devices)

        return self._load(self._file_name(name, cache_key, *where(devices)), read)

    def store(
        self,
        name: str,
        cache_key: object,
        devices: Sequence[jax.Device],
        executable: jax.stages.Compiled,
    ) -> None:
        """Store an executable. A failure is only logged, because the cache only saves time."""

        def write() -> bytes:
            return pickle.dumps(serialize_executable.serialize(executable))

        self._store(self._file_name(name, cache_key, *where(devices)), write)

    def get(self, name: str, cache_key: object) -> Any:
        """Return the value stored for `cache_key`; None if there is none."""
        return self._load(self._file_name(name, cache_key), pickle.loads)

    def put(self, name: str, cache_key: object, value: object) -> None:
        """Store a value, which is anything that can be pickled."""
        self._store(self._file_name(name, cache_key), lambda: pickle.dumps(value))

    def _file_name(self, name: str, *cache_key: object) -> str:
        """Return a file name with a digest of everything that the stored value depends on."""
        parts = [
            repr(cache_key),
            *(module.__version__ for module in (jax, jaxlib, flax)),
            platform.python_version(),
            _processor(),
            *(f"{key}={os.environ.get(key, '')}" for key in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
            *(f"{name}={jax.config.values[name]}" for name in _SETTINGS),
            self._sources,
        ]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return f"{name}-{digest[:32]}"

    def _load(self, file_name: str, read: Callable[[bytes], T]) -> T | None:
        file = self.folder / file_name
        if not file.exists():
            return None
        try:
            value = read(_checked(file.read_bytes()))
        except Exception as error:  # damaged files may raise anything
            log.warning("%s could not be loaded (%s); rebuilding it", file, error)
            return None
        with suppress(OSError):  # a read-only folder needs no room
            os.utime(file)
        return value

    def _store(self, file_name: str, write: Callable[[], bytes]) -> None:
        file = self.folder / file_name
        try:
            content = write()
            _write(file, hashlib.sha256(content).digest() + content)
            self._make_room()
        except Exception as error:  # no serialised form, or a full disk
            log.warning("%s was not stored: %s", file, error)

    def _make_room(self) -> None:
        """Remove parts that killed processes left, and the files used least recently.

        The rest takes at most `max_bytes`.
        """
        total = 0
        for used_at, size, file in sorted(_files(self.folder), reverse=True):
            is_left = file.suffix and time.time() - used_at > _LEFT_AFTER_S
            total += 0 if is_left else size
            if is_left or total > self.max_bytes:
                file.unlink(missing_ok=True)


def get_or_create(
    cache: ExecutableCache | None, name: str, cache_key: object, make: Callable[[], T]
) -> T:
    """Return the value stored for `cache_key`; make it if there is none, and store it."""
    value = None if cache is None else cache.get(name, cache_key)
    if value is None:
        value = make()
        if cache is not None:
            cache.put(name, cache_key, value)
    return value


class ProgramBytes(NamedTuple):
    """The memory that a program takes of each device, by the compiler's own analysis.

    Attributes:
        code: bytes of its code.
        temporaries: bytes of the arrays that only a run of it needs, and of its results.
    """

    code: int
    temporaries: int


class Built(NamedTuple):
    """An executable, which runs with any parameters of its networks, and how it was made.

    Attributes:
        executable: the executable.
        seconds: how long it took to load or to compile.
        source: "hit" if it is from the cache, "miss" if it was compiled, "shared" if another
            sampler has it too.
    """

    executable: jax.stages.Compiled
    seconds: float
    source: str


Executables = Mapping[str, Built]  # by program name


def measured(executable: jax.stages.Compiled) -> ProgramBytes:
    """Return what an executable takes of the memory; zeros where the backend does not say."""
    analysis = executable.memory_analysis()
    if analysis is None:
        return ProgramBytes(0, 0)
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return ProgramBytes(
        analysis.generated_code_size_in_bytes, analysis.temp_size_in_bytes + results
    )


def bytes_key(name: str, target: Target) -> tuple[str, object]:
    """Return the arguments of `ExecutableCache.get` for what a program takes."""
    return f"{name}_bytes", (cache_key(name, target), *where([*target.mesh.devices.flat]))


def load_cached(
    target: Target, cache: ExecutableCache | None, without: Collection[str] = ()
) -> dict[str, Built]:
    """Load the executables of a target that are in the cache.

    No network is needed, so the rest of a checkpoint can be read meanwhile. Programs named in
    `without` are left out.
    """
    if cache is None:
        return {}

    def load(name: str) -> Built | None:
        start = time.perf_counter()
        executable = cache.load(name, cache_key(name, target), list(target.mesh.devices.flat))
        return executable and Built(executable, time.perf_counter() - start, "hit")

    names = [name for name in program_names(target) if name not in without]
    with ThreadPoolExecutor(len(names), thread_name_prefix="load") as threads:
        results = zip(names, threads.map(load, names), strict=True)
        return {name: built for name, built in results if built is not None}


def compile_missing(
    target: Target,
    networks: Mapping[str, nnx.Module],
    cache: ExecutableCache | None = None,
    cached: Executables = MappingProxyType({}),
    shared: Mapping[str, jax.stages.Compiled] = MappingProxyType({}),
) -> dict[str, Built]:
    """Return the executables of a target; those neither cached nor shared are compiled in parallel.

    Args:
        target: what to compile for.
        networks: the networks by name; shapes and dtypes suffice in place of their parameters.
        cache: stores the compiled executables; None stores nothing.
        cached: the result of `load_cached` for the same target.
        shared: executables for another size that serve this one too, by program name.
    """
    ready = {name: Built(executable, 0.0, "shared") for name, executable in shared.items()}
    ready.update(cached)
    for name, built in cached.items():
        log.info("loaded %s in %.1f s", name, built.seconds)
    names = [name for name in program_names(target) if name not in ready]
    return ready | compile_all(names, target, networks, cache)


def compile_all(
    names: Sequence[str],
    target: Target,
    networks: Mapping[str, nnx.Module],
    cache: ExecutableCache | None,
) -> dict[str, Built]:
    """Compile programs, started in this order.

    The arguments are those of `compile_missing`.
    """
    if not names:
        return {}
    builder = Programs(target, networks)
    # They are built before the threads start, so that shared parts are traced once.
    programs = {name: builder[name] for name in names}

    def build(name: str) -> Built:
        start = time.perf_counter()
        executable = programs[name].compile()
        built = Built(executable, time.perf_counter() - start, "miss")
        log.info("compiled %s in %.1f s", name, built.seconds)
        if cache is not None:
            devices = list(target.mesh.devices.flat)
            cache.store(name, cache_key(name, target), devices, executable)
            cache.put(*bytes_key(name, target), measured(executable))
        return built

    with ThreadPoolExecutor(len(names), thread_name_prefix="compile") as threads:
        return dict(zip(names, threads.map(build, names), strict=True))


def measured_bytes(executables: Executables) -> dict[str, ProgramBytes]:
    """Return how much memory each program takes; shared ones are left out."""
    return {
        name: measured(built.executable)
        for name, built in executables.items()
        if built.source != "shared"
    }


def where(devices: Sequence[jax.Device]) -> tuple[object, str]:
    """Return the kinds of the devices, and the version of their runtime: libtpu's or CUDA's."""
    kinds = [f"{device.platform} {device.device_kind} {device.id}" for device in devices]
    return kinds, devices[0].client.platform_version


@cache
def _sources() -> str:
    """Return a digest of the source of the whole package, sub-packages included."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"\n{file.relative_to(package)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Return the processor's features; CPU executables do not run on one that lacks them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _checked(data: bytes) -> bytes:
    digest, content = data[:32], data[32:]
    # XLA does not check an executable that it loads: a changed byte would crash the process.
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("the file is damaged")
    return content


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of last use, the size in bytes and the path of each stored file."""
    for file in filter(lambda file: _FILE.fullmatch(file.name), folder.iterdir()):
        with suppress(FileNotFoundError):  # another process has removed it
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                yield status.st_mtime, status.st_size, file


def _write(file: Path, content: bytes) -> None:
    """Write a file whole or not at all; no other user may read it."""
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.", delete=False) as part:
        try:
            part.write(content)
            part.close()
            Path(part.name).replace(file)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
