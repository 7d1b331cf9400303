"""Ray Serve application for many machines: `serve run cluster:app` starts a front-end and replicas.

Ray starts the processes, adapts the number of replicas to the work, and replaces processes that
end or are stuck. The front-end serves the page and the APIs at `HOST` and `PORT`. Each replica is
an ordinary instance on a port of its own that announces its URL to the front-end;
`serving.generators.remote` then sends it requests. The environment variables of `app.py` are the
settings here as well.
"""

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import ray
from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from ray.serve.handle import DeploymentHandle

from pipeline.facts import Facts
from serving import bootstrap, logs, settings
from serving.generators.client import Client, http_url
from serving.generators.remote import RemoteDrawer
from serving.http import app as http_app
from serving.http.auth import Access, ApiKeys, digests_of
from serving.http.server import ANSWERS_ON_S, GOODBYE_S, Server
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.settings import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

# Seconds between two announcements of a replica; a new front-end learns of its replicas this way.
ANNOUNCE_S = 2.0
# Seconds between two of Ray's health checks. Ray replaces a replica after three times that.
HEALTH_S = 5.0
# Seconds to send the last answers, and for Ray's own work, once all requests have ended.
ENDS_ON_S = ANSWERS_ON_S + GOODBYE_S + 5.0


Whole = Annotated[int, Field(ge=1)]


class Fleet(BaseModel):
    """Arguments of `serve run cluster:app`, given as `name=value`."""

    model_config = ConfigDict(extra="forbid")

    accelerator: Literal["cpu", "gpu", "tpu"] = "cpu"
    chips: Whole = 4  # GPUs or TPU chips of a host; a replica takes all of them
    min_replicas: Whole = 2  # lower limit of the number of replicas
    max_replicas: Whole = 2  # upper limit of the number of replicas
    target: Annotated[float, Field(gt=0)] = 2.0  # requests per replica, drawn or waiting


def app(fleet: Fleet) -> Application:
    """Build the application with the settings in this process's environment."""
    return build(fleet, settings.read([], os.environ), bootstrap.load_pipeline)


def build(
    fleet: Fleet, chosen: Options, load: "Callable[[Options], tuple[SDXLPipeline, bool]]"
) -> Application:
    """Build the application: a front-end and its replicas.

    `load` runs in each replica. It returns the pipeline, and whether its model is the bundled one.
    """
    key = secrets.token_urlsafe()  # known only to this front-end and its replicas
    ends_within_s = chosen.stop_within + ENDS_ON_S
    replicas = serve.deployment(
        ray_actor_options=_host(fleet),
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=2 * HEALTH_S,
        graceful_shutdown_timeout_s=ends_within_s,
        **_scaling(fleet),
    )(Replica)
    front_end = serve.deployment(
        # On the head node, which stays while nodes with replicas come and go.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        logging_config={"enable_access_log": False},  # it logs every call of a replica
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=ends_within_s,
    )(FrontEnd)
    return front_end.bind(chosen, key, replicas.bind(chosen, key, load))


def _host(fleet: Fleet) -> dict[str, Any]:
    """Return the Ray resources of one replica: all accelerators of one host."""
    platforms = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}[fleet.accelerator]
    chips = {"gpu": {"num_gpus": fleet.chips}, "tpu": {"resources": {"TPU": fleet.chips}}}
    return {
        "num_cpus": 1,
        # Without its accelerator a replica fails to start; it would be too slow on the CPU.
        "runtime_env": {"env_vars": {"JAX_PLATFORMS": platforms}},
        **chips.get(fleet.accelerator, {}),
    }


def _scaling(fleet: Fleet) -> dict[str, Any]:
    """Return the options that set the number of replicas."""
    if fleet.min_replicas == fleet.max_replicas:
        return {"num_replicas": fleet.min_replicas}

    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=fleet.min_replicas,
            max_replicas=fleet.max_replicas,
            policy=AutoscalingPolicy(
                policy_function=f"{__name__}:ByDemand", policy_kwargs={"target": fleet.target}
            ),
        )
    }


