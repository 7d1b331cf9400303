"""The operator's options, and how the program refuses what it cannot use."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest

from benchmarks.processes import Instance, free_port, stand_in
from tests.web import wait_until

ROOT = Path(__file__).parents[2]


def run_app(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be used: [Errno 2]"), ("", "it is empty; write one")]
)
def test_api_keys_file(content: str | None, said: str, tmp_path: Path):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    ended = run_app("--api-keys-file", str(file), PORT=str(free_port()))
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_page_users_file(tmp_path: Path):
    file = tmp_path / "users"
    file.write_text("# users\nanna:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00\n")
    ended = run_app("--page-users-file", str(file), PORT=str(free_port()))
    assert ended.returncode == 2
    line = "line 2 is not NAME:HASH as `htpasswd -nB NAME` writes it"
    assert ended.stderr.startswith(f"app.py: PAGE_USERS_FILE: {file} cannot be used: {line}")
    assert "apr1" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_short_passphrase_is_not_repeated():
    ended = run_app(PAGE_PASSPHRASE="secret")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "PAGE_PASSPHRASE: " in ended.stderr
    assert "secret" not in ended.stderr


def test_blocked_words_that_cannot_be_used(tmp_path: Path):
    file = tmp_path / "words"
    file.write_text("fine\n/(/\n")
    ended = run_app("--blocked-words", str(file), PORT=str(free_port()))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"app.py: --blocked-words: {file} cannot be used: line 2: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nowhere.at_all:look", "ModuleNotFoundError: No module named 'nowhere'"),
        pytest.param(
            "tests.screens:look",
            "AttributeError: module 'tests.screens' has no attribute 'look'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "tests.screens:NOT_A_FUNCTION", "'a text' is not a function", marks=pytest.mark.slow
        ),
    ],
)
def test_a_screen_that_cannot_be_used(function: str, said: str):
    ended = run_app("--screen", function, PORT=str(free_port()))
    assert ended.returncode == 2
    assert ended.stderr == f"app.py: --screen: {function} cannot be used: {said}\n"


def test_pointed_at_itself():
    port = free_port()
    ended = run_app(PORT=str(port), BACKEND_URLS=f"http://127.0.0.1:{port}")
    assert ended.returncode == 2
    assert ended.stderr.startswith("app.py: --backend-urls: This instance passes requests on")


def test_more_files_can_be_open_than_there_are_connections():
    program = (
        "import resource; from serving import bootstrap; from serving.http import server;"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE);"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, most));"
        "bootstrap.prepare_environment();"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2 * server.MAX_CONNECTIONS"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=300, check=True)


@contextmanager
def pointed(port: int, at: int) -> Iterator[subprocess.Popen[str]]:
    """Run the program at one port, with a backend URL that points at the other port."""
    own = {"PORT": str(port), "BACKEND_URLS": f"http://127.0.0.1:{at}"}
    with subprocess.Popen(
        [sys.executable, "app.py"], cwd=ROOT, env=os.environ | own, stderr=PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_pointed_at_each_other():
    """The first program waits and answers probes; the second detects the loop and reports it."""
    ports = free_port(), free_port()
    loop = "app.py: --backend-urls: This instance passes requests on;"
    here = f"http://127.0.0.1:{ports[0]}"
    with pointed(*ports) as first:
        wait_until(lambda: answers(f"{here}/healthz"), 300)
        assert httpx.get(f"{here}/healthz").json() == {"status": "alive"}
        for path in ("/readyz", "/v1/model", "/"):
            waits = httpx.get(here + path)
            assert waits.status_code == 503
            assert int(waits.headers["retry-after"]) >= 1
            assert waits.json()["error"]["code"] == "unavailable"
        with pointed(*reversed(ports)) as second:
            assert second.wait(300) == 2
            assert second.stderr is not None
            assert second.stderr.read().startswith(loop)
        # If the first program asked while the second one listened, it found the loop, too.
        stopped = first.poll() is None and answers(f"{here}/healthz")
        if stopped:
            first.terminate()
        if first.wait(300) != 0 or not stopped:
            assert first.returncode == 2
            assert first.stderr is not None
            assert first.stderr.read().startswith(loop)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_help_names_every_option_and_its_variable():
    shown = run_app("--help").stdout
    for name in ("--model-id", "MODEL_ID", "--host", "HOST", "--port", "PORT", "CACHE_DIR"):
        assert name in shown


def test_a_wrong_later_size_is_refused_before_anything_is_compiled(tmp_path: Path):
    ended = run_app(SIZES="256x256,250x256", CACHE_DIR=str(tmp_path / "new"), PORT=str(free_port()))
    assert ended.returncode == 2
    assert ended.stderr == "app.py: width is 250; expected a multiple of 64\n"
    assert "compiled" not in ended.stdout
    # Before it, the log may name what a killed process has left behind.
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO Loading ", ended.stdout, re.MULTILINE)


# A load that nothing ends, as little as a compiler's thread.
LOADS_FOR_EVER = """
import sys, threading, app
def load(_):
    thread = threading.Thread(target=threading.Event().wait)
    thread.start()
    print("loading", flush=True)
    thread.join()
