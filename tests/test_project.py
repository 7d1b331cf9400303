"""The files around the program: its card, versions, notice, workflows and forms, and a release."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.specifiers import SpecifierSet

from pipeline.default_model import SDXL
from tests.documents import ROOT, read

GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()


def pinned(package: str) -> str:
    text = (ROOT / "requirements.txt").read_text()
    [version] = re.findall(rf"^{package}==(.+)$", text, re.MULTILINE)
    return version


def test_the_card_is_one_of_a_space():
    card: dict[str, Any] = yaml.safe_load(read(ROOT / "README.md").split("---\n")[1])
    schema = yaml.safe_load(Path(__file__).with_name("space.schema.yaml").read_text())
    jsonschema.validate(card, schema, jsonschema.Draft202012Validator)
    assert card["sdk_version"] == pinned("gradio")
    assert card["python_version"] in SpecifierSet(PROJECT["requires-python"])
    assert f"FROM python:{card['python_version']}-" in (ROOT / "Dockerfile").read_text()
    assert (ROOT / card["app_file"]).is_file()
    assert card["models"] == [SDXL]
    assert PROJECT["license"].lower().startswith(card["license"])


def test_the_changelog_begins_with_this_version():
    headings = re.findall(r"^## (.*)$", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    [newest, *_] = [heading for heading in headings if heading != "Unreleased"]
    assert newest.split(" - ")[0] == PROJECT["version"]


def test_the_notice_names_files_that_exist():
    named = re.findall(r"\b(?:pipeline|ui|tools|examples)/[\w./-]*\w", read_text("NOTICE"))
    assert [name for name in named if not (ROOT / name).exists()] == []
    licences = list(ROOT.glob("pipeline/**/*LICENSE*"))
    assert {file.relative_to(ROOT).as_posix() for file in licences} <= set(named)
    assert {"NOTICE", *(str(file.relative_to(ROOT)) for file in licences)} < set(
        PROJECT["license-files"]
    )


def read_text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", "workflows/*.yml"),
        ("custom.github-workflows-require-timeout", "workflows/*.yml"),
        ("vendor.github-issue-forms", "ISSUE_TEMPLATE/*.yml"),
    ],
)
def test_github_takes_its_files(schema: str, files: str):
    checker = Path(sys.executable).with_name("check-jsonschema")
    command = [checker, "--builtin-schema", schema, *GITHUB.glob(files)]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_workflows_run_what_every_change_must_pass():
    """They run the targets of .ci/run, which the Makefile has, by actions of a named version."""
    workflow = yaml.safe_load(read_text(".github/workflows/test.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    [job] = workflow["jobs"].values()
    targets = job["strategy"]["matrix"]["target"]
    required = re.findall(r"^(?:step|make \S+) ([a-z-]+)", read_text(".ci/run"), re.M)
    assert set(targets) == set(required)
    assert all(re.search(rf"^(?:[\w-]+ )*{target}[ :]", MAKEFILE, re.M) for target in targets)
    actions = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", action) for action in actions)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a repository with the files that a release needs, as they are here."""
    for name in ("Makefile", "pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    for command in ("init --quiet", "add .", "commit --quiet --message first"):
        git(tmp_path, *command.split())
    return tmp_path


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    return subprocess.check_output(["git", *names, *words], cwd=folder, text=True)


def release(folder: Path, version: str) -> str:
    """Run `make release`, and return what it complains of."""
    identity = {f"GIT_COMMITTER_{name}": "a@example.org" for name in ("NAME", "EMAIL")}
    command = ["make", "--no-print-directory", "release", f"VERSION={version}"]
    environment = {**os.environ, **identity}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True
    ).stderr


def test_a_release_is_tagged(checkout: Path):
    assert release(checkout, PROJECT["version"]) == ""
    tag = f"v{PROJECT['version']}"
    assert git(checkout, "cat-file", "-t", tag) == "tag\n"
    assert "already exists" in release(checkout, PROJECT["version"])


@pytest.mark.parametrize(
    ("file", "was", "becomes", "complaint"),
    [
        ("CHANGELOG.md", r"(## [\d.]+) - .*", r"\1", "CHANGELOG.md has no heading"),
        ("pyproject.toml", r"version = .*", 'version = "9.9.9"', "pyproject.toml has no line"),
    ],
)
def test_a_release_is_refused(checkout: Path, file: str, was: str, becomes: str, complaint: str):
    text = (checkout / file).read_text()
    (checkout / file).write_text(re.sub(was, becomes, text, count=1))
    assert "commit or remove them first" in release(checkout, PROJECT["version"])
    git(checkout, "commit", "--all", "--quiet", "--message", "second")
    assert complaint in release(checkout, PROJECT["version"])
    assert git(checkout, "tag") == ""


# Modules whose imports depend on the system come first: it only pretends to be Windows.
ON_WINDOWS = """
import asyncio, multiprocessing, runpy, subprocess, sys, tempfile
sys.platform = "win32"
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("command", ["app", "cli draw a", "cli serve", "pipeline a"])
def test_windows_is_refused(command: str):
    ended = subprocess.run(
        [sys.executable, "-c", ON_WINDOWS, *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    sentence = "This program runs on Linux and macOS. On Windows, use WSL"
    address = "https://learn.microsoft.com/windows/wsl/install"
    assert (ended.returncode, ended.stderr) == (1, f"{sentence}: {address}\n")
    made = subprocess.run(["make", "OS=Windows_NT"], cwd=ROOT, capture_output=True, text=True)
    assert f"{sentence}: {address}" in made.stderr
