"""Compiled executables kept on disk, so that a restart neither traces nor compiles."""

import hashlib
import logging
import os
import pickle
import platform
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import flax
import jax
import jaxlib
from jax.experimental import serialize_executable

log = logging.getLogger(__name__)

# For a TPU v5e-4 SDXL's programs take 1 GB for every size of pictures.
MAX_BYTES = 16 << 30

_FILE = re.compile(r"[a-z_]+-[0-9a-f]{32}")  # what is called otherwise is not ours to remove

# JAX's own settings that change what the same source compiles to.
_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)


class ExecutableCache:
    """A folder of serialised executables, of at most `max_bytes`.

    Those that have not been used for longest make room for new ones. Loading one runs the code in
    it, so the folder must belong to this user and be closed to all others; it is made so where it
    does not exist.

    Raises PermissionError for a folder that others may write to or read, OSError for one that
    cannot be made.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES):
        self.folder = folder
        self.max_bytes = max_bytes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            reason = f"the executable cache cannot be made, name another folder ({error.strerror})"
            raise OSError(error.errno, reason, str(folder)) from error
        status = folder.stat()
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(
                f"{folder}: the executable cache must be private to the user who runs this; "
                f"chmod 700 {folder}, or name another folder"
            )

    def get(
        self,
        name: str,
        about: object,
        args: Any,
        devices: Sequence[jax.Device],
        build: Callable[[], jax.stages.Compiled],
    ) -> tuple[bool, jax.stages.Compiled]:
        """The executable for `about` at the shapes of `args`; built and stored if not there.

        Returns whether it was there, and the executable. A file that does not load is replaced,
        and one that cannot be written is a warning in the log: the cache only saves time.
        """
        file = self.folder / f"{name}-{_key(about, args, devices)}"
        if file.exists():
            try:
                loaded = _load(file.read_bytes(), devices)
                _touch(file)
                return True, loaded
            except Exception as error:  # whatever a damaged file or another version may raise
                log.warning("%s could not be loaded (%s); compiling again", file, error)
        executable = build()
        try:
            _write(file, _stored(executable))
            self._make_room()
        except (OSError, ValueError) as error:
            log.warning("the compiled %s was not stored in %s: %s", name, self.folder, error)
        return False, executable

    def _make_room(self) -> None:
        """Removes files that were used before all others, until the rest takes `max_bytes`."""
        total = 0
        for _, size, file in sorted(_files(self.folder), reverse=True):
            total += size
            if total > self.max_bytes:
                file.unlink(missing_ok=True)


def _key(about: object, args: Any, devices: Sequence[jax.Device]) -> str:
    """Everything that decides what the executable is."""
    leaves, structure = jax.tree.flatten(args)
    sources = sorted(Path(__file__).parent.glob("*.py"))
    parts = [
        repr(about),
        str(structure),
        *(f"{leaf.shape} {leaf.dtype} {leaf.sharding}" for leaf in leaves),
        *(f"{device.platform} {device.device_kind} {device.id}" for device in devices),
        devices[0].client.platform_version,  # libtpu's or CUDA's
        f"{jax.__version__} {jaxlib.__version__} {flax.__version__} {platform.python_version()}",
        _processor(),
        *(f"{key}={os.environ.get(key, '')}" for key in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
        *(f"{name}={jax.config.values[name]}" for name in _SETTINGS),
        *(source.read_text() for source in sources),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _processor() -> str:
    """The processor's features: CPU executables do not run on one that lacks them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _stored(executable: jax.stages.Compiled) -> bytes:
    content = pickle.dumps(serialize_executable.serialize(executable))
    return hashlib.sha256(content).digest() + content


def _load(stored: bytes, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    digest, content = stored[:32], stored[32:]
    # XLA does not check what it loads: a changed byte would crash the process.
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("the file is damaged")
    load = serialize_executable.deserialize_and_load
    return load(*pickle.loads(content), execution_devices=list(devices))


def _touch(file: Path) -> None:
    """Notes that it was used just now; in a folder that is only read, nothing has to go."""
    with suppress(OSError):
        os.utime(file)


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each executable was last used, its bytes, and where it is."""
    for file in filter(lambda file: _FILE.fullmatch(file.name), folder.iterdir()):
        with suppress(FileNotFoundError):  # another process has removed it
            status = file.lstat()
            if stat.S_ISREG(status.st_mode):
                yield status.st_mtime, status.st_size, file


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as part:
        try:
            part.write(content)
            part.close()
            Path(part.name).replace(file)
        except BaseException:
            Path(part.name).unlink(missing_ok=True)
            raise
