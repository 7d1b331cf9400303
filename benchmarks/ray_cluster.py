"""A small Ray cluster on this machine with the fleet on it, to be asked, and painters to kill."""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import ray
from ray import serve

from benchmarks.processes import free_port, is_ready
from cluster import Fleet, build
from pipeline import SDXLPipeline
from serving.settings import Options


class RayCluster:
    """Where the fleet answers, and its processes.

    Attributes:
        url: of the front-end.
        dashboard: where Ray's own dashboard answers, which also takes jobs.
    """

    def __init__(self, url: str, dashboard: str, name: str) -> None:
        self.url = url
        self.dashboard = dashboard
        self._name = name

    def painters(self) -> set[int]:
        """The process ids of painters that are warm. Reads /proc: on Linux only."""
        return self._processes("Painter")

    def front_ends(self) -> set[int]:
        """The front-end's process id."""
        return self._processes("FrontEnd")

    def _processes(self, deployment: str) -> set[int]:
        # It has another title until its constructor has ended.
        title = f"ray::ServeReplica:{self._name}:{deployment}".encode()
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cmdline").read_bytes().startswith(title):
                    found.add(int(folder.name))
            except OSError:  # it has just ended
                continue
        return found


@contextmanager
def fleet_on_this_machine(
    fleet: Fleet, chosen: Options, load: Callable[[Options], tuple[SDXLPipeline, bool]]
) -> Iterator[RayCluster]:
    """The fleet, ready to draw, until the block ends."""
    # Or Ray would keep one in a file. It reads it once in a process.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    name, port = f"fleet-{secrets.token_hex(4)}", free_port()
    chosen = replace(chosen, host="127.0.0.1", port=port)
    started = ray.init(
        num_cpus=fleet.max_replicas,
        include_dashboard=True,
        dashboard_port=free_port(),
        object_store_memory=100 * 2**20,
        log_to_driver=False,
    )
    try:
        serve.start(proxy_location="Disabled")
        serve.run(build(fleet, chosen, load), name=name)
        url = f"http://127.0.0.1:{port}"
        # Ray knows nothing of that: painters tell the front-end of themselves once it is there.
        _wait_until_ready(url)
        yield RayCluster(url, f"http://{started.dashboard_url}", name)
    finally:
        serve.shutdown()
        ray.shutdown()


def _wait_until_ready(url: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not is_ready(url):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no painter has told {url} of itself within {within_s} s")
        time.sleep(0.05)


def kill(process: int) -> None:
    """Ends a process at once, without a chance to tidy up."""
    os.kill(process, signal.SIGKILL)
