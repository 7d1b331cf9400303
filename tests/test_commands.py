"""Every command and example in the documents is run, or parsed and checked."""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image

import pipeline
from pipeline import SDXLPipeline, metadata
from pipeline.images.png import encode_png
from pipeline.request import RequestSettings
from tests import commands
from tests.checkpoints import GOLDEN, SMALLEST, shared_pipeline
from tests.commands import ROOT, WrongCommand
from tests.test_docs import NAMES, fences, read, spans
from tests.web import serve

URL = "http://127.0.0.1:7860"
LANGUAGES = {"", "html", "js", "json", "mermaid", "python", "sh", "yaml"}
# These files run the examples in the languages that they name.
RUN_ELSEWHERE = {
    ("docs/api.md", "python"): ROOT / "tests/end_to_end/test_clients.py",
    ("docs/api.md", "js"): ROOT / "tests/end_to_end/test_clients.py",
}
# Words in capitals, in backticks, that are no variables.
NO_VARIABLES = {"BREAK", "BUNDLED", "NAME", "REGISTRY"}


def shell_commands(name: str) -> Iterator[list[str]]:
    """Yield the words of each command of a document, from its blocks and from its sentences."""
    for language, block in fences(read(ROOT / name)):
        if language == "sh":
            yield from commands.commands(block)
    for span in spans(read(ROOT / name)):
        first = re.sub(r"^(?:[A-Z_]+=\S+ |sudo |chrt -r 1 |\.venv[a-z-]*/bin/)+", "", span)
        if first.split(" ")[0] in commands.CHECKS and " " in first and "..." not in span:
            yield from commands.commands(span)


@pytest.mark.parametrize("name", NAMES)
def test_commands(name: str):
    wrong = []
    for words in shell_commands(name):
        try:
            commands.check(words)
        except WrongCommand as reason:
            wrong.append(f"{' '.join(words)}: {reason}")
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_every_language_is_known(name: str):
    found = {language for language, _ in fences(read(ROOT / name))}
    assert found <= LANGUAGES, "check it in tests/test_commands.py"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("docs/")])
def test_variables(name: str):
    known = commands.known_variables() | commands.MAKE_VARIABLES | NO_VARIABLES
    for span in spans(read(ROOT / name)):
        assignment = re.fullmatch(r"([A-Z][A-Z0-9_]+)=(\S+)", span)
        if assignment and assignment[1] not in NO_VARIABLES:
            commands.check_variable(*assignment.groups())
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", span):
            assert span in known


def test_make_takes_its_commands():
    """`make --dry-run` with the variables of each command in the documents."""
    calls = {tuple(words) for name in NAMES for words in shell_commands(name) if words[0] == "make"}
    run = {call for call in calls if not {"bench-gpu", "test", "test-slow"} & set(call)}
    for call in sorted(run):
        made = subprocess.run(
            ["make", "--dry-run", *call[1:]], cwd=ROOT, capture_output=True, text=True
        )
        assert made.returncode == 0, (call, made.stderr)


def python_blocks(name: str) -> list[str]:
    return [block for language, block in fences(read(ROOT / name)) if language == "python"]


@pytest.mark.slow
def test_the_readmes_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With a tiny checkpoint in place of the miniature, which takes longer to compile."""
    [program] = python_blocks("README.md")
    assert len(program.splitlines()) <= 10
    monkeypatch.setattr(pipeline, "BUNDLED", SMALLEST)
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    exec(
        compile(program, "README.md", "exec"),
        {"print": lambda *words: said.extend(map(str, words))},
    )
    assert {file.name for file in tmp_path.iterdir()} == {
        f"star-{seed}.png" for seed in range(7, 11)
    }
    assert "a large red star on a blue background" in said[0]


def test_the_flax_program_runs():
    [program] = python_blocks("docs/coming-from-flax.md")
    names = {"model": GOLDEN / "flax/checkpoint"}
    exec(compile(program, "docs/coming-from-flax.md", "exec"), names)
    assert set(names["params"]) > {"unet", "vae", "scheduler"}  # pyright: ignore[reportArgumentType]


def test_the_program_of_several_requests_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _, program = python_blocks("docs/python.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/python.md", "exec"), {"pipe": shared_pipeline(1)})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-0.png", "7-0.png", "7-1.png"]


def test_the_program_from_pictures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the size of a tiny pipeline, which has no other, in place of the larger one."""
    program, _ = python_blocks("docs/python.md")
    pipe = shared_pipeline(1)
    Image.new("RGB", (40, 30), "navy").save(tmp_path / "photo.png")
    mask = Image.new("L", (40, 30))
    mask.paste(255, (10, 10, 20, 20))
    mask.save(tmp_path / "mask.png")
    monkeypatch.chdir(tmp_path)
    smaller = program.replace("1536, 1536", f"{pipe.facts.height}, {pipe.facts.width}").replace(
        "256", "16"
    )
    exec(compile(smaller, "docs/python.md", "exec"), {"pipe": pipe})


