"""Settings every test shares, made before JAX, Gradio or the Hub client is imported."""

import os

import pytest

# Nothing in the tests may need the network; a test of the Hub client sets its own endpoint.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

# Eight simulated devices stand in for an accelerator host. Set through the configuration and
# not XLA_FLAGS, so that programs started by a test see the machine as it is.
jax.config.update("jax_num_cpu_devices", 8)
# An unintended float32/bfloat16 mix is an error here rather than a silent loss of precision.
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Most of the time is the compiler's, and little of it pays for what runs once. The comparison with
# torch, in tests/reference, has programs compiled as everywhere else.
jax.config.update("jax_disable_most_optimizations", True)

# Begun first, so that no process is left with one of them when the others have nothing more to do.
LONG = {
    "test_browser",
    "test_chaos",
    "test_compat",
    "test_examples",
    "test_golden",
    "test_memory",
    "test_network",
    "test_training",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come before the others."""
    items.sort(key=lambda item: item.path.stem not in LONG)
