"""This program in separate processes, which can be suspended, stopped and killed."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parent.parent
ON_A_CPU = MappingProxyType({"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"})


@dataclass(frozen=True)
class Usage:
    """A process's resource usage: processor seconds since its start, the rest at the moment."""

    cpu_s: float
    memory_mb: float
    threads: int
    open_files: int


class Instance:
    """A server of ours on its own port; it may be started again after it has ended.

    Args:
        program: the arguments of Python.
        log: see below.
        environment: variables in addition to those of this process at each start.

    Attributes:
        url: its address, which stays the same from one start to the next.
        log: the file to which everything that it prints is appended.
    """

    def __init__(
        self, program: Sequence[str], log: Path, environment: Mapping[str, str] = ON_A_CPU
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        self._command = [sys.executable, *program, "--port", str(self.port)]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The most recently started process."""
        assert self._process is not None, "it was never started"
        return self._process

    def start(self) -> None:
        """Start the process, without waiting until it is ready."""
        environment = {**os.environ, **self._environment}
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment, stdout=output, stderr=output
            )

    def wait_until_ready(self, within_s: float = 600) -> None:
        """Wait until it is ready.

        Raises:
            RuntimeError: if it ends, or takes longer than `within_s`; the message has its log.
        """
        deadline = time.monotonic() + within_s
        while not is_ready(self.url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"it did not come up:\n{self.log.read_text()}")
            time.sleep(0.05)

    def usage(self) -> "Usage":
        """Return the process's current resource usage, read from /proc (Linux only)."""
        folder = Path(f"/proc/{self.process.pid}")
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Usage(
            cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
            memory_mb=int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
            threads=int(fields[17]),
            open_files=len(list((folder / "fd").iterdir())),
        )

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process; if it has ended, nothing happens."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it at once, without a chance to clean up."""
        self.process.kill()
        self.process.wait()

    def stop(self, within_s: float = 30) -> int:
        """Stop it with SIGTERM, even if it is suspended, and return its exit status.

        Raises:
            TimeoutExpired: if it takes longer than `within_s`; it is killed then.
        """
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise


@contextmanager
def running(
    program: Sequence[str], environment: Mapping[str, str] = ON_A_CPU, within_s: float = 600
) -> Iterator[Instance]:
    """Run a server until the block ends; it is ready when the block begins.

    Args:
        program: the arguments of Python.
        environment: see `Instance`.
        within_s: the most seconds until it is ready.
    """
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(program, Path(folder) / "log", environment)
        instance.start()
        try:
            instance.wait_until_ready(within_s)
            yield instance
        finally:
            instance.stop()


def is_ready(url: str) -> bool:
    """Return whether the server at `url` would accept a request now."""
    try:
        urllib.request.urlopen(f"{url}/readyz", timeout=5).close()
    except OSError:
        return False
    return True


def stand_in(step_ms: float, *flags: str) -> list[str]:
    """Return an instance's program whose every step takes `step_ms`."""
    return ["-m", "benchmarks.stand_in", "--step-ms", str(step_ms), *flags]


def front_end(urls: Sequence[str], *flags: str) -> list[str]:
    """Return the program of a front-end that forwards to the instances at `urls`."""
    return ["app.py", "--backend-urls", ",".join(urls), *flags]


def free_port() -> int:
    """Return a port that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