app.main(["--port", sys.argv[1]], load)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_program_while_it_loads(number: signal.Signals, status: int):
    command = [sys.executable, "-c", LOADS_FOR_EVER, str(free_port())]
    with subprocess.Popen(command, cwd=ROOT, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        assert "loading\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        assert process.wait(60) == status


def test_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_app("--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"app.py: cannot listen on 127.0.0.1, port {port}: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("model", ["no/such/folder", pytest.param("tests", marks=pytest.mark.slow)])
def test_no_checkpoint(model: str):
    ended = run_app("--model", model, PORT=str(free_port()))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert model in ended.stderr


@contextmanager
def drawing(program: list[str], log: Path) -> Iterator[Instance]:
    """Run an instance, and yield it while it draws a request."""
    instance = Instance(program, log)
    instance.start()
    try:
        instance.wait_until_ready()
        body = {"prompt": "a red star", "keep": True}  # the page sends "keep", too
        with httpx.stream("POST", f"{instance.url}/v1/generate", json=body, timeout=30) as sent:
            assert "started" in next(sent.iter_lines())
            yield instance
    finally:
        instance.kill()


@pytest.mark.slow
def test_ends_though_its_devices_are_stuck(tmp_path: Path):
    log = tmp_path / "log"
    with drawing(["-m", "tests.fake_pipeline", "--stop-within", "0"], log) as instance:
        wait_until(lambda: "Stuck" in log.read_text())
        assert instance.stop(120) == 0
    assert "A task did not stop in time" in log.read_text()


@pytest.mark.slow
def test_a_second_ctrl_c_waits_for_no_drawing(tmp_path: Path):
    with drawing(stand_in(10_000), tmp_path / "log") as instance:
        instance.signal(signal.SIGINT)
        wait_until(lambda: httpx.get(f"{instance.url}/readyz").status_code == 503)
        instance.signal(signal.SIGINT)
        # The signal ends the program at once; waiting for the drawing would take a minute.
        assert instance.process.wait(45) in (130, -signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("prompts", ["yes", "no"])
def test_every_line_of_the_log_is_json(prompts: str, tmp_path: Path):
    log = tmp_path / "log"
    instance = Instance(stand_in(1, "--log-format", "json", "--log-prompts", prompts), log)
    instance.start()
    try:
        instance.wait_until_ready()
        body = {"prompt": "a red star", "negative_prompt": "a moon", "id": "0123456789abcdef"}
        assert httpx.post(f"{instance.url}/v1/generate", json=body, timeout=30).status_code == 200
        assert httpx.post(f"{instance.url}/v1/generate", json=body).status_code == 409
    finally:
        assert instance.stop(120) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    about = [line for line in lines if line.get("request_id") == "0123456789abcdef"]
    assert [line["outcome"] for line in about] == ["done", "duplicate"]
    assert about[0]["images"] == 4
    if prompts == "yes":
        assert (about[0]["prompt"], about[0]["negative_prompt"]) == ("a red star", "a moon")
    else:
        assert "a red star" not in log.read_text()
        assert "a moon" not in log.read_text()
