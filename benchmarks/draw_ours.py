"""One process: this project's sampler, with random weights made on the device.

    .venv/bin/python -m benchmarks.draw_ours CONFIGS

Prints its measurements as JSON, each line with all so far. `--fidelity` also draws the pictures in
float32, from the same latents and weights, and compares them.
"""

import time
from argparse import Namespace
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import draw_job, gpu_profile
from benchmarks.full_size import controlnet_of
from benchmarks.random_weights import fill
from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.families.latent_unet import CONTROL
from pipeline.kernels.matmul_conv import dot_general
from pipeline.platforms import platform_of
from pipeline.runtime.compiled import CompiledSampler, make_mesh
from pipeline.runtime.control_networks import ControlNetwork
from pipeline.runtime.controls import ControlStart, Guided
from pipeline.runtime.executables import ExecutableCache, compile_missing, load_cached
from pipeline.runtime.loading import trace_networks
from pipeline.runtime.mesh import cores_as_devices
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import Shapes, Target, program_names
from pipeline.runtime.room import Model, Room
from pipeline.runtime.slots import Entry, Slots, Start, slot_mask
from pipeline.runtime.work import Work, pack
from pipeline.schedulers.methods import make_schedule

PACKAGES = ("flax", "jax", "jaxlib")


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_ours")
    cores_as_devices(options.images)
    config = read_config(options.configs)
    device = jax.devices()[0]
    report = draw_job.Report(
        provider="this project",
        device=device.device_kind,
        versions=draw_job.versions(PACKAGES),
    )
    begin = time.perf_counter()
    job = Job(config, options, options.dtype)
    start_seconds = time.perf_counter() - begin
    report.add(start_seconds=start_seconds, compile_seconds=job.compile_seconds)
    job.encode()
    latents = job.denoise()
    median_seconds = partial(draw_job.seconds, repeats=options.repeats)
    report.add(
        step_seconds=median_seconds(lambda: job.denoise().block_until_ready()) / options.steps
    )
    if options.control:
        guided_seconds = median_seconds(lambda: job.denoise(follow=True).block_until_ready())
        report.add(control_step_seconds=guided_seconds / options.steps)
    report.add(request_seconds=median_seconds(lambda: job.pictures()))
    report.add(decode_seconds=median_seconds(lambda: np.asarray(job.decode(latents)[1])))
    report.add(encode_seconds=median_seconds(lambda: jax.block_until_ready(job.encode())))
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6
    report.add(peak_memory_mb=memory)
    report.add(matmul_tflops=matmul_tflops(job.mesh, jnp.dtype(options.dtype)))
    if options.profile:
        with jax.profiler.trace(str(options.profile)):
            job.pictures()
        kernels = gpu_profile.kernels(options.profile)
        report.add(
            milliseconds_by_kernel_class=gpu_profile.by_class(kernels),
            kernels=gpu_profile.longest(kernels),
        )
    if options.fidelity:
        pictures = job.pictures()
        del job
        with jax.default_matmul_precision("highest"):  # else a GPU multiplies in TF32
            exact = Job(config, options, "float32").pictures()
        report.add(psnr_db_against_float32=psnr(pictures, exact))


