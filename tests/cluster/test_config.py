"""The Ray configuration in deploy/, checked by Ray's own code."""

import asyncio
from pathlib import Path
from unittest.mock import Mock

import pytest
import ray
import yaml
from pydantic import ValidationError
from ray.autoscaler._private.kuberay import autoscaling_config
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema

from cluster import ByDemand, Fleet, Replica, build
from serving import bootstrap, settings
from tests.fake_pipeline import FakePipeline

MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay.yaml"


def test_ray_takes_the_configuration_and_there_are_hosts_for_all_replicas():
    [*_, service] = yaml.safe_load_all(MANIFEST.read_text())
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    [application] = config.applications
    assert application.import_path == "cluster:app"
    fleet = Fleet.model_validate(application.args)
    [hosts] = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert fleet.min_replicas == hosts["minReplicas"]
    assert fleet.max_replicas == hosts["maxReplicas"]
    limits = hosts["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["google.com/tpu"] == str(fleet.chips)


def test_ray_reads_from_the_cluster_what_its_hosts_have():
    [*_, service] = yaml.safe_load_all(MANIFEST.read_text())
    cluster = {
        "metadata": {"name": "sdxl", "namespace": "default"},
        "spec": service["spec"]["rayClusterConfig"],
    }
    # This function is private, but it runs in the head's pod and ends with Ray's schema check.
    read = autoscaling_config._derive_autoscaling_config_from_ray_cr(cluster)
    hosts = read["available_node_types"]["v5e-4"]
    assert (hosts["min_workers"], hosts["max_workers"]) == (1, 4)
    assert hosts["resources"]["TPU"] == 4
    assert read["available_node_types"]["headgroup"]["resources"]["CPU"] == 0


@pytest.mark.parametrize("wrong", [{"chips": "0"}, {"accelerator": "abacus"}, {"replicas": "2"}])
def test_impossible_settings_of_a_fleet_are_refused(wrong: dict[str, str]):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Fleet.model_validate(wrong)


def test_a_fleet_that_grows_is_one_that_ray_takes():
    fleet = Fleet(min_replicas=1, max_replicas=3)
    assert isinstance(build(fleet, settings.read([], {}), bootstrap.load_pipeline), Application)


def test_the_number_of_replicas_follows_the_demand():
    seen = Mock(aggregated_metrics={"demand": {"one": 6.0, "who heard it late": 5.0}})
    assert ByDemand(target=2)(seen) == (3.0, {})
    assert ByDemand(target=2)(Mock(aggregated_metrics={})) == (0.0, {})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_replica_announces_its_own_address(host: str, monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: host)
    monkeypatch.setattr(Replica, "_announce", lambda self: told.append(self._url))

    async def check() -> None:
        chosen = settings.read([], {})
        replica = Replica(chosen, "a key", lambda _: (FakePipeline().as_pipeline(), False))
        try:
            async with asyncio.timeout(60):
                while not replica._server.started:
                    await asyncio.sleep(0.01)
            await replica.check_health()
        finally:
            await replica.__del__()
            monkeypatch.delattr(Replica, "__del__")  # Ray awaits it, Python does not

    asyncio.run(check())
    [url] = told
    assert url.startswith("http://[::1]:" if host == "::1" else "http://127.0.0.1:")