def test_no_other_program_is_left_unrun():
    run = {"README.md", "docs/coming-from-flax.md", "docs/python.md"}
    run |= {name for name, language in RUN_ELSEWHERE if language == "python"}
    assert {name for name in NAMES if python_blocks(name) and name != "CONTRIBUTING.md"} == run


def test_the_programs_of_the_apis_are_run_elsewhere():
    for (name, language), file in RUN_ELSEWHERE.items():
        words = re.findall(rf'example\("{language}", "([^"]+)", address\)', file.read_text("utf-8"))
        blocks = [block for each, block in fences(read(ROOT / name)) if each == language]
        assert blocks
        assert all(any(word in block for word in words) for block in blocks)


@pytest.mark.parametrize("name", NAMES)
def test_calls_in_sentences_have_valid_arguments(name: str):
    """Calls of the library, such as `pipe.add_size(height=256, width=384)`."""
    objects = {"pipe": SDXLPipeline, "SDXLPipeline": SDXLPipeline, "metadata": metadata}
    for span in spans(read(ROOT / name)):
        found = re.fullmatch(r"(\w+)\.(\w+)(\(.*\))", span)
        if found and found[1] in objects:
            function = getattr(objects[found[1]], found[2])
            call = ast.parse(f"f{found[3].replace('...', '')}", mode="eval").body
            assert isinstance(call, ast.Call)
            keywords = {keyword.arg for keyword in call.keywords}
            named = {*inspect.signature(function).parameters, *RequestSettings.__annotations__}
            assert keywords <= named


def test_the_arguments_of_from_pretrained_are_listed():
    text = " ".join(read(ROOT / "docs/python.md").split())
    [listed] = re.findall(r"Its arguments, all optional: (.*?)\. Its docstring", text)
    names = list(inspect.signature(SDXLPipeline.from_pretrained).parameters)
    assert re.findall(r"`(\w+)`", listed) == names[1:]


@pytest.mark.parametrize("name", NAMES)
def test_json_and_yaml_can_be_read(name: str):
    for language, block in fences(read(ROOT / name)):
        if language == "json":
            json.loads(block)
        elif language == "yaml":
            assert list(yaml.safe_load_all(block))


