"""Commands in documents, split into words and checked without being run.

A command that no entry of `CHECKS` knows is an error. Add a check for it there: a function of the
words after the command's name, which raises `WrongCommand`.
"""

import argparse
import ast
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pydantic import ValidationError

from pipeline.__main__ import _parser
from serving import settings

ROOT = Path(__file__).parents[1]
HERE = "tests/commands.py"
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
ACCELERATORS = {"cpu", "tpu", "cuda13"}
# Variables of other programs that the documents name.
OTHER_VARIABLES = {
    *("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    *("PYTHONPATH", "RAY_AUTH_MODE"),
}
MAKE_VARIABLES = {"ACCELERATOR", "PYTHON", "ARGS"}
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


class WrongCommand(AssertionError):
    """A command that cannot work, and the reason."""


def wrong(reason: str) -> NoReturn:
    raise WrongCommand(reason)


def commands(block: str) -> Iterator[list[str]]:
    """Yield the words of every command of a shell block."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;>")
        lexer.whitespace_split = True
        command: list[str] = []
        for word in lexer:
            if set(word) <= set("&|;"):
                yield command
                command = []
            else:
                command.append(word)
        if command:
            yield command


def check(words: Sequence[str]) -> None:
    """Raise `WrongCommand` if a command cannot work."""
    words = _without_prefixes(list(words))
    if ">" in words:  # the file that takes the output
        words = words[: words.index(">")]
    if not words:
        return
    name, rest = words[0], words[1:]
    python = re.fullmatch(r"(?:(\.venv[a-z-]*)/bin/)?(python3?|hf|pytest|serve)", name)
    if python:
        if python[1] and f":= {python[1]}\n" not in MAKEFILE:
            wrong(f"the Makefile makes no {python[1]}")
        name = python[2]
    if name not in CHECKS:
        wrong(f"no check for the command {name!r}: add one to CHECKS in {HERE}")
    CHECKS[name](rest)


def _without_prefixes(words: list[str]) -> list[str]:
    """Leave out sudo, chrt and variables before a command; check the variables."""
    while words:
        if assignment := _ASSIGNMENT.fullmatch(words[0]):
            check_variable(*assignment.groups())
            words = words[1:]
        elif words[0] == "sudo":
            words = words[1:]
        elif words[:2] == ["chrt", "-r"]:
            words = words[3:]
        else:
            break
    return words


@cache
def known_variables() -> frozenset[str]:
    """Return the names of all variables that a document may name."""
    return frozenset({each.variable for each in settings.described()} | OTHER_VARIABLES)


def check_variable(name: str, value: str) -> None:
    """Check a variable by the settings of this program, or by the list of others."""
    if name == "ACCELERATOR":
        if value not in ACCELERATORS:
            wrong(f"ACCELERATOR={value}: there are {sorted(ACCELERATORS)}")
        return
    if name in MAKE_VARIABLES:
        return
    if name not in known_variables():
        wrong(f"no variable {name}: it is no setting, and not in OTHER_VARIABLES in {HERE}")
    if name not in OTHER_VARIABLES and value != "...":
        _read_settings([], {name: value})


def _read_settings(flags: Sequence[str], variables: Mapping[str, str]) -> None:
    try:
        settings.read(flags, variables)
    except SystemExit as end:
        wrong(f"app.py takes neither {flags} nor {variables}: {end}")


@dataclass(frozen=True)
class Options:
    """The part of a program's command line that the documents use."""

    positionals: int | tuple[int, int] = 0  # how many, or the least and the most
    required: tuple[str, ...] = ()
    values: tuple[str, ...] = ()  # options with a value, as --name=value or --name value
    flags: tuple[str, ...] = ()

    def parse(self, words: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
        """Return the positional arguments and the values of each option."""
        left, positionals, found = list(words), [], {}
        while left:
            word = left.pop(0)
            name, equals, value = word.partition("=")
            if not word.startswith("-") or word == "-":
                positionals.append(word)
            elif name in (*self.values, *self.required):
                if not equals and not left:
                    wrong(f"{name} needs a value")
                found.setdefault(name, []).append(value if equals else left.pop(0))
            elif word in self.flags:
                found.setdefault(word, []).append("")
            else:
                wrong(f"no option {name}; if it exists, add it to {HERE}")
        for name in self.required:
            if name not in found:
                wrong(f"{name} is missing")
        least, most = (
            self.positionals if isinstance(self.positionals, tuple) else (self.positionals,) * 2
        )
        if not least <= len(positionals) <= most:
            wrong(f"{least} to {most} arguments are needed, not {positionals}")
        return positionals, found


def _subcommand(
    table: Mapping[str, Options], words: Sequence[str]
) -> tuple[str, list[str], dict[str, list[str]]]:
    """Find the subcommand, such as "tpu-vm create", that words begin with, and parse the rest."""
    for name, options in table.items():
        parts = name.split()
        if list(words[: len(parts)]) == parts:
            return name, *options.parse(words[len(parts) :])
    wrong(f"no check for {' '.join(words)!r}: add it to the table in {HERE}")


def _make(words: Sequence[str]) -> None:
    rules = re.findall(r"^([\w -]+):(?!=)", MAKEFILE, re.MULTILINE)
    targets = set(" ".join(rules).split())
    for word in words:
        if assignment := _ASSIGNMENT.fullmatch(word):
            check_variable(*assignment.groups())
        elif not word.startswith(".venv") and word not in targets:
            wrong(f"the Makefile has no target {word}")


def _python(words: Sequence[str]) -> None:
    if not words:
        return
    if words[0] == "-m":
        _module(words[1], words[2:])
    elif words[0] == "-c":
        compile(" ".join(words[1:]), "-c", "exec")
    elif words[0] == "app.py":
        _read_settings(words[1:], {})
    elif words != ["--version"]:
        wrong(f"no check for python {' '.join(words)}: add one to {HERE}")


def _module(name: str, arguments: Sequence[str]) -> None:
    file = ROOT / name.replace(".", "/")
    file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    if not file.is_file():
        wrong(f"no module {name}")
    if name == "pipeline":
        _parsed(_parser(), arguments)
        return
    known = _flags(file)
    given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    if unknown := [word for word in given if word not in known]:
        wrong(f"python -m {name} takes no {unknown}")
    if missing := [flag for flag, needed in known.items() if needed and flag not in given]:
        wrong(f"python -m {name} needs {missing}")
    if arguments and not known:
        wrong(f"python -m {name} takes no arguments")


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    try:
        parser.parse_args(arguments)
    except SystemExit:
        wrong(f"{parser.prog} does not take {list(arguments)}")


def _flags(file: Path) -> dict[str, bool]:
    """Return the arguments that a module declares, and whether each is a required flag.

    The module is read and not imported, because some need packages that only other environments
    have.
    """
    calls = [
        each for each in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(each, ast.Call)
    ]
    found = {}
    for call in calls:
        name = (
            call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        )
        if name not in {"add_argument", "add"} or not call.args:
            continue
        required = any(
            each.arg == "required" and getattr(each.value, "value", False) for each in call.keywords
        )
        for argument in call.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found[argument.value] = required
    return found


def _pip(words: Sequence[str]) -> None:
    _, [package], _ = _subcommand({"install": Options(1)}, words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = "|".join(project["optional-dependencies"])
    if not re.fullmatch(rf"(\.|{project['name']})(\[({extras})(,({extras}))*\])?", package):
        wrong(f"{package} names no package or no extra; there are {extras}")


def _sdxl_jax(words: Sequence[str]) -> None:
    if words[0] == "serve":
        _read_settings(words[1:], {})
    elif words[0] == "draw":
        _parsed(_parser(), words[1:])
    else:
        wrong(f"sdxl-jax has no command {words[0]}")


def _pytest(words: Sequence[str]) -> None:
    for word in words:
        if not word.startswith("-") and not (ROOT / word.partition("::")[0]).exists():
            wrong(f"no tests in {word}")


def _serve(words: Sequence[str]) -> None:
    from cluster import Fleet  # imports Ray, which takes seconds

    if list(words) == ["run"]:  # a sentence about the command
        return
    if list(words[:2]) != ["run", "cluster:app"]:
        wrong("the application is started by: serve run cluster:app")
    try:
        Fleet(**dict(word.split("=", 1) for word in words[2:]))  # pyright: ignore[reportArgumentType]
    except (ValidationError, ValueError) as error:
        wrong(f"cluster.py does not take {words[2:]}: {error}")


HF = {
    "auth login": Options(),
    "repos create": Options(1, ("--repo-type", "--space-sdk")),
    "spaces variables add": Options(1, ("--env",)),
    "upload": Options((1, 3), ("--repo-type",)),
}


def _hf(words: Sequence[str]) -> None:
    """Check a command of the Hub's client, by the table and by the client's own help."""
    from click.testing import CliRunner
    from huggingface_hub.cli.hf import app

    name, _, options = _subcommand(HF, words)
    help_text = CliRunner().invoke(app, [*name.split(), "--help"]).output
    if missing := [option for option in options if option not in help_text]:
        wrong(f"hf {name} has no {missing}")
    for variable in options.get("--env", []):
        check_variable(*variable.split("=", 1))


GCLOUD = {
    "auth login": Options(),
    "config set project": Options(1),
    "services enable": Options((1, 9)),
    "compute tpus tpu-vm create": Options(1, ("--zone", "--accelerator-type", "--version")),
    "compute tpus tpu-vm delete": Options(1, ("--zone",)),
    "compute tpus tpu-vm describe": Options(1, ("--zone",)),
    "compute tpus tpu-vm list": Options(0, ("--zone",)),
    "compute tpus tpu-vm scp": Options(2, ("--zone",), flags=("--recurse",)),
    "compute tpus tpu-vm ssh": Options(1, ("--zone",), values=("--worker", "--command")),
    "compute firewall-rules create": Options(1, ("--allow", "--source-ranges")),
    "compute firewall-rules delete": Options(1),
    "container clusters create": Options(
        1, ("--location",), ("--machine-type", "--num-nodes", "--addons")
    ),
    "container clusters delete": Options(1, ("--location",)),
    "container node-pools create": Options(
        1,
        ("--cluster", "--location", "--machine-type"),
        ("--num-nodes", "--min-nodes", "--max-nodes", "--tpu-topology"),
        ("--enable-autoscaling",),
    ),
}
# https://docs.cloud.google.com/tpu/docs/runtimes
TPU_VERSIONS = {"v5litepod": "v2-alpha-tpuv5-lite", "v6e": "v2-alpha-tpuv6e"}
TPU_CHIPS = {"1", "4", "8"}  # of one host


def _gcloud(words: Sequence[str]) -> None:
    words = list(words)
    if "--" in words:  # the rest is for ssh
        _ssh(["host", *words[words.index("--") + 1 :]])
        words = words[: words.index("--")]
    name, _, options = _subcommand(GCLOUD, words)
    zone = [*options.get("--zone", []), *options.get("--location", [])]
    if zone and not re.fullmatch(r"[a-z]+-[a-z]+\d-[a-z]", zone[0]):
        wrong(f"{zone[0]} is no zone")
    if name == "compute tpus tpu-vm create":
        check_tpu(options["--accelerator-type"][0], options["--version"][0])
    if (
        name == "compute firewall-rules create"
        and f"tcp:{_exposed_port()}" not in options["--allow"]
    ):
        wrong(f"the page has the port {_exposed_port()}")


def check_tpu(accelerator: str, version: str) -> None:
    """Check that a TPU has one host, and the version of its kind."""
    kind, _, chips = accelerator.partition("-")
    if TPU_VERSIONS.get(kind) != version or chips not in TPU_CHIPS:
        wrong(f"{accelerator} with {version}: kinds and versions are {TPU_VERSIONS}, one host")


def _ssh(words: Sequence[str]) -> None:
    _, options = Options(1, values=("-L",)).parse(words)
    for forwarded in options.get("-L", []):
        if not re.fullmatch(rf"\d+:localhost:{_exposed_port()}", forwarded):
            wrong(f"{forwarded} does not forward the page's port")


DOCKER = {
    "build": Options(1, values=("--build-arg", "-t")),
    "push": Options(1),
    "run": Options(1, values=("--gpus", "-p", "-v", "-e"), flags=("--rm", "-d")),
    "compose": Options((1, 2), values=("-f",)),
}


def _docker(words: Sequence[str]) -> None:
    name, arguments, options = _subcommand(DOCKER, words)
    for file in options.get("-f", []):
        if not (ROOT / file).is_file():
            wrong(f"no file {file}")
    if name == "compose":
        services = yaml.safe_load((ROOT / options["-f"][0]).read_text())["services"]
        if arguments[0] not in {"up", "restart"} or not set(arguments[1:]) <= set(services):
            wrong(f"docker compose {arguments}: services are {sorted(services)}")
    if name in {"push", "run"} and arguments[0] not in {"sdxl-jax", "REGISTRY/sdxl-jax"}:
        wrong(f"no image {arguments[0]} is built")
    for argument in options.get("--build-arg", []):
        key, _, value = argument.partition("=")
        if f"ARG {key}=" not in DOCKERFILE:
            wrong(f"the Dockerfile has no ARG {key}")
        if key == "ACCELERATOR":
            check_variable(key, value)
    for published in options.get("-p", []):
        if published.split(":")[-1] != _exposed_port():
            wrong(f"-p {published}: the image has the port {_exposed_port()}")
    for volume in options.get("-v", []):
        if f"={volume.split(':')[-1]}/" not in DOCKERFILE:
            wrong(f"-v {volume}: the image keeps nothing there")
    for variable in options.get("-e", []):
        key, equals, value = variable.partition("=")
        check_variable(key, value if equals else "...")


def _exposed_port() -> str:
    [port] = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, re.MULTILINE)
    return port


KUBECTL = {
    "apply": Options(0, ("-f",)),
    "delete": Options(0, ("-f",)),
    "rollout status": Options(1, values=("--timeout",)),
    "port-forward": Options(2),
    "create secret generic": Options(1, ("--from-literal",)),
    "set env": Options(1, ("--from",)),
}


def _kubectl(words: Sequence[str]) -> None:
    _, arguments, options = _subcommand(KUBECTL, words)
    for file in options.get("-f", []):
        if not (ROOT / file).is_file() or not all("kind" in each for each in _manifests(file)):
            wrong(f"{file} is no file of Kubernetes' objects")
    named = [word for word in arguments if "/" in word]
    for word in named:
        if word not in cluster_objects():
            wrong(f"no file in deploy/ makes {word}")
    for ports in arguments[len(named) :] if named and len(arguments) > 1 else ():
        if ports.split(":")[-1] not in cluster_objects()[named[0]]:
            wrong(f"{named[0]} has no port {ports}")
    for literal in options.get("--from-literal", []):
        check_variable(*literal.split("=", 1))


def _manifests(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / file).read_text("utf-8")))


