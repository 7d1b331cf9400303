"""The devices that JAX finds, and what is said when they fail."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JaxRuntimeError

from pipeline.errors import DeviceError


def find_devices() -> list[jax.Device]:
    """All devices of JAX's default backend.

    Raises DeviceError where the backend that was asked for is not there.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # which of them depends on the backend
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise DeviceError(
            f"JAX finds no device to run on (JAX_PLATFORMS is {asked!r}); unset JAX_PLATFORMS, or "
            f"install the driver and the JAX build of that platform. {_first_line(error)}".strip()
        ) from error


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turns a failure of a device into a DeviceError with one line."""
    try:
        yield
    except JaxRuntimeError as error:
        first = _first_line(error)
        if first.startswith("RESOURCE_EXHAUSTED"):
            first = f"too little memory; fewer pictures or a smaller size need less ({first})"
        raise DeviceError(f"the device failed: {first}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
