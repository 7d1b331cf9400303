"""Settings every test shares, made before JAX, Gradio or the Hub client is imported."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# No test may need the network; tests of the Hub client set their own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Programs that tests start share one cache, so the miniature is compiled only once.
os.environ.setdefault("CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "compiled"))

import jax

from tests import compiling, slowly
from tests.web import PROGRAM, folder_served, served

# Eight simulated devices stand in for an accelerator host. They are set through the configuration
# and not XLA_FLAGS, so that programs started by a test see the machine as it is.
jax.config.update("jax_num_cpu_devices", 8)
# An unintended float32/bfloat16 mix is an error here rather than a silent loss of precision.
jax.config.update("jax_numpy_dtype_promotion", "strict")
# The comparison with torch in tests/reference and programs started by a test compile with the
# usual optimisations.
jax.config.update("jax_disable_most_optimizations", True)

# These files start first, so that no worker is left with a long one while the others are idle.
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
    """Create the devices, now that every conftest has set its options: XLA reads its flags here."""
    # Programs that a shell runs in the background ignore Ctrl+C, and so do their children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if jax.config.values["jax_disable_most_optimizations"]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XLA_FLAGS", compiling.QUICKLY["XLA_FLAGS"])
            jax.devices()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests so that the files that take long come first."""
    items.sort(key=lambda item: item.path.stem not in LONG)


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
    with served([*PROGRAM, *flags], folder / "log") as url:
        yield url


@pytest.fixture(scope="session")
def slow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the real program, slowed down so that any browser is faster."""
    with served(slowly.program(400), tmp_path_factory.mktemp("slow") / "log") as url:
        yield url
