"""All choices that depend on the platform of the devices, in one table.

Kernels name the forms of their computation, and `Platform` names the form that each platform uses.
Programs are lowered for the platform that they run on, whichever platform compiles them.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from pipeline.errors import InputError

CompilerOptions = dict[str, str | bool]
PLAIN = "plain"  # the form of every computation that each platform can run

# A checkpoint with more parameters (500 MB in float32) has one copy in a CPU's memory, not one
# per core.
LARGE_PARAMETERS = 125_000_000
CPU_INFO = Path("/proc/cpuinfo")
# Features of CPUs that multiply bfloat16 numbers without converting them.
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16"})


@dataclass(frozen=True)
class Platform:
    """The choices for one platform; the defaults suit an unknown accelerator.

    Attributes:
        dtype: the networks' default dtype. Where it is float16, networks whose activations may
            leave its range are in another; see `pipeline.families.family.Network`.
        is_accelerator: whether the platform is fast enough for SDXL to be the default model, and
            gives each device a memory of its own.
        forward: the form of the UNet's forward passes, a key of `pipeline.runtime.sampler.FORMS`.
        attention: the form of attention, a key of the forms in `pipeline.kernels.attention`.
        product: the form of bfloat16 products, a key of those in `pipeline.kernels.matmul_conv`.
        convolution: the form of bfloat16 convolutions, likewise.
        int8: the form of products and convolutions of whole numbers in `pipeline.kernels.int8`.
        float32_options: XLA's options for programs dominated by float32 products.
    """

    dtype: str = "bfloat16"
    is_accelerator: bool = True
    forward: str = "slots"
    attention: str = PLAIN
    product: str = PLAIN
    convolution: str = PLAIN
    int8: str = PLAIN
    float32_options: tuple[tuple[str, str | bool], ...] = ()


# The keys are the names that JAX lowers for, but for the last.
PLATFORMS = {
    "cpu": Platform(
        dtype="float32",
        is_accelerator=False,
        forward="picture",
        attention="cached",
        product="accumulated in float32",
        convolution="products",
        int8="float32",
        # XLA has two libraries for CPUs. YNNPACK, its first choice, is the only one with bfloat16,
        # and is faster at sums over many pixels. In float32, Eigen is faster at convolutions and
        # most products. This is the pass that chooses YNNPACK.
        float32_options=(("xla_disable_hlo_passes", "dot-library-rewriter"),),
    ),
    # A TPU's VMEM has room for the activations of one half of one picture.
    "tpu": Platform(
        forward="half", attention="flash", convolution="down columns", int8="down columns"
    ),
    "cuda": Platform(attention="cudnn", int8="products"),
    # NVIDIA GPUs before compute capability 8.0, such as the T4 and the V100. They have no bfloat16,
    # and not what cuDNN's attention needs. Programs for them have the other forms of "cuda".
    "cuda before 8.0": Platform(dtype="float16"),
}


def platform_of(device: jax.Device) -> Platform:
    """Return the choices for a device's platform."""
    is_old = str(getattr(device, "compute_capability", "")).startswith(("5.", "6.", "7."))
    name = "cuda" if device.platform == "gpu" else str(device.platform)
    return PLATFORMS.get("cuda before 8.0" if is_old else name, Platform())


def by_platform(computation: str, forms: Mapping[str, Callable[..., Array]], *args: Array) -> Array:
    """Compute with the form that the platform of the program uses.

    Args:
        computation: the field of `Platform` that names the form.
        forms: the forms that these arguments allow, by name; a platform whose form is missing
            uses the `PLAIN` one.
        args: the arguments of the form.
    """
    functions = {
        name: forms[form]
        for name, platform in PLATFORMS.items()
        if (form := getattr(platform, computation)) in forms and form != PLAIN
    }
    return jax.lax.platform_dependent(*args, default=forms[PLAIN], **functions)


def trained_as(plain: Callable[..., Array]) -> Callable[[Callable[..., Array]], Any]:
    """Decorate a computation that has forms without a derivative: in training it is the plain one.

    The first argument is static. Layers of the same shape share one trace, and one kernel is
    lowered for all of them.
    """

    def decorate(computation: Callable[..., Array]) -> Any:
        function = jax.custom_vjp(computation, nondiff_argnums=(0,))
        function.defvjp(
            lambda static, *arrays: jax.vjp(partial(plain, static), *arrays),
            lambda _, pull, gradient: pull(gradient),
        )
        return jax.jit(function, static_argnums=0)

    return decorate


def compiler_options(device: jax.Device, dtype: DTypeLike) -> CompilerOptions:
    """Return XLA's options for a program dominated by products and wide convolutions in `dtype`."""
    return {} if dtype == jnp.bfloat16 else dict(platform_of(device).float32_options)


def network_dtype(dtype: DTypeLike | None, devices: Sequence[jax.Device]) -> np.dtype[Any]:
    """Return the dtype of the networks: the given one, or the default of `devices` where None.

    `worth_bfloat16` says for which checkpoints a CPU should use bfloat16.

    Raises:
        InputError: if `dtype` is neither float32 nor bfloat16.
    """
    if dtype is None:
        return jnp.dtype(platform_of(devices[0]).dtype)
    for supported in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
        if dtype in (supported, supported.name, supported.type):
            return supported
    raise InputError(
        f"dtype is {dtype}; expected float32 or bfloat16 (the VAE overflows in float16)"
    )


def worth_a_copy(devices: Sequence[jax.Device], parameters: int) -> Sequence[jax.Device]:
    """Return the devices to which a checkpoint with this many parameters should be copied.

    A large checkpoint on a CPU is copied only to the first device, because a CPU's devices share
    one memory. In all other cases the result is all of `devices`.
    """
    large = parameters > LARGE_PARAMETERS
    return devices[:1] if large and not platform_of(devices[0]).is_accelerator else devices


def worth_bfloat16(device: jax.Device, parameters: int) -> bool:
    """Return whether networks with this many parameters in total should run in bfloat16.

    On accelerators that have it they always should. On a CPU they should if they are large and the
    CPU has instructions for bfloat16 products. A small network's products are too small to be worth
    the time that they take to compile.
    """
    if platform_of(device).is_accelerator:
        return platform_of(device).dtype == "bfloat16"
    features = CPU_INFO.read_text().split() if CPU_INFO.exists() else ()
    return not BFLOAT16_FEATURES.isdisjoint(features) and parameters > LARGE_PARAMETERS


def usable_cores(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the number of cores that this process may use.

    These are the cores that it may run on, or fewer where a cgroup limits its time (`cpu.max`), as
    containers do.
    """
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    cores = len(affinity(0))
    for folder in cgroup_folders("", proc, cgroups):
        with suppress(OSError, ValueError):  # there is no such file, or no limit: "max"
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, -(-quota // period))
    return cores


def cgroup_folders(controller: str, proc: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of the process's cgroups, the innermost first.

    Args:
        controller: the controller of the first version of cgroups; "" for the second version.
        proc: the folder of the processes.
        cgroups: the folder of all cgroups.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    groups = [line.split(":", 2)[1:] for line in lines if line.count(":") > 1]
    root = cgroups / controller
    for path in (path for names, path in groups if controller in names.split(",")):
        inside = root / path.lstrip("/")
        # In a container the path may be the host's; the container's own cgroup is the root.
        for folder in (inside, *inside.parents):
            yield folder
            if folder == root:
                break
