"""Real servers: in a thread, over a pipeline whose steps the test controls, or in a process."""

import asyncio
import fcntl
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default

from benchmarks.processes import ROOT, Instance, free_port
from pipeline import BUNDLED
from serving.generator import Generator
from serving.http import app as http_app
from serving.http.auth import Access, ApiKeys, digests_of
from serving.http.server import Server
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator

# The real program with the real model, and just enough steps to show progress.
STEPS = 5
PROGRAM = ["app.py", "--model", str(BUNDLED), "--steps", str(STEPS)]

# Tests wait as long as this; httpx's default of 5 seconds is too short on a slow machine.
for name in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, name, 60.0)
# No test speaks TLS, and reading the certificates takes 20 ms of every call of httpx.get.
default.create_ssl_context = cache(default.create_ssl_context)


@dataclass
class Site:
    """A running server: its address, its pipeline and its thread."""

    url: str
    pipe: FakePipeline
    server: Server
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop

    @property
    def connections(self) -> list[Any]:
        """The protocols of the open connections."""
        return list(self.server.server_state.connections)

    @property
    def has_unsent(self) -> bool:
        """Whether a client reads less than it is sent."""
        return any(each.transport.get_write_buffer_size() for each in self.connections)

    def stop(self) -> None:
        self.server.should_exit = True

    def skip(self, seconds: float) -> None:
        """Advance the server's clock by `seconds`, so that timers due until then fire now."""
        asyncio.run_coroutine_threadsafe(skip(seconds), self.loop).result(60)


@contextmanager
def serve(
    *,
    held: bool = False,
    limits: Limits | None = None,
    generator: Generator | None = None,
    observer: Observer | None = None,
    stop_within_s: float = 10.0,
    answers_on_s: float = 0.0,
    port: int = 0,
    behind_proxy: bool = False,
    **options: Any,
) -> Iterator[Site]:
    """Serve on a free port until the block ends; `keys` are the API keys, if there are any."""
    pipe = FakePipeline(held=held)
    observer = observer or Observer()
    if generator is None:
        generator = local_generator(pipe.as_pipeline(), limits or Limits(), observer)
    if (keys := options.pop("keys", None)) is not None:
        options["access"] = Access(ApiKeys(lambda: digests_of(keys)))
    app = http_app.build(generator, observer, **options)
    port = port or free_port()
    server = Server(
        app,
        generator,
        "127.0.0.1",
        port,
        stop_within_s,
        answers_on_s=answers_on_s,
        behind_proxy=behind_proxy,
    )
    runner = asyncio.Runner()
    thread = threading.Thread(target=_run, args=(runner, server), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Site(f"http://127.0.0.1:{port}", pipe, server, thread, runner.get_loop())
    finally:
        pipe.let_all()
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def _run(runner: asyncio.Runner, server: Server) -> None:
    with runner:
        runner.run(server.serve())


@contextmanager
def folder_served(folder: Path) -> Iterator[int]:
    """Serve the pages in a folder as another site, on a free port; yield the port."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def start(instance: Instance) -> None:
    """Start a program and wait until it is ready.

    Programs start one after the other; otherwise each would compile the same executables.
    """
    folder = ROOT / ".pytest_cache"
    folder.mkdir(exist_ok=True)
    with (folder / "starting").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        instance.start()
        instance.wait_until_ready()


@contextmanager
def served(program: Sequence[str], log: Path, *, attacked: bool = False) -> Iterator[str]:
    """Run one of this project's programs in a process of its own, and stop it gracefully.

    It must exit with status 0. Its log may contain tracebacks only where it is `attacked`: Gradio
    logs them for the requests it refuses.
    """
    instance = Instance(program, log)
    try:
        start(instance)
        yield instance.url
    finally:
        status = instance.stop(120)
    assert attacked or "Traceback" not in log.read_text()
    assert status == 0


@contextmanager
def raw_server(answer: Callable[[bytes], bytes | Iterable[bytes] | None]) -> Iterator[str]:
    """Serve raw bytes: send `answer(request)` and hang up, or stay silent where it is None."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def talk(connection: socket.socket) -> None:
            with suppress(OSError):  # the client has left, or the test is over
                said = answer(connection.recv(65_536))
                if said is not None:
                    for part in [said] if isinstance(said, bytes) else said:
                        connection.sendall(part)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):  # closing earlier would reset it
                        pass
                    connection.close()

        def run() -> None:
            with suppress(OSError):
                while True:
                    connection = stack.enter_context(server.accept()[0])
                    threading.Thread(target=talk, args=(connection,), daemon=True).start()

        threading.Thread(target=run, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def raw_request(url: str, sent: str) -> bytes:
    """Send a raw request, and return everything the server sends until it hangs up."""
    host, _, port = url.removeprefix("http://").partition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(sent.encode())
        while part := connection.recv(65_536):
            answer += part
    return answer


async def skip(seconds: float) -> None:
    """Advance the event loop's clock by `seconds`, so that timers due until then fire now."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds
    for _ in range(10):  # for what the timers begin
        await asyncio.sleep(0)


def wait_until(condition: Any, within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