class ByDemand:
    """Autoscaling policy: one replica per `target` requests, drawn or in the front-end's queue."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, seen: AutoscalingContext) -> tuple[float, dict[str, object]]:
        """Return the number of replicas to run, and no state; Ray's controller calls this.

        Each replica reports the demand that the front-end told it last. The highest report counts.
        """
        said = (seen.aggregated_metrics or {}).get("demand", {})
        return max(said.values(), default=0.0) / self._target, {}


class Replica:
    """Instance without a page, on a port of its own; it is compiled and warm once constructed."""

    def __init__(
        self,
        chosen: Options,
        key: str,
        load: "Callable[[Options], tuple[SDXLPipeline, bool]]",
    ) -> None:
        logs.start(chosen.log_format)
        observer = Observer(log_prompts=chosen.log_prompts)
        generator = bootstrap.local_generator(
            chosen, bootstrap.limits(chosen), observer, load(chosen)
        )
        self._model = generator.facts
        self._demand = 0
        self._over = threading.Event()
        # The server has a thread and an event loop of its own, so that it and Ray never wait for
        # each other.
        web = http_app.build(generator, observer, Access(ApiKeys(lambda: digests_of([key]))))
        host = ray.util.get_node_ip_address()
        door = bootstrap.listen(host, 0)
        port = door.getsockname()[1]
        self._url = http_url(host, port)
        self._server = Server(web, generator, host, port, chosen.stop_within)
        self._client = Client()
        self._threads = [
            threading.Thread(target=lambda: asyncio.run(self._server.serve([door]))),
            threading.Thread(target=self._announce),
        ]
        for thread in self._threads:
            thread.start()

    async def facts(self) -> Facts:
        """Return the model that this replica draws with."""
        return self._model

    async def check_health(self) -> None:
        """Check the replica's health; Ray calls this.

        Raises:
            httpx.HTTPError: if the server does not answer, or reports that its devices are stuck.
        """
        answer = await self._client.get(f"{self._url}/healthz", timeout=HEALTH_S)
        answer.raise_for_status()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the demand on the whole fleet, as the front-end told it last; Ray calls this."""
        return {"demand": self._demand}

    def _announce(self) -> None:
        name = serve.get_replica_context().app_name
        front_end = serve.get_deployment_handle("FrontEnd", app_name=name)
        while not self._over.wait(ANNOUNCE_S):
            try:
                self._demand = front_end.meet.remote(self._url).result(timeout_s=10)
            except Exception as error:  # the next announcement may succeed
                log.warning("Telling the front-end about %s failed: %r", self._url, error)

    async def __del__(self) -> None:
        """Finish the requests being drawn and stop the server; Ray calls this."""
        self._over.set()
        self._server.should_exit = True
        for thread in self._threads:
            await asyncio.to_thread(thread.join)


class FrontEnd:
    """The page and the APIs, over the replicas that announce themselves. Needs no model and no JAX.

    They have a port of their own and the same server as any instance, because Ray's proxy would let
    clients hold a connection, or a place in the queue, for as long as they like.
    """

    async def __init__(self, chosen: Options, key: str, replicas: DeploymentHandle) -> None:
        logs.start(chosen.log_format)
        bootstrap.prepare_environment()
        # Gradio reads the environment when it is imported.
        from ui import server as page_server

        observer = Observer(log_prompts=chosen.log_prompts)
        access = bootstrap.access(chosen)
        client = Client({"Authorization": f"Bearer {key}"})
        model = await replicas.facts.remote()  # waits for the first replica
        drawer = RemoteDrawer(client, [], model, observer)
        self._backends = drawer.backends
        self._generator = RequestLifecycle(drawer, bootstrap.limits(chosen), observer)
        self._server = page_server.build(self._generator, observer, access, chosen)
        # Ray starts a new front-end before the old one has ended: both listen on this port.
        door = bootstrap.listen(chosen.host, chosen.port, reuse_port=True)
        self._serving = asyncio.create_task(self._server.serve([door]))
        while not self._server.started:
            await self.check_health()
            await asyncio.sleep(0.05)
        log.info("Open %s", http_url(chosen.host, chosen.port))

    async def __call__(self, request: Request) -> Response:
        """Answer a request that came through Ray's own proxy: name the page's port."""
        return Response(f"The page is on port {self._server.config.port}.", status_code=404)

    async def check_health(self) -> None:
        """Check that the server runs; Ray calls this.

        Raises:
            RuntimeError: if the server has ended.
        """
        if self._serving.done():
            raise RuntimeError("The server has ended") from self._serving.exception()

    async def meet(self, url: str) -> int:
        """Add the replica at `url`; return how many requests wait or run. Replicas call this."""
        self._backends.add(url)
        load = self._generator.load
        return load.waiting + load.running

    async def __del__(self) -> None:
        """Finish all requests and stop the server; Ray calls this."""
        self._server.should_exit = True
        await self._serving