@cache
def cluster_objects() -> dict[str, set[str]]:
    """Return the objects that deploy/ makes, such as "service/sdxl", and their ports."""
    found: dict[str, set[str]] = {}
    for each in _manifests("deploy/kubernetes.yaml") + _manifests("deploy/kuberay.yaml"):
        name, spec = each["metadata"]["name"], each["spec"]
        if each["kind"] == "RayService":  # KubeRay makes this service
            ports = spec["serveService"]["spec"]["ports"]
            found[f"service/{name}-serve-svc"] = {str(port["port"]) for port in ports}
        else:
            ports = {str(port["port"]) for port in spec.get("ports", [])}
            found[f"{each['kind'].lower()}/{name}"] = ports
    return found


HELM = {
    "repo add kuberay": Options(1),
    "install kuberay-operator": Options(1, ("--version",)),
}


def _helm(words: Sequence[str]) -> None:
    name, arguments, options = _subcommand(HELM, words)
    if name.startswith("install"):
        required = re.findall(r"KubeRay (\d+\.\d+)", (ROOT / "deploy/kuberay.yaml").read_text())
        if not options["--version"][0].startswith(f"{required[0]}."):
            wrong(f"deploy/kuberay.yaml is for KubeRay {required[0]}")
        if arguments != ["kuberay/kuberay-operator"]:
            wrong(f"no chart {arguments}")


