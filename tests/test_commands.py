"""Every example in the documents is run, and every command of this project is checked."""

import argparse
import ast
import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml
from PIL import Image
from pydantic import ValidationError

import pipeline
from benchmarks.processes import free_port
from pipeline import SDXLPipeline, metadata
from pipeline.__main__ import _parser, main
from pipeline.batch.prompts import read_batch
from pipeline.images.png import encode_png
from pipeline.request import SETTINGS
from serving import settings
from tests.checkpoints import EXECUTABLES, GOLDEN, SMALLEST
from tests.controlnets import save_single_controlnet
from tests.documents import NAMES, ROOT, fences, read, spans
from tests.web import serve

URL = "http://127.0.0.1:7860"
# The languages of blocks, and the tests of each.
LANGUAGES = {
    "html": "test_html_is_that_of_the_example",
    "js": "RUN_ELSEWHERE",
    "json": "test_json_and_yaml_can_be_read, tests/end_to_end/test_clients.py",
    "jsonl": "test_the_file_of_prompts_can_be_drawn",
    "mermaid": "none: the sites that show the documents draw it",
    "nginx": "test_nginx_takes_its_settings",
    "python": "test_what_the_documents_draw, test_the_flax_program_runs, RUN_ELSEWHERE",
    "sh": "test_commands, test_curl, test_what_the_documents_draw",
    "text": "tests/end_to_end/test_app.py, test_address_in_use",
    "toml": "tests/pipeline/families/test_model_defaults.py",
    "yaml": "test_json_and_yaml_can_be_read",
}
# These files run the examples in the languages that they name.
RUN_ELSEWHERE = {
    ("docs/api.md", "python"): ROOT / "tests/end_to_end/test_clients.py",
    ("docs/api.md", "js"): ROOT / "tests/end_to_end/test_clients.py",
}
# Words in capitals, in backticks, that are no variables.
NO_VARIABLES = {"AND", "BREAK", "BUNDLED", "NAME", "REGISTRY"}
# Variables of other programs that the documents name, and those of the Makefile and Dockerfile.
OTHER_VARIABLES = {
    *("HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE"),
    *("PYTHONPATH", "RAY_AUTH_MODE"),
    *("ACCELERATOR", "CLUSTER", "PYTHON", "ARGS", "VERSION"),
}
# Programs of others, and why no test runs them. Their files and variables are checked all the same.
OTHERS = {
    **dict.fromkeys(("cd", "export"), "they change the shell"),
    **dict.fromkeys(
        ("add-apt-repository", "apt-get", "cp", "mv", "useradd"), "they change the system"
    ),
    **dict.fromkeys(("systemctl", "journalctl"), "tests/test_deploy.py checks the unit"),
    "docker": "tests/test_deploy.py takes the steps of the image, and checks Compose's files",
    **dict.fromkeys(("kubectl", "helm"), "tests/test_deploy.py checks the files by their schemas"),
    "gcloud": "it needs an account, and costs money",
    "htpasswd": "tests/serving/http/test_sign_in.py reads such a file",
    "nvidia-smi": "it needs a GPU",
    "ss": "it shows what others do",
}
_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)
# Words that may precede the name of a command.
_PREFIX = re.compile(r"^(?:[A-Z_]+=\S+ |sudo |chrt -r 1 |\.venv[a-z-]*/bin/)+")


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


def shell_commands(name: str) -> Iterator[list[str]]:
    """Yield the words of each command of a document, from its blocks and from its sentences."""
    for language, block in fences(read(ROOT / name)):
        if language == "sh":
            yield from commands(block)
    for span in spans(read(ROOT / name)):
        first = _PREFIX.sub("", span).split(" ")[0]
        if first in CHECKS and " " in span and "..." not in span:
            yield from commands(span)


def check(words: Sequence[str]) -> None:
    """Check the variables of a command, and its arguments if it is one of this project.

    Raises:
        ValueError: if the command cannot work.
    """
    for word in words:
        if assignment := _ASSIGNMENT.fullmatch(word):
            check_variable(*assignment.groups())
        elif word.startswith(("deploy/", "docs/", "examples/")) and not (ROOT / word).exists():
            raise ValueError(f"no file {word}")
    name, *arguments = shlex.split(_PREFIX.sub("", shlex.join(words)) or "cd")
    if name in CHECKS:
        CHECKS[name](arguments)
    elif name not in OTHERS:
        raise ValueError(f"no check of {name}: it is neither in CHECKS nor in OTHERS")


@cache
def known_variables() -> frozenset[str]:
    """Return the names of all variables that a document may name."""
    return frozenset({setting.variable for setting in settings.described()} | OTHER_VARIABLES)


def check_variable(name: str, value: str) -> None:
    """Check a variable by the settings of this program, or by the list of others."""
    if name not in known_variables():
        raise ValueError(f"no variable {name}: it is no setting, and not in OTHER_VARIABLES")
    if name not in OTHER_VARIABLES and value != "...":
        _read_settings([], {name: value})


