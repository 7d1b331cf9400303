"""A real web server in a thread, over a pipeline whose steps the test controls."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from serving import http
from serving.desk import Limits
from serving.generator import Generator
from serving.limits import RateLimits
from serving.local import LocalGenerator
from serving.observer import Observer
from serving.server import Server
from tests.fake_pipeline import FakePipeline


@dataclass
class Site:
    """Where it serves, and what is behind it."""

    url: str
    pipe: FakePipeline
    server: Server
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True


@contextmanager
def serve(
    *,
    held: bool = False,
    limits: Limits | None = None,
    rates: RateLimits | None = None,
    generator: Generator | None = None,
    observer: Observer | None = None,
    stop_within_s: float = 10.0,
    port: int = 0,
    **options: Any,
) -> Iterator[Site]:
    """Serves on a port of its own until the block ends."""
    pipe = FakePipeline(held=held)
    observer = observer or Observer()
    if generator is None:
        rates = rates or RateLimits(None, None)
        generator = LocalGenerator(pipe.as_pipeline(), limits or Limits(), rates, observer)
    app = http.build(generator, observer, **options)
    port = port or free_port()
    server = Server(app, generator, "127.0.0.1", port, stop_within_s)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    try:
        yield Site(f"http://127.0.0.1:{port}", pipe, server, thread)
    finally:
        pipe.let_all()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def wait_until(condition: Any, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)