CURL = Options(1, values=("-H", "-d", "-F", "-X"), flags=("-N", "-s"))


@dataclass(frozen=True)
class Call:
    """A call of curl; `fields` and `files` are those of a form, the latter with their names."""

    method: str
    address: str
    headers: dict[str, str]
    body: str | None
    fields: dict[str, str]
    files: dict[str, str]


def curl(words: Sequence[str]) -> Call:
    """Return the call that the words after `curl` make."""
    [address], options = CURL.parse(words)
    body = options.get("-d", [None])[0]
    form = dict(field.split("=", 1) for field in options.get("-F", []))
    method = options.get("-X", ["POST" if form or body is not None else "GET"])[0]
    headers = dict(header.split(": ", 1) for header in options.get("-H", []))
    files = {name: value[1:] for name, value in form.items() if value.startswith("@")}
    fields = {name: value for name, value in form.items() if name not in files}
    return Call(method, address, headers, body, fields, files)


def _curl(words: Sequence[str]) -> None:
    curl(words)  # tests/test_commands.py sends it, too


def _export(words: Sequence[str]) -> None:
    for word in words:
        assignment = _ASSIGNMENT.fullmatch(word) or wrong(f"export {word}: no value")
        check_variable(*assignment.groups())


def _systemctl(words: Sequence[str]) -> None:
    _, [unit], _ = _subcommand(
        {"enable": Options(1, flags=("--now",)), "restart": Options(1)}, words
    )
    if not (ROOT / "deploy" / f"{unit}.service").is_file():
        wrong(f"no unit {unit} in deploy/")


