"""Many machines with Ray Serve: `serve run cluster:app` starts one front-end and painters.

Ray starts the processes, has as many painters as there is work for, and replaces those that end or
are stuck. All else is as without Ray: the front-end serves the page and the APIs at `HOST` and
`PORT`, each painter is an instance like any other, with a port of its own, and tells the front-end
where it is; `serving.generators.remote` does the rest. The environment variables of `app.py` are
the settings here as well.
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

from serving import bootstrap, logs, settings
from serving.generator import Model
from serving.generators.client import Client, http_url
from serving.generators.remote import RemoteGenerator
from serving.http import app as http_app
from serving.http.server import ANSWERS_ON_S, GOODBYE_S, Server
from serving.metrics import Observer
from serving.settings import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

# Between two times that a painter says where it is; a front-end that was replaced learns it so.
ANNOUNCE_S = 2.0
# Ray looks so often whether a painter is well, and gives up on one after three times that.
HEALTH_S = 5.0
# For what is left to do when all requests have ended: what is still being sent, and Ray's own.
ENDS_ON_S = ANSWERS_ON_S + GOODBYE_S + 5.0


Whole = Annotated[int, Field(ge=1)]


class Fleet(BaseModel):
    """What can be said behind `serve run cluster:app`, as `name=value`."""

    model_config = ConfigDict(extra="forbid")

    accelerator: Literal["cpu", "gpu", "tpu"] = "cpu"
    chips: Whole = 4  # GPUs or TPU chips of a host; a painter takes all of them
    min_replicas: Whole = 2  # painters that are always there
    max_replicas: Whole = 2  # painters that there are at most
    target: Annotated[float, Field(gt=0)] = 2.0  # requests, drawn or waiting, for each painter


def app(fleet: Fleet) -> Application:
    """The application, with the settings of this process's environment."""
    return build(fleet, settings.read([], os.environ), bootstrap.load_pipeline)


def build(
    fleet: Fleet, chosen: Options, load: "Callable[[Options], tuple[SDXLPipeline, bool]]"
) -> Application:
    """A front-end and its painters, whose pipelines `load` gets: it runs where they draw."""
    key = secrets.token_urlsafe()  # which only this front-end and these painters know
    ends_within_s = chosen.stop_within + ENDS_ON_S
    painters = serve.deployment(
        ray_actor_options=_host(fleet),
        health_check_period_s=HEALTH_S,
        health_check_timeout_s=2 * HEALTH_S,
        graceful_shutdown_timeout_s=ends_within_s,
        **_scaling(fleet),
    )(Painter)
    front_end = serve.deployment(
        # On the head's host, which stays when hosts of painters come and go.
        ray_actor_options={"num_cpus": 0, "resources": {"node:__internal_head__": 0.001}},
        logging_config={"enable_access_log": False},  # every word of a painter would be a line
        health_check_period_s=HEALTH_S,
        graceful_shutdown_timeout_s=ends_within_s,
    )(FrontEnd)
    return front_end.bind(chosen, key, painters.bind(chosen, key, load))


def _host(fleet: Fleet) -> dict[str, Any]:
    """What one painter takes of a cluster: the accelerators of one host, all of them."""
    platforms = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}[fleet.accelerator]
    chips = {"gpu": {"num_gpus": fleet.chips}, "tpu": {"resources": {"TPU": fleet.chips}}}
    return {
        "num_cpus": 1,
        # A painter whose accelerator is not there does not start, rather than draw on the CPU.
        "runtime_env": {"env_vars": {"JAX_PLATFORMS": platforms}},
        **chips.get(fleet.accelerator, {}),
    }


def _scaling(fleet: Fleet) -> dict[str, Any]:
    """How many painters there are."""
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
    """As many painters as have `target` requests each, with those in the front-end's queue."""

    def __init__(self, target: float) -> None:
        self._target = target

    def __call__(self, seen: AutoscalingContext) -> tuple[float, dict[str, object]]:
        """Called by Ray's controller; every painter says what the front-end told it."""
        said = (seen.aggregated_metrics or {}).get("demand", {})
        return max(said.values(), default=0.0) / self._target, {}


class Painter:
    """An instance without a page, on a port of its own; compiled and warm once it is there."""

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
        self._model = generator.model
        self._demand = 0
        self._over = threading.Event()
        # Ray's event loop shall not wait for pictures, nor they for Ray's.
        web = http_app.build(generator, observer, keys=[key])
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

    async def model(self) -> Model:
        """The model that it draws with."""
        return self._model

    async def check_health(self) -> None:
        """Called by Ray.

        Raises:
            httpx.HTTPError: it does not answer, or says that its devices do not.
        """
        answer = await self._client.get(f"{self._url}/healthz", timeout=HEALTH_S)
        answer.raise_for_status()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Ray: what the whole fleet has to do, as the front-end said last."""
        return {"demand": self._demand}

    def _announce(self) -> None:
        name = serve.get_replica_context().app_name
        front_end = serve.get_deployment_handle("FrontEnd", app_name=name)
        while not self._over.wait(ANNOUNCE_S):
            try:
                self._demand = front_end.meet.remote(self._url).result(timeout_s=10)
            except Exception as error:  # it may be there again the next time
                log.warning("The front-end cannot be told of %s: %r", self._url, error)

    async def __del__(self) -> None:
        """Called by Ray: what is being drawn is finished."""
        self._over.set()
        self._server.should_exit = True
        for thread in self._threads:
            await asyncio.to_thread(thread.join)


class FrontEnd:
    """The page and the APIs, over whichever painters there are. Has no model and no JAX.

    On a port of its own, with the server that every instance has: Ray's proxy would let clients
    hold a connection, or a place, for as long as they like.
    """

    async def __init__(self, chosen: Options, key: str, painters: DeploymentHandle) -> None:
        logs.start(chosen.log_format)
        bootstrap.prepare_environment()
        # Gradio reads the environment as it is imported.
        from ui import server as page_server

        observer = Observer(log_prompts=chosen.log_prompts)
        keys = bootstrap.read_keys("API_KEYS_FILE", chosen.api_keys_file)
        client = Client({"Authorization": f"Bearer {key}"})
        model = await painters.model.remote()  # waits until there is one
        self._generator = RemoteGenerator(client, [], model, *bootstrap.limits(chosen), observer)
        self._server = page_server.build(self._generator, observer, keys, chosen)
        # One that Ray puts in this one's place begins before this one has ended.
        door = bootstrap.listen(chosen.host, chosen.port, reuse_port=True)
        self._serving = asyncio.create_task(self._server.serve([door]))
        while not self._server.started:
            await self.check_health()
            await asyncio.sleep(0.05)

    async def __call__(self, request: Request) -> Response:
        """What Ray's own proxy passes on."""
        return Response(f"The page is on port {self._server.config.port}.", status_code=404)

    async def check_health(self) -> None:
        """Called by Ray.

        Raises:
            RuntimeError: it does not serve any more.
        """
        if self._serving.done():
            raise RuntimeError("The server has ended") from self._serving.exception()

    async def meet(self, url: str) -> int:
        """Called by a painter: has it draw. Returns how many requests there are to be drawn."""
        self._generator.add(url)
        load = self._generator.load
        return load.waiting + load.running

    async def __del__(self) -> None:
        """Called by Ray: what was asked for is finished."""
        self._server.should_exit = True
        await self._serving
