"""The files in deploy/ are valid by their schemas and match this program."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import generate_latest

from serving import settings
from serving.http import server
from serving.metrics import Observer

DEPLOY = Path(__file__).parent.parent / "deploy"
KUBERNETES = "1.37"
# Environment variables that are not settings of this program.
OTHERS = {"HF_HOME"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def ray_service() -> dict[str, Any]:
    [*_, service] = documents("kuberay.yaml")
    return service


def pods() -> list[dict[str, Any]]:
    """Return the specifications of all pods."""
    [*_, deployment] = documents("kubernetes.yaml")
    cluster = ray_service()["spec"]["rayClusterConfig"]
    owners = [deployment["spec"], cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [owner["template"]["spec"] for owner in owners]


def test_kubernetes_takes_its_own_kinds():
    own = [
        one
        for name in ("kubernetes.yaml", "kuberay.yaml")
        for one in documents(name)
        if one["kind"] != "RayService"
    ]
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}
    entrance = {**about, "kind": "Service", **ray_service()["spec"]["serveService"]}
    for one in [*own, entrance, *({**about, "spec": pod} for pod in pods())]:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**about, "spec": {}}, KUBERNETES, strict=True)


def takes_ray_service(service: dict[str, Any]) -> None:
    schema = yaml.safe_load(Path(__file__).with_name("rayservice.schema.yaml").read_text())
    jsonschema.validate(service, schema, jsonschema.Draft202012Validator)


def test_kuberay_takes_its_service():
    takes_ray_service(ray_service())


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ([], "apiVersion", "ray.io/v1alpha1"),
        (["metadata"], "name", "Sdxl"),
        (["spec"], "serveConfigV1", ""),
        (["spec", "rayClusterConfig"], "enableInTreeAutoscaling", "yes"),
        (["spec", "rayClusterConfig", "headGroupSpec", "rayStartParams"], "num-cpus", 0),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0], "numOfHost", 1),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0], "maxReplicas", "4"),
    ],
)
def test_kuberay_refuses_unknown_fields(place: list[Any], name: str, value: object):
    service = ray_service()
    at: Any = service
    for step in place:
        at = at[step]
    at[name] = value
    with pytest.raises(jsonschema.ValidationError):
        takes_ray_service(service)


def test_requests_are_finished_before_a_pod_is_killed():
    """The grace period covers drawing the pictures and sending them."""
    ends_within_s = settings.read([], {}).stop_within + server.ANSWERS_ON_S + server.GOODBYE_S
    drawing = [pod for pod in pods() if pod["containers"][0]["name"] != "ray-head"]
    service = (DEPLOY / "sdxl-jax.service").read_text()
    compose = documents("compose.yaml")[0]["services"]["sdxl"]
    for given_s in (
        *(pod["terminationGracePeriodSeconds"] for pod in drawing),
        int(re.findall(r"TimeoutStopSec=(\d+)", service)[0]),
        int(compose["stop_grace_period"].removesuffix("s")),
    ):
        assert given_s > ends_within_s + 5


def test_compose_takes_its_files():
    files = [DEPLOY / "compose.yaml", DEPLOY / "compose.gpu.yaml"]
    checked = subprocess.run(
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files],
        executable=Path(sys.executable).with_name("check-jsonschema"),
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    for file in files:
        for service in yaml.safe_load(file.read_text())["services"].values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                assert not source.startswith("./") or (DEPLOY / source).exists()


# Directives known to systemd: systemd.unit(5), .service(5), .exec(5), .kill(5).
UNIT = {
    "Unit": {"Description", "Wants", "After"},
    "Service": {
        *("User", "WorkingDirectory", "Environment", "EnvironmentFile", "ExecStart"),
        *("Restart", "RestartSec", "TimeoutStopSec", "LimitMEMLOCK"),
        *("CacheDirectory", "CacheDirectoryMode", "NoNewPrivileges", "PrivateTmp"),
        *("ProtectHome", "ProtectSystem", "ProtectKernelTunables", "ProtectKernelModules"),
        *("ProtectControlGroups", "RestrictSUIDSGID", "LockPersonality"),
    },
    "Install": {"WantedBy"},
}


def test_systemd_takes_its_unit(tmp_path: Path):
    """Every line is a directive of systemd; where systemd is installed, it verifies the unit."""
    unit = (DEPLOY / "sdxl-jax.service").read_text()
    section = ""
    for line in filter(None, unit.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        elif not line.startswith("#"):
            key, _, value = line.partition("=")
            assert key in UNIT[section], line
            assert value, line
    program = re.findall(r"^ExecStart=(\S+) (\S+)$", unit, re.MULTILINE)
    assert program == [("/opt/sdxl-jax/.venv/bin/python", "app.py")]
    assert (DEPLOY.parent / "app.py").exists()
    if systemd := shutil.which("systemd-analyze"):
        here = tmp_path / "sdxl-jax.service"
        here.write_text(unit.replace("/opt/sdxl-jax/.venv/bin/python", sys.executable))
        checked = subprocess.run([systemd, "verify", here], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_only_settings_that_there_are(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        settings.read(["--help"], {})
    known = {*re.findall(r"\[([A-Z_]+)\]", capsys.readouterr().out), *OTHERS}
    unit = (DEPLOY / "sdxl-jax.service").read_text()
    lines = re.findall(r"^Environment=(.*)", unit, re.MULTILINE)
    named = {part.partition("=")[0] for line in lines for part in line.split()}
    for pod in pods():
        named |= {each["name"] for one in pod["containers"] for each in one.get("env", [])}
    serve = yaml.safe_load(ray_service()["spec"]["serveConfigV2"])
    [application] = serve["applications"]
    named |= application["runtime_env"]["env_vars"].keys()
    named |= documents("compose.yaml")[0]["services"]["sdxl"]["environment"].keys()
    assert named <= known


def test_kuberay_leads_visitors_to_the_front_end():
    [port] = ray_service()["spec"]["serveService"]["spec"]["ports"]
    image = (DEPLOY.parent / "Dockerfile").read_text()
    assert f"PORT={port['targetPort']} " in image
    # By default, KubeRay routes visitors to the container port of this name.
    [head] = ray_service()["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"][
        "containers"
    ]
    assert port["name"] in {each["name"] for each in head["ports"]}


def test_prometheus_asks_where_compose_serves():
    [job] = documents("prometheus.yaml")[0]["scrape_configs"]
    [target] = [each for one in job["static_configs"] for each in one["targets"]]
    host, _, port = target.partition(":")
    [published] = documents("compose.yaml")[0]["services"][host]["ports"]
    assert published.endswith(f":{port}")


def test_the_dashboard_shows_what_is_measured():
    observer = Observer()
    observer.compiled({"miss": 1.0})
    found = generate_latest(observer.registry).decode()
    measured = dict(re.findall(r"# TYPE (\w+) (\w+)", found))
    dashboard = json.loads((DEPLOY / "grafana" / "sdxl.json").read_text())
    [source] = documents("grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
    for panel in dashboard["panels"]:
        assert panel["datasource"]["uid"] == source["uid"]
        for target in panel["targets"]:
            [name] = re.findall(r"sdxl_\w+", target["expr"])
            kind = measured[name.removesuffix("_bucket")]
            assert (kind == "histogram") == name.endswith("_bucket")


def test_a_rollout_waits_for_the_first_start():
    [*_, deployment] = documents("kubernetes.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    starts_within_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert deployment["spec"]["progressDeadlineSeconds"] > starts_within_s
