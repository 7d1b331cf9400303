"""The files in deploy/ are valid by their schemas and match this program."""

import ast
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from pathlib import Path
from string import Template
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from prometheus_client import generate_latest
from starlette.testclient import TestClient

from benchmarks.processes import ON_A_CPU, Instance
from serving import settings
from serving.http import app as http_app
from serving.http import server
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import local_generator
from tests.web import start

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.37"
# Environment variables that are for libraries and tools.
OTHERS = {"HF_HOME", "PATH", "PYTHONPATH", "PYTHONUNBUFFERED"}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def ray_service() -> dict[str, Any]:
    [*_, service] = documents("kuberay.yaml")
    return service


def pods(*files: str) -> list[dict[str, Any]]:
    """Return the specifications of the pods in some files, by default in all."""
    [*_, deployment] = documents("kubernetes.yaml")
    cluster = ray_service()["spec"]["rayClusterConfig"]
    owners = {
        "kubernetes.yaml": [deployment["spec"]],
        "kuberay.yaml": [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]],
    }
    return [owner["template"]["spec"] for file in files or owners for owner in owners[file]]


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


def unit() -> dict[str, list[str]]:
    """Return the values of each directive of the systemd unit."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "sdxl-jax.service").read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_systemd_starts_the_program_that_make_sets_up(tmp_path: Path):
    """The unit runs an existing file by make's Python; where systemd is, it verifies the unit."""
    [command], [folder] = unit()["ExecStart"], unit()["WorkingDirectory"]
    python, program = command.split()
    [venv] = re.findall(r"^VENV := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert Path(python) == Path(folder) / venv / "bin" / "python"
    assert (ROOT / program).is_file()
    if systemd := shutil.which("systemd-analyze"):
        here = tmp_path / "sdxl-jax.service"
        text = (DEPLOY / "sdxl-jax.service").read_text()
        here.write_text(text.replace(python, sys.executable))
        checked = subprocess.run([systemd, "verify", here], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_systemd_lets_the_program_write_where_it_has_to():
    """With a file system that is read-only, all that is kept lies in the unit's cache folder."""
    assert unit()["ProtectSystem"] == ["strict"]
    [cache] = unit()["CacheDirectory"]
    variables = environments()["systemd"]
    for name in ("CACHE_DIR", "HF_HOME"):
        assert Path(variables[name]).is_relative_to(Path("%C") / cache), name


def image() -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the image's variables, and its other instructions with their arguments."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    variables = [each for name, value in steps if name == "ENV" for each in shlex.split(value)]
    return dict(each.split("=", 1) for each in variables), steps


def environments() -> dict[str, dict[str, str]]:
    """Return the variables that the program gets in each way to run it; the image has its own."""
    own, _ = image()
    [*_, deployment] = documents("kubernetes.yaml")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    serve = yaml.safe_load(ray_service()["spec"]["serveConfigV2"])
    [application] = serve["applications"]
    lines = " ".join(unit()["Environment"])
    return {
        "image": own,
        "kubernetes": own | {each["name"]: each["value"] for each in container["env"]},
        "kuberay": own | application["runtime_env"]["env_vars"],
        "compose": own | documents("compose.yaml")[0]["services"]["sdxl"]["environment"],
        "systemd": dict(each.split("=", 1) for each in lines.split()),
    }


@pytest.mark.parametrize("way", environments())
def test_the_program_takes_its_settings(way: str):
    """Every variable is a setting or belongs to a library, and has a value that is possible."""
    variables = environments()[way]
    known = {setting.variable for setting in settings.described()}
    assert variables.keys() <= known | OTHERS
    chosen = settings.read([], variables)
    for name in variables.keys() & known:
        assert str(getattr(chosen, name.lower())) == variables[name], name
    assert chosen.host == "0.0.0.0"  # not only this machine reaches a container or a service


def test_a_misspelt_setting_would_be_found():
    with pytest.raises(SystemExit):
        settings.read([], {"RATE_PER_ADDRESS": "twenty"})
    assert "RATE_PER_ADRESS" not in {setting.variable for setting in settings.described()}


@pytest.fixture(scope="module")
def program() -> TestClient:
    """Return a client of the program's own routes, over a stand-in for the model."""
    pipe, observer = FakePipeline().as_pipeline(), Observer()
    generator = local_generator(pipe, Limits(), observer)
    return TestClient(http_app.build(generator, observer))


def test_probes_ask_what_the_program_answers(program: TestClient):
    """Each probe's path exists, on a port that the container names and the image listens on."""
    probes = 0
    for pod in pods():
        for container in pod["containers"]:
            ports = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                if kind not in container:
                    continue
                asked = container[kind]["httpGet"]
                assert program.get(asked["path"]).status_code == 200, asked
                assert str(ports[asked["port"]]) == image()[0]["PORT"]
                probes += 1
    assert probes >= 3


HOME = "/home/user"
# Stand-ins for what changes the system: pip needs every list that it is given, and those inside.
STAND_INS = {
    "useradd": "",
    "pip": """for word; do case $word in *.txt)
        for list in "$word" $(sed -n 's/^-r //p' "$word"); do test -f "$list" || exit 1; done
    esac; done""",
}


def context() -> list[str]:
    """Return the files of a checkout that Docker sees, by .dockerignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.check_output(command, cwd=ROOT, text=True).splitlines()
    patterns = (ROOT / ".dockerignore").read_text().split()

    def is_seen(file: str) -> bool:
        parents = [file, *map(str, Path(file).parents)]
        matches = [each for each in patterns if filter_names(parents, each.removeprefix("!"))]
        return not matches or matches[-1].startswith("!")

    return [file for file in files if is_seen(file) and (ROOT / file).is_file()]


def build(root: Path, **arguments: str) -> tuple[Path, dict[str, str]]:
    """Take the steps of the Dockerfile in `root`; return the program's folder and its variables."""
    stand_ins, folder = root / "stand-ins", root
    stand_ins.mkdir()
    for name, script in STAND_INS.items():
        (stand_ins / name).write_text(f"#!/bin/sh\n{script}\n")
        (stand_ins / name).chmod(0o755)
    variables = {"PATH": f"{stand_ins}:{os.environ['PATH']}"}
    for step, words in image()[1]:
        value = words.replace(HOME, f"{root}{HOME}")
        if step == "ARG":
            name, _, default = value.partition("=")
            variables[name] = arguments.get(name, default)
        elif step == "ENV":
            pairs = [each.split("=", 1) for each in shlex.split(value)]
            variables |= {name: Template(text).substitute(variables) for name, text in pairs}
        elif step == "WORKDIR":
            folder = Path(value)
            folder.mkdir(parents=True)
        elif step == "COPY":
            [pattern, _] = [word for word in value.split() if not word.startswith("--")]
            copied = [file for file in context() if pattern == "." or fnmatch(file, pattern)]
            assert copied, words
            for file in copied:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, folder / file)
        elif step == "RUN":
            subprocess.run(["sh", "-euc", value], cwd=folder, env=variables, check=True)
    return folder, variables


@pytest.mark.parametrize(
    ("accelerator", "cluster"), [("tpu", "yes"), ("cuda12", ""), ("cuda13", "")]
)
def test_every_image_can_be_built(accelerator: str, cluster: str, tmp_path: Path):
    folder, variables = build(tmp_path, ACCELERATOR=accelerator, CLUSTER=cluster)
    assert stat.S_IMODE(Path(variables["CACHE_DIR"]).stat().st_mode) == 0o700
    assert not {"tests", "docs", "tools", "Makefile"} & {file.name for file in folder.iterdir()}
    users = {pod.get("securityContext", {}).get("runAsUser") for pod in pods()}
    assert users - {None} == {int(dict(image()[1])["USER"])}


def test_an_image_without_its_list_of_packages_is_not_built(tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError):
        build(tmp_path, ACCELERATOR="abacus")


@pytest.mark.slow
def test_the_image_starts_and_checks_the_program(tmp_path: Path):
    """Its command serves from the image's files alone, and its health check sees that."""
    from tests.checkpoints import SMALLEST  # imports JAX, which no other test here needs

    folder, variables = build(tmp_path)
    steps = dict(image()[1])
    assert steps["EXPOSE"] == variables["PORT"]
    [python, program] = json.loads(steps["CMD"])
    _, _, check = steps["HEALTHCHECK"].partition("CMD")
    [checker, *words] = json.loads(check)
    assert python == checker == "python"
    variables |= {**ON_A_CPU, "CACHE_DIR": os.environ["CACHE_DIR"]}
    command = [str(folder / program), "--model", str(SMALLEST)]
    instance = Instance(command, tmp_path / "log", variables)
    variables["PORT"] = str(instance.port)
    start(instance)
    try:
        assert subprocess.run([sys.executable, *words], env=variables).returncode == 0
    finally:
        assert instance.stop(120) == 0
    assert subprocess.run([sys.executable, *words], env=variables).returncode == 1


def test_services_lead_to_ports_that_containers_have():
    [deployment] = [each for each in documents("kubernetes.yaml") if each["kind"] == "Deployment"]
    [service] = [each for each in documents("kubernetes.yaml") if each["kind"] == "Service"]
    template = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    [container] = template["spec"]["containers"]
    names = {each["name"] for each in container["ports"]}
    assert {each["targetPort"] for each in service["spec"]["ports"]} <= names


@pytest.mark.parametrize("file", ["kubernetes.yaml", "kuberay.yaml"])
def test_what_is_kept_lies_on_a_volume_that_is_declared(file: str):
    """The checkpoint and the compiled programs outlive a container."""
    claims = {
        each["metadata"]["name"]
        for each in documents(file)
        if each["kind"] == "PersistentVolumeClaim"
    }
    variables = environments()[file.removesuffix(".yaml")]
    for pod in pods(file):
        mounts = [each for one in pod["containers"] for each in one.get("volumeMounts", [])]
        if not mounts:  # the head of a cluster draws nothing
            continue
        volumes = {each["name"]: each for each in pod["volumes"]}
        for mount in mounts:
            assert volumes[mount["name"]]["persistentVolumeClaim"]["claimName"] in claims
        for name in ("CACHE_DIR", "HF_HOME"):
            path = Path(variables[name])
            assert any(path.is_relative_to(each["mountPath"]) for each in mounts), name


def test_kuberay_runs_an_application_that_there_is():
    [application] = yaml.safe_load(ray_service()["spec"]["serveConfigV2"])["applications"]
    module, _, function = application["import_path"].partition(":")
    parsed = ast.parse((ROOT / f"{module}.py").read_text())
    fleet = next(each for each in parsed.body if getattr(each, "name", "") == "Fleet")
    assert function in {getattr(each, "name", "") for each in parsed.body}
    assert isinstance(fleet, ast.ClassDef)
    fields = {
        each.target.id
        for each in fleet.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assert application["args"].keys() <= fields


def test_kuberay_leads_visitors_to_the_front_end():
    [port] = ray_service()["spec"]["serveService"]["spec"]["ports"]
    assert str(port["targetPort"]) == environments()["kuberay"]["PORT"]
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
    assert port == environments()["compose"]["PORT"]


def test_compose_builds_with_arguments_that_the_image_has():
    built = documents("compose.yaml")[0]["services"]["sdxl"]["build"]
    assert (DEPLOY / built["context"]).resolve() == ROOT
    arguments = {value.partition("=")[0] for name, value in image()[1] if name == "ARG"}
    assert built["args"].keys() <= arguments


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