def _read_settings(flags: Sequence[str], variables: Mapping[str, str]) -> None:
    try:
        settings.read(flags, variables)
    except SystemExit as end:
        raise ValueError(f"app.py takes neither {flags} nor {variables}: {end}") from end


def _python(words: Sequence[str]) -> None:
    if words[:1] == ["-m"]:
        _module(words[1], words[2:])
    elif words[:1] == ["app.py"]:
        _read_settings(words[1:], {})


def _module(name: str, arguments: Sequence[str]) -> None:
    file = ROOT / name.replace(".", "/")
    file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    if not file.is_file():
        raise ValueError(f"no module {name}")
    if name == "pipeline":
        _parsed(_parser(), arguments)
        return
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    if unknown := set(flags) - _flags(file):
        raise ValueError(f"python -m {name} takes no {unknown}")


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    try:
        parser.parse_args(arguments)
    except SystemExit as end:
        raise ValueError(f"{parser.prog} does not take {list(arguments)}") from end


def _flags(file: Path) -> set[str]:
    """Return the flags that a module declares.

    The module is read and not imported, because some need packages that only other environments
    have.
    """
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return {text for text in texts if isinstance(text, str) and text.startswith("--")}


def _sdxl_jax(words: Sequence[str]) -> None:
    if words[0] == "serve":
        _read_settings(words[1:], {})
    elif words[0] == "draw":
        _parsed(_parser(), words[1:])
    else:
        raise ValueError(f"sdxl-jax has no command {words[0]}")


def _serve(words: Sequence[str]) -> None:
    from cluster import Fleet  # imports Ray, which takes seconds

    arguments = dict(word.split("=", 1) for word in words[2:])
    try:
        Fleet(**arguments)  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        raise ValueError(f"cluster.py does not take {words[2:]}: {error}") from error


def _make(words: Sequence[str]) -> None:
    if {"bench-gpu", "test", "test-slow"} & set(words):  # these make others, even in a dry run
        return
    made = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        raise ValueError(made.stderr)


def _hf(words: Sequence[str]) -> None:
    # With --help its options are read, and nothing is sent.
    hf = Path(sys.executable).with_name("hf")
    read = subprocess.run([hf, *words, "--help"], capture_output=True, text=True)
    if read.returncode:
        raise ValueError(read.stderr)


def _pip(words: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {extra for word in words for extra in re.findall(r"[\w-]+", word.partition("[")[2])}
    if words[0] != "install" or extras - project["optional-dependencies"].keys():
        raise ValueError(f"pip cannot {words}")


CHECKS: dict[str, Callable[[Sequence[str]], None]] = {
    "curl": lambda words: None,  # test_curl sends it
    "hf": _hf,
    "make": _make,
    "pip": _pip,
    "python": _python,
    "python3": _python,
    "sdxl-jax": _sdxl_jax,
    "serve": _serve,
}


@pytest.mark.parametrize("name", NAMES)
def test_commands(name: str):
    faults = []
    for words in shell_commands(name):
        try:
            check(words)
        except ValueError as reason:
            faults.append(f"{' '.join(words)}: {reason}")
    assert faults == []


@pytest.mark.parametrize("name", NAMES)
def test_every_language_is_known(name: str):
    found = {language for language, _ in fences(read(ROOT / name))}
    assert found <= LANGUAGES.keys(), "check it in tests/test_commands.py"


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("docs/")])
def test_variables(name: str):
    known = known_variables() | NO_VARIABLES
    for span in spans(read(ROOT / name)):
        assignment = re.fullmatch(r"([A-Z][A-Z0-9_]+)=(\S+)", span)
        if assignment and assignment[1] not in NO_VARIABLES:
            check_variable(*assignment.groups())
        elif re.fullmatch(r"[A-Z][A-Z0-9_]+", span):
            assert span in known


def python_blocks(name: str) -> list[str]:
    return [block for language, block in fences(read(ROOT / name)) if language == "python"]


