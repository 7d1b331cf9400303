"""Settings every test shares, made before JAX, Gradio or the Hub client is imported."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Nothing in the tests may need the network; a test of the Hub client sets its own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs that are started by a test compile the miniature once, and not once each.
os.environ.setdefault("CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))

import jax

from tests import compiling, slowly
from tests.web import PROGRAM, folder_served, served

# Eight simulated devices stand in for an accelerator host. Set through the configuration and
# not XLA_FLAGS, so that programs started by a test see the machine as it is.
jax.config.update("jax_num_cpu_devices", 8)
# An unintended float32/bfloat16 mix is an error here rather than a silent loss of precision.
jax.config.update("jax_numpy_dtype_promotion", "strict")
# The comparison with torch, in tests/reference, has programs compiled as everywhere else; so have
# programs that are started by a test.
jax.config.update("jax_disable_most_optimizations", True)

# Begun first, so that no process is left with one of them when the others have nothing more to do.
LONG = {
    "test_browser",
    "test_chaos",
    "test_flax_pipelines",
    "test_examples",
    "test_golden",
    "test_memory",
    "test_network",
    "test_training",
}


def pytest_configure() -> None:
    """XLA reads its flags when the devices are made, and every conftest has had its say."""
    # A shell has programs in the background ignore Ctrl+C, and these what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if jax.config.values["jax_disable_most_optimizations"]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XLA_FLAGS", compiling.QUICKLY["XLA_FLAGS"])
            jax.devices()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come before the others."""
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Another site: its address, and the folder with its pages."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with folder_served(folder) as port:
        yield f"http://localhost:{port}", folder


@pytest.fixture(scope="session")
def address(elsewhere: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the real program serves its page, with the real model; nobody may ask for a gun."""
    folder = tmp_path_factory.mktemp("app")
    (folder / "blocked").write_text("gun\n")
    flags = ["--cors-origins", elsewhere[0], "--blocked-words", str(folder / "blocked")]
    with served([*PROGRAM, *flags], folder / "log") as url:
        yield url


@pytest.fixture(scope="session")
def slow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same, where it draws so slowly that any browser is faster."""
    with served(slowly.program(400), tmp_path_factory.mktemp("slow") / "log") as url:
        yield url
