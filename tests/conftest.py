"""Settings every test shares, made before JAX, Gradio or the Hub client is imported."""

import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# No test may need the network; tests of the Hub client set their own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs that tests start share one cache, so the miniature is compiled only once.
# Only the programs that draw live pictures measure how long one takes.
os.environ.setdefault("LIVE", "off")
os.environ.setdefault("CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))

from tests.gated import Gate
from tests.jax_setup import JaxSetup
from tests.web import PROGRAM, folder_served, served

# Slow tests that have not begun by then, in seconds since 1970, are skipped.
SLOW_TESTS_UNTIL = float(os.environ.get("SLOW_TESTS_UNTIL", "inf"))

# The files of this kind in folders whose tests are named on the command line follow at once.
jax_setup = JaxSetup()
sys.meta_path.insert(0, jax_setup)
# Imports and tracing make many objects, of which little is garbage.
gc.set_threshold(50_000, 10, 10)

# Files that one worker runs, because they share what takes long to make: servers, and pipelines.
TOGETHER = {
    "servers": (
        "end_to_end/test_browser",
        "end_to_end/test_network",
        "end_to_end/test_visitors",
        "end_to_end/test_accessibility",
        "end_to_end/test_clients",
        "end_to_end/test_live",
        "end_to_end/test_start",
    ),
    "the page's servers": (
        "end_to_end/test_second_look",
        "end_to_end/test_memory",
        "end_to_end/test_pictures",
        "end_to_end/test_beginning",
        "end_to_end/test_chips",
        "end_to_end/test_keyboard",
    ),
    "the tiny model's server": (
        "end_to_end/test_choices",
        "end_to_end/test_looks",
        "end_to_end/test_prompts",
    ),
    "pipelines": (
        "pipeline/test_pipeline",
        "pipeline/test_pictures_together",
        "pipeline/drawing/test_engine",
        "pipeline/batch/test_drawing",
        "pipeline/batch/test_command",
        "pipeline/runtime/test_compiled",
        "pipeline/runtime/test_slots",
    ),
}
# These start first, in this order, so that no worker is left with a long file at the end.
LONG = (
    *TOGETHER["servers"],
    *TOGETHER["the page's servers"],
    *TOGETHER["the tiny model's server"],
    "tools/test_training",
    "pipeline/test_golden",
    *TOGETHER["pipelines"],
    "benchmarks/test_chaos",
    "pipeline/compat/test_flax_pipelines",
    "test_examples",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-jax", action="store_true", help="skip tests that need JAX, and import it nowhere"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Programs that a shell runs in the background ignore Ctrl+C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jax_setup.skipped = config.option.without_jax


def name_of(path: str) -> str:
    """Return a test file's path below this folder, without its suffix."""
    return path.rpartition("tests/")[2].removesuffix(".py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests so that the files that take long come first."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(name_of(item.path.as_posix()), len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > SLOW_TESTS_UNTIL and item.get_closest_marker("slow"):
        pytest.skip("no time is left for slow tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute files to workers, and those of `TOGETHER` to the same one."""
    from xdist.scheduler import LoadFileScheduling

    groups = {name: group for group, names in TOGETHER.items() for name in names}

    class ByGroup(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return groups.get(name_of(file), file)

    return ByGroup(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the address of another site and the folder with its pages."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with folder_served(folder) as port:
        yield f"http://localhost:{port}", folder


@pytest.fixture(scope="session")
def address(elsewhere: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program with the real model; it blocks the word "gun"."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "blocked").write_text("gun\n")
    flags = ["--cors-origins", elsewhere[0], "--blocked-words", str(folder / "blocked")]
    flags += ["--live", "on"]
    with served([*PROGRAM, *flags], folder / "log") as url:
        yield url


@pytest.fixture(scope="session")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    """Return the gate at which the program of `slow_address` waits in long drawings."""
    return Gate(tmp_path_factory.mktemp("gate") / "open")


@pytest.fixture(scope="session")
def slow_address(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program, whose long drawings wait at the gate."""
    with served(gate.program, tmp_path_factory.mktemp("slow") / "log") as url:
        yield url