# Sizes of pictures, and those that the smallest checkpoint draws in their place.
SMALLER = {"512": "24", "64": "16"}
# Pictures in each folder that the programs and the commands of a document draw.
DRAWN = {
    "README.md": {".": 4, "pictures": 5},
    "docs/batch.md": {"pictures": 1},
    "docs/controls.md": {".": 5},
    "docs/python.md": {".": 3, "pictures": 5},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with the files that documents name; tiny models stand for theirs."""
    monkeypatch.setattr(pipeline, "BUNDLED", SMALLEST)
    load = partial(SDXLPipeline.from_pretrained, cache_dir=EXECUTABLES)
    monkeypatch.setattr(SDXLPipeline, "from_pretrained", load)
    monkeypatch.setenv("MODEL_ID", str(SMALLEST))
    monkeypatch.setenv("CACHE_DIR", str(EXECUTABLES))
    files = tmp_path / "files"
    (files / "photos").mkdir(parents=True)
    for name in ("photo.png", "map.png", "photos/harbour.jpg"):
        Image.new("RGB", (40, 30), "navy").save(files / name)
    mask = Image.new("L", (40, 30))
    mask.paste(255, (10, 10, 20, 20))
    mask.save(files / "mask.png")
    save_single_controlnet(files / "canny.safetensors", SMALLEST)
    (files / "sdxl.safetensors").symlink_to(SMALLEST)
    (files / "prompts.txt").write_text("a red star\n")
    monkeypatch.chdir(files)
    return files


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_what_the_documents_draw(name: str, folder: Path):
    """The Python programs and the commands of a document, as they stand there."""
    given = {*folder.rglob("*.png")}
    for program in python_blocks(name):
        for large, small in SMALLER.items():
            program = program.replace(large, small)
        exec(compile(program, name, "exec"), {})
    for words in shell_commands(name):  # but for --plan, which asks the Hub
        if words[1:3] == ["-m", "pipeline"] and words[3:] and "--plan" not in words:
            assert main(words[3:]) == 0
    drawn = {*folder.rglob("*.png")} - given
    assert Counter(str(file.parent.relative_to(folder)) for file in drawn) == DRAWN[name]


def test_the_flax_program_runs():
    [program] = python_blocks("docs/coming-from-flax.md")
    names = {"model": GOLDEN / "flax/checkpoint"}
    exec(compile(program, "docs/coming-from-flax.md", "exec"), names)
    assert set(names["params"]) > {"unet", "vae", "scheduler"}  # pyright: ignore[reportArgumentType]


def test_no_other_program_is_left_unrun():
    run = {*DRAWN, "docs/coming-from-flax.md", *(name for name, _ in RUN_ELSEWHERE)}
    assert {name for name in NAMES if python_blocks(name)} <= run


def test_the_file_of_prompts_can_be_drawn(folder: Path):
    [block] = [block for kind, block in fences(read(ROOT / "docs/batch.md")) if kind == "jsonl"]
    (folder / "prompts.jsonl").write_text(block)
    batch = read_batch(folder / "prompts.jsonl", {})
    assert len(batch.items) == 6


@pytest.mark.skipif(not shutil.which("nginx"), reason="there is no nginx here")
def test_nginx_takes_its_settings(tmp_path: Path):
    [block] = [block for kind, block in fences(read(ROOT / "docs/deploy.md")) if kind == "nginx"]
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {kind}; " for kind in kinds)
    server = f"access_log off; {folders} server {{ listen 127.0.0.1:{free_port()}; {block} }}"
    (tmp_path / "nginx.conf").write_text(f"pid pid; events {{}} http {{ {server} }}")
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", "nginx.conf", "-e", "stderr"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


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
            named = {*inspect.signature(function).parameters, *SETTINGS}
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


def curl(words: Sequence[str], site: str, picture: bytes) -> httpx.Request:
    """Return the request that the words after `curl` make, with a picture for each of its files."""
    parser = argparse.ArgumentParser(prog="curl")
    parser.add_argument("url")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-F", dest="fields", action="append", default=[])
    parser.add_argument("-d", dest="body")
    parser.add_argument("-X", dest="method")
    parser.add_argument("-Ns", action="store_true")
    parser.add_argument("-N", "-s", action="store_true")
    call = parser.parse_args(words)
    assert call.url.startswith(URL)
    fields = dict(field.split("=", 1) for field in call.fields)
    files = {name: picture for name, value in fields.items() if value.startswith("@")}
    return httpx.Request(
        call.method or ("POST" if fields or call.body is not None else "GET"),
        call.url.replace(URL, site),
        headers=dict(header.split(": ", 1) for header in call.headers),
        content=call.body,
        data={name: value for name, value in fields.items() if name not in files},
        files=files or None,
    )


@pytest.mark.parametrize("name", [name for name in NAMES if "curl " in read(ROOT / name)])
def test_curl(name: str):
    """Every call in the documents, one after the other, against a server."""
    picture = encode_png(np.zeros((8, 8, 3), np.uint8))
    with serve() as site, httpx.Client() as client:
        for words in shell_commands(name):
            if words[0] == "curl":
                answer = client.send(curl(words[1:], site.url, picture))
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
        ("make jump", "jump"),
        ("make run PORT=http", "takes neither"),
        ("make run COLOUR=red", "no variable COLOUR"),
        ("docker run -e COLOUR=red sdxl-jax", "no variable COLOUR"),
        (".venv/bin/python -m pipeline moon --sed 7", "does not take"),
        (".venv/bin/python -m benchmarks.cpu --job x", "takes no"),
        (".venv-tpu/bin/python -m benchmarks.gone", "no module"),
        ("python app.py --ports 8000", "takes neither"),
        ("sdxl-jax paint moon", "no command paint"),
        ("serve run cluster:app accelerator=abacus", "does not take"),
        (".venv/bin/hf repos create name --colour red", "No such option"),
        ("pip install '.[abacus]'", "pip cannot"),
        ("sudo docker compose -f deploy/gone.yaml up", "no file deploy/gone.yaml"),
        ("abacus count", "no check of abacus"),
    ],
)
def test_a_wrong_command_is_found(command: str, reason: str):
    [words] = commands(command)
    with pytest.raises(ValueError, match=re.escape(reason)):
        check(words)