def _copy(words: Sequence[str]) -> None:
    if not (ROOT / words[0]).is_file():
        wrong(f"no file {words[0]}")


def _taken_by(options: Options) -> Callable[[Sequence[str]], None]:
    """Return a check of a program whose arguments depend on nothing in this repository."""

    def check_options(words: Sequence[str]) -> None:
        options.parse(words)

    return check_options


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "add-apt-repository": _taken_by(Options(1, flags=("--yes",))),
    "apt-get": _taken_by(Options((2, 9), flags=("--yes",))),
    "cd": _taken_by(Options(1)),
    "cp": _copy,
    "curl": _curl,
    "docker": _docker,
    "export": _export,
    "gcloud": _gcloud,
    "helm": _helm,
    "hf": _hf,
    "journalctl": _taken_by(Options(0, ("--unit",), flags=("--follow",))),
    "kubectl": _kubectl,
    "make": _make,
    "mv": _taken_by(Options(2)),
    "nvidia-smi": _taken_by(Options()),
    "pip": _pip,
    "pip-audit": _taken_by(Options(0, ("-r",))),
    "pytest": _pytest,
    "python": _python,
    "python3": _python,
    "sdxl-jax": _sdxl_jax,
    "serve": _serve,
    "ss": _taken_by(Options(1, flags=("--listening", "--tcp", "--processes"))),
    "ssh": _ssh,
    "systemctl": _systemctl,
    "useradd": _taken_by(Options(1, flags=("--system",))),
}