class Job:
    """A sampler with random weights, which are the same in any dtype, and one request for it."""

    def __init__(self, config: Config, options: Namespace, dtype: str) -> None:
        images, pixels = options.images, options.pixels
        # One accelerator is compared with one; a CPU may be split into several devices, one a core.
        devices = jax.devices()
        mesh_devices = devices[:1] if platform_of(devices[0]).is_accelerator else devices
        self.mesh = make_mesh(mesh_devices, images)
        shapes = Shapes(images, pixels, pixels)
        target = Target(config, jnp.dtype(dtype), self.mesh, shapes, controls=options.control)
        place = NamedSharding(self.mesh, P())
        networks = random_networks(config, target.dtype, place)
        cache = None if options.cache is None else ExecutableCache(options.cache)
        executables = compile_missing(target, networks, cache, load_cached(target, cache))
        self.compile_seconds = {
            name: built.seconds for name, built in executables.items() if built.source == "miss"
        }
        room = Room([Model("", target, networks, [*networks], program_names(target))], cache)
        self.compiled = CompiledSampler(target, executables, Parameters(networks), room)
        controls = [self._control(place, options)] if options.control else []
        self._slots = Slots(self.compiled)
        schedule = make_schedule(config.scheduler, options.steps)
        evaluations = schedule.stops[-1]
        scales = draw_job.GUIDANCE_SCALE, 0.0
        self._work = [pack(schedule, *scales, evaluations, seed) for seed in range(images)]
        self._evaluations = range(evaluations)
        words = min(encoder.vocab_size for encoder in config.text_encoders.values())
        rows = [(1, 2, images, count) for count in config.tokens]
        rng = np.random.default_rng(0)
        start = Start(
            input_ids=tuple(rng.integers(0, words, row, np.int32) for row in rows),
            weights=tuple(np.ones(row, np.float32) for row in rows),
            chunks=np.ones((1, 2, images), np.int32),
            zeroed=np.zeros((1, 2, images), np.bool_),
            clip_skip=np.ones((1, 2, images), np.int32),
            texts=np.ones(images, np.int32),
            vectors=None,
            guidance_scale=draw_job.GUIDANCE_SCALE,
            init_noise_sigma=schedule.init_noise_sigma,
            seeds=np.arange(images, dtype=np.uint32),
            variations=(),
            noise=None,
            controls=controls,
        )
        self._entries = {slot: Entry(start, slot) for slot in range(images)}

    def _control(self, place: NamedSharding, options: Namespace) -> ControlStart:
        """Return a picture to follow through a ControlNet with random weights in all steps."""
        target, shapes = self.compiled.target, self.compiled.shapes
        config = controlnet_of(target.config.networks["unet"])
        only = replace(target.config, networks={CONTROL: config})
        network = random_networks(only, target.dtype, place)[CONTROL]
        self.compiled.add_control(config, network)
        leaves = jax.tree.leaves(nnx.state(network))
        picture = np.zeros((shapes.images, shapes.height, shapes.width, 3), np.float32)
        scales = np.ones((options.steps, 2, len(target.residuals_spec)), np.float32)
        control = ControlNetwork("", config, None, "", leaves)  # type: ignore[arg-type]
        return ControlStart(control, [picture], [0], [1.0], scales)

    def pictures(self) -> np.ndarray:
        """Run a whole request; return `[B, H, W, 3]` uint8 on the host."""
        self.encode()
        return np.asarray(self.decode(self.denoise())[1])

    def encode(self) -> Any:
        """Encode the prompts and draw the noise; return the context."""
        self._slots.taken.clear()
        self._slots.enter(self._entries)
        return self._slots.context

    def denoise(self, follow: bool = False) -> jax.Array:
        """Run all steps, with the ControlNet if `follow`; return the latents."""
        for i in self._evaluations:
            rows = {
                slot: Work(work.numbers[i], work.integers[i])
                for slot, work in enumerate(self._work)
            }
            entries = self._entries.items() if follow else ()
            self._slots.advance(rows, {slot: Guided(entry, i, (0, 0)) for slot, entry in entries})
        return self._slots.state.latents

    def decode(self, latents: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Decode all pictures; see `CompiledSampler.decode`."""
        return self.compiled.decode(latents, slot_mask(self.compiled.shapes.images, self._entries))


def random_networks(config: Config, dtype: Any, place: NamedSharding) -> dict[str, Any]:
    """Return networks with random weights, which are the same in any dtype."""
    networks = {}
    for i, (name, network) in enumerate(trace_networks(config, dtype).items()):
        graphdef, shapes = nnx.split(network)
        networks[name] = nnx.merge(graphdef, fill(shapes, jax.random.key(i), place))
    return networks


def matmul_tflops(mesh: Mesh, dtype: jnp.dtype) -> float:
    """Measure the devices' own rate: each multiplies two square matrices of random values."""
    is_accelerated = platform_of(mesh.devices.flat[0]).is_accelerator
    side = draw_job.MATMUL if is_accelerated else draw_job.MATMUL_ON_CPU
    shape, place = (mesh.size, side, side), NamedSharding(mesh, P(mesh.axis_names))
    left, right = (
        jax.device_put(jax.random.normal(jax.random.key(i), shape, dtype), place) for i in range(2)
    )
    product = jax.jit(partial(dot_general, dimension_numbers=(((2,), (1,)), ((0,), (0,)))))
    seconds = draw_job.seconds(lambda: product(left, right).block_until_ready(), repeats=10)
    return mesh.size * 2 * side**3 / seconds / 1e12


def psnr(pictures: np.ndarray, exact: np.ndarray) -> list[float]:
    """Return the peak signal-to-noise ratio of each picture in `[B, H, W, 3]` uint8, in dB."""
    squares = (pictures.astype(np.float64) - exact) ** 2
    with np.errstate(divide="ignore"):
        return (10 * np.log10(255**2 / squares.mean((1, 2, 3)))).round(2).tolist()


if __name__ == "__main__":
    main()
