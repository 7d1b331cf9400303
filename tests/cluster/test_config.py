"""What Ray is told in deploy/, in Ray's own words."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from serving.ray_app import Fleet

MANIFEST = Path(__file__).parents[2] / "deploy" / "kuberay.yaml"


def test_ray_takes_the_configuration_and_there_are_hosts_for_all_painters():
    [*_, service] = yaml.safe_load_all(MANIFEST.read_text())
    config = ServeDeploySchema.model_validate(yaml.safe_load(service["spec"]["serveConfigV2"]))
    [application] = config.applications
    assert application.import_path == "serving.ray_app:app"
    fleet = Fleet.model_validate(application.args)
    [hosts] = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert fleet.min_replicas == hosts["minReplicas"]
    assert fleet.max_replicas == hosts["maxReplicas"]
    limits = hosts["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["google.com/tpu"] == str(fleet.chips)


@pytest.mark.parametrize("wrong", [{"chips": "0"}, {"accelerator": "abacus"}, {"replicas": "2"}])
def test_what_cannot_be_said_of_a_fleet(wrong: dict[str, str]):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        Fleet.model_validate(wrong)
