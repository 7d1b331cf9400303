"""The devices that JAX finds, how many of a CPU's are used, and what is said when they fail."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
from jax.errors import JaxRuntimeError

from pipeline.errors import DeviceError

# A checkpoint with more, 500 MB in float32, has one copy in a CPU's memory, not one per core.
LARGE_PARAMETERS = 125_000_000
CPU_INFO = Path("/proc/cpuinfo")
# Of a CPU that multiplies numbers in bfloat16 as they are.
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16"})
_UNSET = -1


def cores_as_devices(images: int) -> None:
    """Has JAX take cores of a CPU for devices, as many as can share `images` equally.

    Each then draws pictures of its own, where otherwise all would share every operation: too small
    in a small model to be worth it. Has to come before anything else is asked of JAX. A number
    that is set already, by JAX_NUM_CPU_DEVICES or otherwise, stands.
    """
    if jax.config.values["jax_num_cpu_devices"] == _UNSET:
        most = min(images, os.cpu_count() or 1)
        shares = max(n for n in range(1, most + 1) if images % n == 0)
        jax.config.update("jax_num_cpu_devices", shares)


def worth_a_copy(devices: Sequence[jax.Device], parameters: int) -> Sequence[jax.Device]:
    """Return the devices that a checkpoint of so many parameters should be copied to.

    All of them; but of a CPU's, which have one memory, only the first where it is large.
    """
    large = parameters > LARGE_PARAMETERS
    return devices[:1] if devices[0].platform == "cpu" and large else devices


def worth_bfloat16(device: jax.Device, parameters: int) -> bool:
    """Say whether networks of so many parameters together should run in bfloat16 on a device.

    On accelerators always. On a CPU where they are large, if it has instructions for such products:
    a small network's products are too small to be worth the time that they take to compile.
    """
    if device.platform != "cpu":
        return True
    features = CPU_INFO.read_text().split() if CPU_INFO.exists() else []
    return not BFLOAT16_FEATURES.isdisjoint(features) and parameters > LARGE_PARAMETERS


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
