"""What lies in deploy/ fits its schemas, and this program."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import generate_latest

from serving import options
from serving.observer import Observer

DEPLOY = Path(__file__).parent.parent / "deploy"
KUBERNETES = "1.37"
# Settings that are not this program's own.
OTHERS = {"HF_HOME"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def pods() -> list[dict[str, Any]]:
    """The specifications of all pods."""
    [*_, deployment] = documents("kubernetes.yaml")
    [*_, service] = documents("kuberay.yaml")
    cluster = service["spec"]["rayClusterConfig"]
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
    for one in [*own, *({**about, "spec": pod} for pod in pods())]:
        kubernetes_validate.validate(one, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**about, "spec": {}}, KUBERNETES, strict=True)


def test_requests_are_finished_before_a_pod_is_killed():
    stop_within_s = options.read([], {}).stop_within
    drawing = [pod for pod in pods() if pod["containers"][0]["name"] != "ray-head"]
    assert all(pod["terminationGracePeriodSeconds"] > stop_within_s for pod in drawing)
    service = (DEPLOY / "sdxl-jax.service").read_text()
    assert int(re.findall(r"TimeoutStopSec=(\d+)", service)[0]) > stop_within_s


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


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_systemd_takes_its_unit(tmp_path: Path):
    unit = (DEPLOY / "sdxl-jax.service").read_text()
    here = tmp_path / "sdxl-jax.service"
    here.write_text(unit.replace("/opt/sdxl-jax/.venv/bin/python", sys.executable))
    checked = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_only_settings_that_there_are(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        options.read(["--help"], {})
    known = {*re.findall(r"\[([A-Z_]+)\]", capsys.readouterr().out), *OTHERS}
    unit = (DEPLOY / "sdxl-jax.service").read_text()
    lines = re.findall(r"^Environment=(.*)", unit, re.MULTILINE)
    named = {part.partition("=")[0] for line in lines for part in line.split()}
    for pod in pods():
        named |= {each["name"] for one in pod["containers"] for each in one.get("env", [])}
    [*_, service] = documents("kuberay.yaml")
    [application] = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    named |= application["runtime_env"]["env_vars"].keys()
    named |= documents("compose.yaml")[0]["services"]["sdxl"]["environment"].keys()
    assert named <= known


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
