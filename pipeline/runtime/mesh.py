"""JAX's devices: finding them, choosing how many to use of a CPU, explaining their failures."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.errors import JaxRuntimeError

from pipeline.errors import DeviceError

# A checkpoint with more parameters (500 MB in float32) has one copy in a CPU's memory, not one
# per core.
LARGE_PARAMETERS = 125_000_000
CPU_INFO = Path("/proc/cpuinfo")
# Features of CPUs that multiply bfloat16 numbers without converting them.
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16"})
_UNSET = -1


def cores_as_devices(images: int) -> None:
    """Make JAX treat a CPU's cores as devices, as many as can share `images` equally.

    Each core then draws pictures of its own. Otherwise all cores share every operation, and a
    small model's operations are too small for that. Call this before any other use of JAX. A
    number that is already set, by JAX_NUM_CPU_DEVICES or otherwise, is kept.
    """
    if jax.config.values["jax_num_cpu_devices"] == _UNSET:
        most = min(images, os.cpu_count() or 1)
        shares = max(n for n in range(1, most + 1) if images % n == 0)
        jax.config.update("jax_num_cpu_devices", shares)


def worth_a_copy(devices: Sequence[jax.Device], parameters: int) -> Sequence[jax.Device]:
    """Return the devices that a checkpoint of so many parameters should be copied to.

    These are all of `devices`. On a CPU, whose devices share one memory, a large checkpoint is
    copied only to the first.
    """
    large = parameters > LARGE_PARAMETERS
    return devices[:1] if devices[0].platform == "cpu" and large else devices


def worth_bfloat16(device: jax.Device, parameters: int) -> bool:
    """Return whether networks of so many parameters together should run in bfloat16 on a device.

    On accelerators they always should. On a CPU they should if they are large and the CPU has
    instructions for bfloat16 products. A small network's products are too small to be worth the
    time that they take to compile.
    """
    if device.platform != "cpu":
        return True
    features = CPU_INFO.read_text().split() if CPU_INFO.exists() else []
    return not BFLOAT16_FEATURES.isdisjoint(features) and parameters > LARGE_PARAMETERS


def find_devices() -> list[jax.Device]:
    """Return all devices of JAX's default backend.

    Raises:
        DeviceError: if the backend that was asked for is not available.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # the type depends on the backend
        asked = os.environ.get("JAX_PLATFORMS", "")
        raise DeviceError(
            f"JAX finds no device to run on (JAX_PLATFORMS is {asked!r}); unset JAX_PLATFORMS, or "
            f"install the driver and the JAX build of that platform. {_first_line(error)}".strip()
        ) from error


@contextmanager
def failures_explained() -> Iterator[None]:
    """Turn a failure of a device into a DeviceError with a message of one line."""
    try:
        yield
    except JaxRuntimeError as error:
        first = _first_line(error)
        if first.startswith("RESOURCE_EXHAUSTED"):
            first = f"too little memory; fewer pictures or a smaller size need less ({first})"
        raise DeviceError(f"the device failed: {first}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
