"""A small Ray cluster on this machine that runs the fleet, with replicas that can be killed."""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import ray
from ray import serve

from benchmarks.processes import free_port, is_ready
from cluster import Fleet, build
from pipeline import SDXLPipeline
from serving.settings import Options


class RayCluster:
    """The fleet's addresses and processes.

    Attributes:
        url: the front-end's address.
        dashboard: the address of Ray's dashboard, which also accepts jobs.
    """

    def __init__(self, url: str, dashboard: str, name: str) -> None:
        self.url = url
        self.dashboard = dashboard
        self._name = name

    def replicas(self) -> set[int]:
        """Return the process ids of the warm replicas, read from /proc (Linux only)."""
        return self._processes("Replica")

    def front_ends(self) -> set[int]:
        """Return the front-end's process id."""
        return self._processes("FrontEnd")

    def _processes(self, deployment: str) -> set[int]:
        # A process has another title until its deployment's constructor has returned.
        title = f"ray::ServeReplica:{self._name}:{deployment}".encode()
        processes = set()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if (folder / "cmdline").read_bytes().startswith(title):
                    processes.add(int(folder.name))
            except OSError:  # the process has just ended
                continue
        return processes


@contextmanager
def fleet_on_this_machine(
    fleet: Fleet, options: Options, load: Callable[[Options], tuple[SDXLPipeline, bool]]
) -> Iterator[RayCluster]:
    """Run the fleet until the block ends; it is ready to draw when the block begins."""
    # Without this variable Ray would keep a token in a file. It reads the variable once in a
    # process.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    name, port = f"fleet-{secrets.token_hex(4)}", free_port()
    options = options.model_copy(update={"host": "127.0.0.1", "port": port})
    ray_context = ray.init(
        num_cpus=fleet.max_replicas,
        include_dashboard=True,
        dashboard_port=free_port(),
        object_store_memory=100 * 2**20,
        log_to_driver=False,
    )
    try:
        serve.start(proxy_location="Disabled")
        serve.run(build(fleet, options, load), name=name)
        url = f"http://127.0.0.1:{port}"
        # Ray cannot tell when the fleet is ready: replicas register with the front-end once it
        # runs.
        _wait_until_ready(url)
        yield RayCluster(url, f"http://{ray_context.dashboard_url}", name)
    finally:
        serve.shutdown()
        ray.shutdown()


def _wait_until_ready(url: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not is_ready(url):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no replica has announced itself at {url} within {within_s} s")
        time.sleep(0.05)


def kill(process: int) -> None:
    """Kill a process at once, without a chance to clean up."""
    os.kill(process, signal.SIGKILL)
