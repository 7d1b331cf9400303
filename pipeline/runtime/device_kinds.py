"""Kinds of devices: their memory, and the rates from which a plan is made.

The rates of a TPU are those of `benchmarks/results/2026-11-26-tpu-*.json`: SDXL base at 1024x1024,
one picture on each chip, in libtpu's own memory analysis. The rates of a CPU are fitted to XLA's
analysis in `benchmarks/results/*-cpu-memory.json`. No GPU has been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.platforms import PLATFORMS, Platform

GIB = 2**30


@dataclass(frozen=True)
class Rates:
    """Rates of one kind of device, from the sizes of a model's networks to bytes and seconds.

    Networks are "text_encoders", "context", "unet", "vae", "tiny_vae" and "safety_checker", as in
    `ModelSize`.

    Attributes:
        code: bytes of code for each weight tensor of a program's network.
        activations: temporaries, as a multiple of the network's largest activations.
        context: copies of the UNet's context among the temporaries of its programs.
        upsampling: copies of the UNet's upsampling kernels among those temporaries.
        scores: copies of the UNet's attention scores among those temporaries; 0 if the attention
            kernel keeps none in memory.
        widened: share of a network's 16-bit weights that its programs widen to 32 bits.
        seconds: seconds to compile per weight tensor, with all programs compiled in parallel.
        spread: likely range of code and temporaries, as multiples of the estimate.
        time_spread: likely range of the seconds, likewise.
    """

    code: Mapping[str, float]
    activations: Mapping[str, float]
    context: float
    upsampling: float
    scores: float
    widened: float
    seconds: Mapping[str, float]
    spread: tuple[float, float]
    time_spread: tuple[float, float]


@dataclass(frozen=True)
class DeviceKind:
    """A kind of device.

    Attributes:
        name: its name in a plan.
        names: prefixes of JAX's `device_kind` by which it is recognised.
        platform: the choices for its platform.
        devices: number of devices of a typical machine, for plans.
        memory: bytes of one device that JAX can use; None if that depends on the machine.
        memory_source: the source of `memory`.
        rates: see `Rates`.
        rates_source: the source of `rates`.
    """

    name: str
    names: tuple[str, ...]
    platform: Platform
    devices: int
    memory: int | None
    memory_source: str
    rates: Rates
    rates_source: str


_TPU_SOURCE = (
    "measured with libtpu for SDXL base at 1024x1024, one picture on each chip; "
    "estimated from that for other models, sizes and numbers of pictures"
)
_TPU_SECONDS = (0.1, 2.0)  # recorded on two busy cores; a TPU's host has many

TPU_V5E = DeviceKind(
    name="TPU v5e",
    names=("TPU v5 lite", "TPU v5e"),
    platform=PLATFORMS["tpu"],
    devices=4,
    memory=int(15.75 * GIB),
    memory_source="16 GiB, of which libtpu reports 15.75 for programs",
    rates=Rates(
        code={
            "text_encoders": 128e3,
            "context": 0.0,
            "unet": 248e3,
            "vae": 255e3,
            "tiny_vae": 209e3,
            "safety_checker": 128e3,
        },
        activations={
            "text_encoders": 61.0,
            "context": 1.0,
            "unet": 4.35,
            "vae": 4.29,
            "tiny_vae": 5.06,
            "safety_checker": 3.0,
        },
        context=1.0,
        upsampling=0.0,
        scores=0.0,
        widened=0.0,
        seconds={
            "text_encoders": 0.42,
            "context": 0.0,
            "unet": 0.23,
            "vae": 1.33,
            "tiny_vae": 1.3,
            "safety_checker": 0.42,
        },
        spread=(0.7, 1.3),
        time_spread=_TPU_SECONDS,
    ),
    rates_source=_TPU_SOURCE,
)
TPU_V6E = DeviceKind(
    name="TPU v6e",
    names=("TPU v6 lite", "TPU v6e"),
    platform=PLATFORMS["tpu"],
    devices=4,
    memory=int(31.25 * GIB),
    memory_source="32 GiB, of which libtpu reports 31.25 for programs",
    rates=Rates(
        code={
            "text_encoders": 82e3,
            "context": 0.0,
            "unet": 354e3,
            "vae": 216e3,
            "tiny_vae": 190e3,
            "safety_checker": 82e3,
        },
        activations={
            "text_encoders": 61.0,
            "context": 1.0,
            "unet": 3.79,
            "vae": 4.29,
            "tiny_vae": 5.07,
            "safety_checker": 3.0,
        },
        context=1.0,
        upsampling=0.0,
        scores=0.0,
        widened=0.0,
        seconds={
            "text_encoders": 0.69,
            "context": 0.0,
            "unet": 0.37,
            "vae": 2.07,
            "tiny_vae": 2.0,
            "safety_checker": 0.69,
        },
        spread=(0.7, 1.3),
        time_spread=_TPU_SECONDS,
    ),
    rates_source=_TPU_SOURCE,
)
H200 = DeviceKind(
    name="NVIDIA H200",
    names=("NVIDIA H200",),
    platform=PLATFORMS["cuda"],
    devices=1,
    memory=int(0.75 * 139 * GIB),
    memory_source="139 GiB, of which JAX takes three quarters unless XLA_PYTHON_CLIENT_MEM_FRACTION"
    " says otherwise",
    rates=Rates(
        code={
            "text_encoders": 20e3,
            "context": 0.0,
            "unet": 40e3,
            "vae": 60e3,
            "tiny_vae": 60e3,
            "safety_checker": 20e3,
        },
        activations={
            "text_encoders": 4.0,
            "context": 1.0,
            "unet": 4.0,
            "vae": 5.0,
            "tiny_vae": 5.0,
            "safety_checker": 4.0,
        },
        context=2.0,
        upsampling=1.0,
        scores=0.0,
        widened=0.0,
        seconds={
            "text_encoders": 0.1,
            "context": 0.0,
            "unet": 0.1,
            "vae": 0.5,
            "tiny_vae": 0.5,
            "safety_checker": 0.1,
        },
        spread=(0.4, 3.0),
        time_spread=(0.3, 5.0),
    ),
    rates_source="estimates; no GPU has been measured",
)
CPU = DeviceKind(
    name="CPU",
    names=("cpu",),
    platform=PLATFORMS["cpu"],
    devices=1,
    memory=None,
    memory_source="available at the moment",
    rates=Rates(
        code={
            "text_encoders": 8e3,
            "context": 0.0,
            "unet": 10e3,
            "vae": 10e3,
            "tiny_vae": 10e3,
            "safety_checker": 8e3,
        },
        activations={
            "text_encoders": 3.1,
            "context": 1.0,
            "unet": 0.9,
            "vae": 2.5,
            "tiny_vae": 3.0,
            "safety_checker": 3.1,
        },
        context=2.0,
        upsampling=1.1,
        scores=1.0,
        widened=0.3,
        seconds={
            "text_encoders": 0.02,
            "context": 0.0,
            "unet": 0.1,
            "vae": 0.1,
            "tiny_vae": 0.1,
            "safety_checker": 0.02,
        },
        spread=(0.7, 1.5),
        time_spread=(0.3, 5.0),
    ),
    rates_source="measured with XLA for the bundled miniature; estimated from that "
    "for larger models",
)
KINDS = (CPU, TPU_V5E, TPU_V6E, H200)
# Machines that a plan is printed for, beside this one.
MACHINES = (TPU_V5E, TPU_V6E, H200)
# Rates of a kind that is not listed; its memory is unknown unless JAX reports it.
NEAREST = {"tpu": TPU_V5E, "gpu": H200, "cpu": CPU}
