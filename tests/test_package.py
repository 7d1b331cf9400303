"""The package that `pip install` makes: its files, its ranges of versions, and its commands."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cli
from hatch_build import rewrite
from pipeline import metadata

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "serving", "ui")
MODULES = ("app", "cli", "cluster", *PACKAGES)
IMPORT_ALL = """
import importlib, pkgutil, sdxl_jax
for module in pkgutil.walk_packages(sdxl_jax.__path__, "sdxl_jax."):
    importlib.import_module(module.name)
"""


def run(*command: object, cwd: Path = ROOT, **variables: str) -> str:
    """Run a command and return its output."""
    environment = {**os.environ, **variables}
    return subprocess.check_output(list(map(str, command)), cwd=cwd, env=environment, text=True)


def test_the_ranges_hold_the_versions_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = project["dependencies"], *project["optional-dependencies"].values()
    ranges = [Requirement(each) for requirements in lists for each in requirements]
    files = ROOT / "requirements.txt", ROOT / "requirements-cluster.txt"
    lines = "\n".join(file.read_text() for file in files)
    pinned = re.findall(r"^([\w-]+)(?:\[\w+\])?==(\S+)$", lines, re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in pinned}
    pins[canonicalize_name(project["name"])] = project["version"]
    assert {canonicalize_name(each.name) for each in ranges} == set(pins)
    for each in ranges:
        assert pins[canonicalize_name(each.name)] in each.specifier, each


def test_imports_are_rewritten():
    source = '"""Not `python -m ui`."""\ndef f():\n    from ui.a import (b,\n        c)\n'
    rewritten = source.replace("from ui", "from sdxl_jax.ui")
    assert rewrite("a.py", source, MODULES) == rewritten


@pytest.mark.parametrize(
    "line",
    ["import pipeline.errors", "if x: from ui import a", 'x = "serving.logs"', 'x = f"-m ui {x}"'],
)
def test_a_name_that_cannot_be_rewritten_is_refused(line: str):
    with pytest.raises(ValueError, match=r"^a.py, line 2: "):
        rewrite("a.py", f"import uic\n{line}\n", MODULES)


def test_serve_names_the_packages_that_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        cli.main(["serve", "--port", "8000"])
    assert "pip install 'sdxl-jax[server]'" in capsys.readouterr().err


def test_an_editable_installation_is_refused(tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError):
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel:editable", "-d", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_package_works_beside_modules_of_the_same_names(tmp_path: Path):
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path)
    [wheel], [sdist] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    pip = sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"
    build = "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path / "again"
    run(*pip, *build, sdist)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()
    files = [file for name in PACKAGES for file in (ROOT / name).rglob("*") if file.is_file()]
    expected = {f"sdxl_jax/{file.relative_to(ROOT)}" for file in files if file.suffix != ".pyc"}
    expected |= {f"sdxl_jax/{name}.py" for name in ("__init__", "app", "cli", "cluster")}
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == expected

    # The environment has the dependencies of this one, and the folder has modules that would fail.
    environment, folder = tmp_path / "environment", tmp_path / "folder"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    programs = environment / "bin"
    run(*pip, "--python", programs / "python", "install", "--no-deps", "--no-index", wheel)
    [packages] = environment.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    folder.mkdir()
    for name in MODULES:
        (folder / f"{name}.py").write_text("raise AssertionError\n")
    run(programs / "python", "-c", IMPORT_ALL, cwd=folder)
    help_text = run(programs / "python", "-m", "sdxl_jax.pipeline", "--help", cwd=folder)
    assert help_text.startswith("usage: python -m sdxl_jax.pipeline ")
    help_text = run(programs / "sdxl-jax", "serve", "--help", cwd=folder)
    assert help_text.startswith("usage: sdxl-jax serve ")
    draw = programs / "sdxl-jax", "draw", "a red star", "--images", "1", "--steps", "2"
    [picture, _] = run(*draw, cwd=folder, PYTHONPATH=str(folder)).split()
    settings = metadata.read(folder / picture)
    assert settings is not None
    assert settings.prompt == "a red star"
