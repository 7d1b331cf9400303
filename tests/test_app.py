"""The operator's options, and how the program refuses what it cannot use."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import free_port
from serving import options

ROOT = Path(__file__).parent.parent


def run_app(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "app.py", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_defaults():
    chosen = options.read([], {})
    assert chosen == options.Options(
        model=None,
        revision=None,
        host="127.0.0.1",
        port=7860,
        sizes=(),
        images=4,
        steps=25,
        max_waiting=32,
        max_wait=600,
        max_run=300,
        grace=30,
        keep_results=32,
        keep_seconds=600,
        keep_files=3600,
        stop_within=60,
        rate_per_address=0,
        rate_per_session=0,
        trusted_proxies=0,
        api_keys_file=None,
        blocked_words=None,
        cors_origins=(),
        log_format="text",
        log_prompts=False,
        backend_urls=(),
        backend_key_file=None,
        scheduler=None,
        safety_checker=True,
        screen=None,
        reveal=True,
        cache_dir=None,
    )


def test_flag_wins_over_variable_and_empty_variable_counts_as_unset():
    variables = {"PORT": "8000", "STEPS": "10", "HOST": "", "CACHE_DIR": "cache"}
    chosen = options.read(["--steps", "30"], variables)
    assert (chosen.port, chosen.steps, chosen.host) == (8000, 30, "127.0.0.1")
    assert chosen.cache_dir == Path("cache")
    assert not options.read([], {"SAFETY_CHECKER": "no"}).safety_checker
    assert options.read(["--safety-checker", "yes"], {"SAFETY_CHECKER": "no"}).safety_checker


def test_sizes_are_width_and_height_each_once():
    chosen = options.read(["--sizes", "1024x1024, 1152x896,1024x1024"], {})
    assert chosen.sizes == ((1024, 1024), (1152, 896))


def test_on_a_space_the_page_is_open_to_all():
    assert options.read([], {"SPACE_ID": "org/name"}).host == "0.0.0.0"
    assert options.read([], {"SPACE_ID": "org/name", "HOST": "::1"}).host == "::1"


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--port", "0"], {}, "--port: '0' is not possible; a whole number from 1 to 65535"),
        ([], {"PORT": "http"}, "--port: 'http' is not possible"),
        ([], {"STEPS": "51"}, "--steps: '51' is not possible; a whole number from 1 to 50"),
        (["--images", "4.5"], {}, "--images: '4.5'"),
        (["--sizes", "1024"], {}, "--sizes: '1024' is not possible; sizes such as 1024x1024,1152x"),
        ([], {"SIZES": "64x64,-8x64"}, "--sizes: '-8x64' is not possible"),
        (["--max-waiting", "9" * 5000], {}, "--max-waiting"),
        (["--cors-origins", "example.org"], {}, "'example.org' is not possible; an origin such as"),
        ([], {"BACKEND_URL": "http://a/b"}, "--backend-urls: 'http://a/b' is not possible"),
        ([], {"LOG_FORMAT": "xml"}, "--log-format: 'xml' is not possible; text or json is"),
        (["--log-prompts", "perhaps"], {}, "yes or no is"),
        ([], {"SAFETY_CHECKER": "off"}, "--safety-checker: 'off' is not possible; yes or no is"),
        ([], {"SCREEN": "my.screen"}, "--screen: 'my.screen' is not possible; package.module:func"),
        (["--reveal", "no", "--screen", "a:b", "--backend-urls", "http://a"], {}, "--screen: "),
        (["--trusted-proxies", "-1"], {}, "--trusted-proxies"),
        (["--colour", "red"], {}, "unrecognized arguments: --colour"),
    ],
)
def test_refused_in_one_line(
    arguments: list[str],
    variables: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as stop:
        options.read(arguments, variables)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert said in error
    assert error.startswith("app.py: ")
    assert error.count("\n") == 1


def test_lists_are_separated_by_commas():
    variables = {"BACKEND_URL": "http://a:7860, http://10.0.0.2:80", "CORS_ORIGINS": ""}
    chosen = options.read(["--log-prompts", "yes"], variables)
    assert chosen.backend_urls == ("http://a:7860", "http://10.0.0.2:80")
    assert chosen.cors_origins == ()
    assert chosen.log_prompts


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("", "has no keys")])
def test_api_keys_file(content: str | None, said: str, tmp_path: Path):
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    ended = run_app("--api-keys-file", str(file), PORT=str(free_port()))
    assert ended.returncode == 2
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


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
        ("tests.screens:look", "AttributeError: module 'tests.screens' has no attribute 'look'"),
        ("tests.screens:NOT_A_FUNCTION", "'a text' is no function"),
    ],
)
def test_a_screen_that_cannot_be_used(function: str, said: str):
    ended = run_app("--screen", function, PORT=str(free_port()))
    assert ended.returncode == 2
    assert ended.stderr == f"app.py: --screen: {function} cannot be used: {said}\n"


def test_pointed_at_itself():
    port = free_port()
    ended = run_app(PORT=str(port), BACKEND_URL=f"http://127.0.0.1:{port}")
    assert ended.returncode == 2
    assert ended.stderr.startswith("app.py: --backend-urls: This instance passes requests on")


def test_help_names_every_option_and_its_variable():
    shown = run_app("--help").stdout
    for name in ("--model", "MODEL_ID", "--host", "HOST", "--port", "PORT", "--steps", "CACHE_DIR"):
        assert name in shown


def test_address_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_app("--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"app.py: cannot listen on 127.0.0.1, port {port}: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("model", ["no/such/folder", "tests"])
def test_no_checkpoint(model: str):
    ended = run_app("--model", model, PORT=str(free_port()))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert model in ended.stderr
