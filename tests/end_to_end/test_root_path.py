"""The server under a path of nginx's."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect

from benchmarks.processes import free_port, stand_in
from tests.browsing import Visitor, draw_pictures
from tests.web import served, wait_until
from tools.page_states import open_picture

CONFIGURATION = """
daemon off;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location /draw/ {{
      proxy_pass {url}/;
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_buffering off;
      client_max_body_size 50m;
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a stand-in under a path."""
    nginx = shutil.which("nginx")
    if nginx is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    program = stand_in(1, "--root-path", "/draw", "--trusted-proxies", "1")
    with served(program, folder / "server.log") as url:
        file = folder / "nginx.conf"
        file.write_text(CONFIGURATION.format(folder=folder, port=port, url=url))
        address = f"http://127.0.0.1:{port}/draw"
        with subprocess.Popen([nginx, "-c", str(file)]) as process:
            try:
                wait_until(Path(folder / "pid").exists)
                yield address
            finally:
                process.terminate()


@pytest.mark.slow
def test_the_page_draws_under_a_path(visitor: Visitor, proxied: str):
    loaded: list[str] = []
    with visitor.at(f"{proxied}/") as page:
        page.on("request", lambda request: loaded.append(request.url))
        draw_pictures(page, "a star", 4)
        open_picture(page)
        page.reload()
        expect(page.locator("#gallery img").first).to_be_visible()
    assert all(url.startswith((proxied, "blob:", "data:")) for url in loaded)


@pytest.mark.slow
def test_addresses_in_answers_have_the_path(proxied: str):
    body = {"prompt": "a star", "n": 1, "response_format": "url"}
    answer = httpx.post(f"{proxied}/v1/images/generations", json=body, timeout=600)
    url = answer.json()["data"][0]["url"]
    assert url.startswith(f"{proxied}/v1/")
    assert httpx.get(url).headers["content-type"] == "image/png"
    answer = httpx.post(f"{proxied}/v1/generate", json={"prompt": "a star"}, timeout=600)
    assert answer.headers["content-location"].startswith("/draw/v1/requests/")
    # The routes must not take off a path that the checks have seen.
    assert httpx.get(f"{proxied}/draw/v1/model").status_code == 404
