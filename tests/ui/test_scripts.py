"""The page's scripts."""

import gzip
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from ui import scripts, theme

NODE = Path(sys.executable).with_name("node")
TESTS = Path(__file__).parents[1] / "node"
IMPORT = re.compile(r"(?:from|import|import\() ?\"(\.[^\"]+)\"")


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    scripts.connect(app)
    return TestClient(app)


def test_scripts_are_cached_by_their_version(client: TestClient):
    answer = client.get(f"/{scripts.MAIN}")
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/javascript")
    for other in (scripts.MAIN.replace("main.js", "other.js"), "scripts/old/static/main.js"):
        assert client.get(f"/{other}").status_code == 404


def test_every_import_is_served_and_every_module_is_needed(client: TestClient):
    needed, imported = [scripts.MAIN], {scripts.MAIN}
    while needed:
        address = needed.pop()
        for name in IMPORT.findall(client.get(f"/{address}").text):
            found = posixpath.normpath(posixpath.join(posixpath.dirname(address), name))
            assert client.get(f"/{found}").status_code == 200, found
            if found not in imported:
                imported.add(found)
                needed.append(found)
    tools = {address for address in imported if "/start/" in address}
    assert imported - tools == set(scripts.MODULES)
    assert len(tools) == 7
    styles = client.get(f"/{scripts.MAIN}".replace("main.js", "start/tools.css"))
    assert styles.headers["content-type"].startswith("text/css")


def test_scripts_of_parts_name_the_events_that_are_not_gradios():
    script = scripts.part("relay", "linked")
    assert f'window[Symbol.for("sdxl {scripts.VERSION}")]("relay", ' in script
    assert '["linked"]' in script


def test_what_needs_no_browser():
    files = sorted(map(str, TESTS.glob("*.test.js")))
    assert files
    tests = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, check=False)
    assert tests.returncode == 0, tests.stdout


def test_a_visit_loads_little(client: TestClient):
    """The tools for a picture to start from follow with the first one."""
    contents = [client.get(f"/{address}").content for address in scripts.MODULES]
    sizes = [len(gzip.compress(content)) for content in (*contents, theme.CSS.read_bytes())]
    assert sum(sizes) < 60_000
