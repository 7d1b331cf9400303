"""Real Ray processes on this machine: one front-end and two replicas of the miniature."""

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from benchmarks.processes import Instance
from benchmarks.visitors import Moment, Visit, visit
from cluster import Fleet
from pipeline import BUNDLED
from serving import bootstrap, settings
from serving.http.timeouts import HEAD_WITHIN_S
from tests.cluster.ray_cluster import RayCluster, fleet_on_this_machine, kill

MODEL = ["--model", str(BUNDLED)]
BODIES = [
    {"prompt": "a yellow moon", "seed": 7, "num_inference_steps": 5},
    {"prompt": "a red star on a blue background", "seed": 2**32 - 2, "num_inference_steps": 40},
]
# Readable paths of Ray's dashboard.
READABLE = ("/api/jobs/", "/api/serve/applications/", "/api/cluster_status", "/nodes?view=summary")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[Visit]:
    """Return the pictures of a single process, which shares its compiled programs with replicas."""
    folder = tmp_path_factory.mktemp("alone")
    instance = Instance(["app.py", *MODEL, *cache(folder)], folder / "log")
    instance.start()
    try:
        instance.wait_until_ready()
        return [asyncio.run(ask(instance.url, body)) for body in BODIES]
    finally:
        instance.kill()


def cache(folder: Path) -> list[str]:
    return ["--cache-dir", str(folder.parent / "compiled")]


@pytest.fixture(scope="module")
def cluster(alone: list[Visit], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    flags = [*MODEL, *cache(tmp_path_factory.mktemp("cluster")), "--max-waiting", "2"]
    chosen = settings.read(flags, {})
    with fleet_on_this_machine(Fleet(), chosen, bootstrap.load_pipeline) as cluster:
        yield cluster


async def ask(url: str, body: dict[str, object]) -> Visit:
    async with httpx.AsyncClient() as client:
        return await visit(client, url, body)


async def ask_at_once(url: str, bodies: list[dict[str, object]]) -> list[Visit]:
    return await asyncio.gather(*(ask(url, body) for body in bodies))


def test_the_fleet_draws_what_a_lone_process_draws(cluster: RayCluster, alone: list[Visit]):
    drawn = asyncio.run(ask_at_once(cluster.url, BODIES))
    assert [made.outcome for made in drawn] == ["done", "done"]
    assert [made.pictures for made in drawn] == [made.pictures for made in alone]


def test_the_front_end_has_the_page_and_no_jax(cluster: RayCluster):
    page = httpx.get(cluster.url)
    assert page.status_code == 200
    assert "Stable Diffusion XL on JAX" in page.text
    [front_end] = cluster.front_ends()
    assert "jaxlib" not in Path(f"/proc/{front_end}/maps").read_text()


def test_a_request_is_stopped(cluster: RayCluster):
    async def stopped() -> Visit:
        async with httpx.AsyncClient() as client:
            body = BODIES[1] | {"num_inference_steps": 50}
            return await visit(client, cluster.url, body, cancel_at=Moment("started"))

    assert asyncio.run(stopped()).outcome == "cancelled"


def test_too_many_are_refused_and_not_kept(cluster: RayCluster):
    made = asyncio.run(ask_at_once(cluster.url, BODIES[1:] * 7))
    outcomes = [one.outcome for one in made]
    # Two requests are drawn at once, and two wait.
    assert sorted(outcomes) == ["done"] * 4 + ["refused: full"] * 3


@pytest.mark.parametrize("head", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_clients_that_only_hold_a_connection_are_hung_up_on(cluster: RayCluster, head: bytes):
    """The front-end closes idle connections as `app.py` does; http/test_app.py tests it in full."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", int(cluster.url.rpartition(":")[2]))) as slow:
        slow.sendall(head)
        slow.settimeout(60)
        assert slow.recv(100) == b""
    assert time.monotonic() - began < HEAD_WITHIN_S + 20


def test_ray_refuses_everything_without_its_token(cluster: RayCluster):
    """Without the token Ray refuses everything; in CVE-2023-48022 anyone could run commands."""
    job = {"entrypoint": "true"}
    right = {"Authorization": f"Bearer {os.environ['RAY_AUTH_TOKEN']}"}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with httpx.Client(base_url=cluster.dashboard, headers=headers) as stranger:
            answers = [
                stranger.post("/api/jobs/", json=job),
                stranger.put("/api/serve/applications/", json={"applications": []}),
                stranger.delete("/api/serve/applications/"),
                *(stranger.get(path) for path in READABLE),
            ]
        assert {answer.status_code for answer in answers} <= {401, 403}
    for path in READABLE:
        assert httpx.get(f"{cluster.dashboard}{path}", headers=right).status_code == 200


def test_a_replica_that_is_killed_loses_nothing(cluster: RayCluster, alone: list[Visit]):
    before = cluster.replicas()
    assert len(before) == 2

    async def killed_in_the_midst() -> list[Visit]:
        asked = asyncio.create_task(ask_at_once(cluster.url, BODIES[1:] * 4))
        while not await drawn_at_once(cluster.url, 2):
            await asyncio.sleep(0.02)
        kill(min(before))
        return await asked

    made = asyncio.run(killed_in_the_midst())
    assert [one.outcome for one in made] == ["done"] * 4
    assert all(one.pictures == alone[1].pictures and not one.duplicates for one in made)
    assert sum(len(one.recovery_s) for one in made) == 1
    # Ray replaces the killed replica.
    deadline = time.monotonic() + 300
    while len(cluster.replicas()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert cluster.replicas() != before


async def drawn_at_once(url: str, count: int) -> bool:
    async with httpx.AsyncClient() as client:
        answer = (await client.get(f"{url}/readyz")).json()
    return answer["running"] == count