class Tags(HTMLParser):
    """The tags of a page with their attributes, without the origin of the server."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(re.sub(rf"{URL}|https://pictures\.example\.org", "", page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {key: value or "" for key, value in attrs}))


def test_html_is_that_of_the_example():
    """tests/end_to_end/test_browser.py opens examples/embed.html."""
    example = Tags((ROOT / "examples/embed.html").read_text("utf-8")).found
    blocks = [
        block
        for name in NAMES
        for language, block in fences(read(ROOT / name))
        if language == "html"
    ]
    tags = list(chain.from_iterable(Tags(block).found for block in blocks))
    assert {tag for tag, _ in tags} == {"script", "gradio-app", "iframe"}
    assert all(tag in example for tag in tags)


@pytest.mark.parametrize("name", [name for name in NAMES if "curl " in read(ROOT / name)])
def test_curl(name: str):
    """Every call in the documents, one after the other, against a server."""
    picture = encode_png(np.zeros((8, 8, 3), np.uint8))
    with serve() as site, httpx.Client() as client:
        for words in shell_commands(name):
            if words[0] != "curl":
                continue
            call = commands.curl(words[1:])
            assert call.address.startswith(URL)
            answer = client.request(
                call.method,
                call.address.replace(URL, site.url),
                headers=call.headers,
                content=call.body,
                data=call.fields,
                files=dict.fromkeys(call.files, picture) or None,
            )
            assert answer.is_success, (words, answer.text)


def test_the_size_of_a_fleet_is_what_its_command_prints():
    text = read(ROOT / "docs/fleet.md")
    [command] = [words for words in shell_commands("docs/fleet.md") if "tools.fleet" in words]
    printed = subprocess.run(
        [sys.executable, *command[command.index("-m") :]], cwd=ROOT, capture_output=True, text=True
    ).stdout
    row = r"^\| \**(\d+)\** \| (\d+) % \|(.*?)\|(.*?)\|(.*?)\|$"
    rows = re.findall(row, text, re.MULTILINE)
    lines = [line.split() for line in printed.splitlines()]
    found = {words[0]: words for words in lines if words[1].endswith("%")}
    assert len(rows) == 5
    for replicas, busy, must_wait, *within in rows:
        words = found[replicas]
        assert words[1] == f"{busy}%"
        if "ever longer" not in must_wait:
            assert words[2] == must_wait.strip().replace(" %", "%")
            assert [words[5], words[7]] == [each.split()[0] for each in within]
    [money] = re.findall(r"^(\d+) a day at \S+ an hour: (\S+) for", printed, re.MULTILINE)
    assert f"for {money[0]} a day. That is {money[1]} for a thousand" in " ".join(text.split())


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("frobnicate --now", "add one to CHECKS"),
        ("make jump", "no target jump"),
        ("make run PORT=http", "takes neither"),
        ("make run COLOUR=red", "no variable COLOUR"),
        ("make run ACCELERATOR=cuda12", "ACCELERATOR=cuda12"),
        (".venv/bin/python -m pipeline moon --sed 7", "does not take"),
        (".venv/bin/python -m benchmarks.cpu --job x", "takes no"),
        (".venv/bin/python -m benchmarks.dropin", "needs"),
        (".venv/bin/python -m benchmarks.delivery --fast", "takes no"),
        (".venv-tpu/bin/python -m benchmarks.gone", "no module"),
        (".venv-moon/bin/python -m pipeline moon", "makes no .venv-moon"),
        ("python app.py --ports 8000", "takes neither"),
        ("pip install .[tpus]", "names no package or no extra"),
        ("sdxl-jax paint moon", "no command paint"),
        ("docker run -p 7860:80 sdxl-jax", "has the port 7860"),
        ("docker run -v cache:/cache sdxl-jax", "keeps nothing there"),
        ("docker build --build-arg GPU=yes .", "no ARG GPU"),
        ("docker compose -f deploy/compose.yaml restart page", "services are"),
        ("gcloud compute tpus tpu-vm create a --zone=us-west4-a", "--accelerator-type is missing"),
        ("gcloud compute tpus tpu-vm delete a --zone=here", "no zone"),
        (
            "gcloud compute tpus tpu-vm create a --zone=us-west4-a"
            " --accelerator-type=v6e-4 --version=v2-alpha-tpuv5-lite",
            "kinds and versions",
        ),
        ("gcloud compute tpus tpu-vm ssh a --zone=us-west4-a -- -L 80:localhost:80", "forward"),
        ("gcloud compute instances list", "no check"),
        ("kubectl apply -f deploy/gone.yaml", "no file"),
        ("kubectl port-forward service/sdxl 7860:8080", "no port"),
        ("kubectl rollout status deployment/gone", "makes deployment/gone"),
        (
            "helm install kuberay-operator kuberay/kuberay-operator --version 1.5.1",
            "is for KubeRay",
        ),
        (".venv/bin/hf upload --kind space a/b", "no option --kind"),
        ("serve run cluster:app accelerator=abacus", "does not take"),
        ("sudo systemctl restart gone", "no unit gone"),
    ],
)
def test_a_wrong_command_is_found(command: str, reason: str):
    [words] = commands.commands(command)
    with pytest.raises(WrongCommand, match=re.escape(reason)):
        commands.check(words)
