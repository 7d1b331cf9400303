"""JAX's devices: finding them, sharing a CPU's cores, explaining their failures."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.errors import JaxRuntimeError

from pipeline.errors import DeviceError, first_line
from pipeline.platforms import usable_cores


def cores_as_devices(images: int) -> None:
    """Make JAX treat CPU cores as devices: the largest number that shares `images` equally.

    Each core then draws pictures of its own. Otherwise all cores share every operation, and a
    small model's operations are too small for that. Call this before any other use of JAX. A
    number that is already set, by JAX_NUM_CPU_DEVICES or otherwise, is kept.
    """
    if jax.config.values["jax_num_cpu_devices"] == -1:  # it is not set
        limit = min(images, usable_cores())
        shares = max(n for n in range(1, limit + 1) if images % n == 0)
        jax.config.update("jax_num_cpu_devices", shares)


def find_devices() -> list[jax.Device]:
    """Return all devices of JAX's default backend.

    Raises:
        DeviceError: if the backend that was asked for is not available.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the type depends on the backend
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise DeviceError(
            f"JAX finds no device to run on (JAX_PLATFORMS is {platforms!r}); unset JAX_PLATFORMS, "
            "or install the driver and the JAX build of that platform."
            f" {first_line(error)}".strip()
        ) from error


@contextmanager
def failures_explained() -> Iterator[None]:
    """Convert a device's failure to a DeviceError with a one-line message."""
    try:
        yield
    except JaxRuntimeError as error:
        first = first_line(error)
        if first.startswith("RESOURCE_EXHAUSTED"):
            first = f"too little memory; fewer pictures or a smaller size need less ({first})"
        raise DeviceError(f"the device failed: {first}") from error
