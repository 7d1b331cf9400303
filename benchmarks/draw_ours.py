"""One process: this project's sampler, with random weights or a model's own.

    .venv/bin/python -m benchmarks.draw_ours CONFIGS

Prints its measurements as JSON, each line with all so far. The first step and the first picture
come as soon as the programs are compiled. Then come requests for all pictures and for one, in all
steps and in four. `--fidelity` also draws the pictures in float32, from the same latents and
weights, and compares them.
"""

import resource
import time
from argparse import Namespace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import benchmarks
from benchmarks import draw_job, gpu_profile
from benchmarks.random_weights import fill
from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.checkpoints.source import fetch
from pipeline.families import FamilyReader, read_config
from pipeline.families.family import Config, image_size
from pipeline.kernels.matmul_conv import dot_general
from pipeline.platforms import network_dtype, platform_of, worth_a_copy, worth_bfloat16
from pipeline.runtime.compiled import CompiledSampler, make_mesh, place_on
from pipeline.runtime.executables import ExecutableCache, compile_missing, load_cached
from pipeline.runtime.loading import load_networks, match_networks, trace_networks
from pipeline.runtime.mesh import cores_as_devices
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import Shapes, Target, program_names
from pipeline.runtime.room import Model, Room
from pipeline.runtime.slots import Entry, Slots, Start, slot_mask
from pipeline.runtime.work import Work, pack
from pipeline.schedulers.methods import make_schedule

PACKAGES = ("flax", "jax", "jaxlib")
FEW_STEPS = 4


def main() -> None:
    """Measure, and print the results."""
    options = draw_job.read_arguments("draw_ours")
    cores_as_devices(options.images)
    # The record's file is named for the device.
    report = draw_job.Report(
        provider="this project",
        device=jax.devices()[0].device_kind,
        versions=draw_job.versions(PACKAGES),
    )
    job = Job(options, options.dtype)
    devices, shapes = job.mesh.devices.flat, job.compiled.shapes
    report.add(
        devices=len(devices),
        dtype=job.compiled.target.dtype.name,
        job=f"{shapes.images} x {shapes.width}x{shapes.height}, {options.steps} steps",
        compile_seconds=job.compile_seconds,
    )
    begin = time.perf_counter()
    job.ask(options.images, 1)
    job.encode()
    latents = job.denoise().block_until_ready()
    report.add(first_step_seconds=round(time.perf_counter() - begin, 3))
    np.asarray(job.decode(latents)[1])
    report.add(start_seconds=round(time.perf_counter() - benchmarks.STARTED, 2))
    job.ask(options.images, options.steps)
    if options.repeats:
        measure(job, options, report)
    report.add(peak_memory_mb=round(peak_memory_mb(job.mesh)))
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
            exact_job = Job(options, "float32")
        report.add(psnr_db_against_float32=psnr(pictures, exact_job.pictures()))


def measure(job: "Job", options: Namespace, report: draw_job.Report) -> None:
    """Measure requests, a step and what comes before and after the steps."""
    timed = partial(draw_job.measure, repeats=options.repeats)
    counts = dict.fromkeys((options.images, 1)), dict.fromkeys((options.steps, FEW_STEPS))
    requests: dict[str, draw_job.Times] = {}
    for images, steps in product(*counts):
        if steps <= options.steps:
            job.ask(images, steps)
            requests[f"pictures: {images}, steps: {steps}"] = timed(job.pictures)
            report.add(requests={name: times._asdict() for name, times in requests.items()})
    report.add(**next(iter(requests.values())).figures("request"))
    job.ask(options.images, options.steps)
    latents = job.denoise()
    steps = timed(lambda: job.denoise().block_until_ready())
    report.add(**steps.figures("step", options.steps))
    report.add(**timed(lambda: np.asarray(job.decode(latents)[1])).figures("decode"))
    report.add(matmul_tflops=matmul_tflops(job.mesh, job.compiled.target.dtype))


class Job:
    """A sampler with random weights, which are the same in any dtype, or with a model's own."""

    def __init__(self, options: Namespace, dtype: str | None) -> None:
        images, devices = options.images, jax.devices()[: options.devices]
        config, checkpoint = read(options)
        chosen_dtype, parameters = choose_dtype(config, dtype, devices)
        self.mesh = make_mesh(worth_a_copy(devices, parameters), images)
        shapes = Shapes(images, *image_size(config, options.pixels, options.pixels))
        target = Target(config, chosen_dtype, self.mesh, shapes)
        place = NamedSharding(self.mesh, P())
        if checkpoint is None:
            networks = random_networks(config, chosen_dtype, place)
        else:
            pending = match_networks(checkpoint, trace_networks(config, chosen_dtype))
            networks = load_networks(pending, place_on(self.mesh))
        cache = None if options.cache is None else ExecutableCache(options.cache)
        executables = compile_missing(target, networks, cache, load_cached(target, cache))
        self.compile_seconds = {
            name: round(built.seconds, 2)
            for name, built in executables.items()
            if built.source == "miss"
        }
        room = Room([Model("", target, networks, [*networks], program_names(target))], cache)
        self.compiled = CompiledSampler(target, executables, Parameters(networks), room)
        self._slots = Slots(self.compiled)
        words = min(encoder.vocab_size for encoder in config.text_encoders.values())
        rows = [(1, 2, images, count) for count in config.tokens]
        rng = np.random.default_rng(0)
        self._start = Start(
            input_ids=tuple(rng.integers(0, words, row, np.int32) for row in rows),
            weights=tuple(np.ones(row, np.float32) for row in rows),
            chunks=np.ones((1, 2, images), np.int32),
            zeroed=np.zeros((1, 2, images), np.bool_),
            clip_skip=np.ones((1, 2, images), np.int32),
            texts=np.ones(images, np.int32),
            vectors=None,
            guidance_scale=draw_job.GUIDANCE_SCALE,
            init_noise_sigma=make_schedule(config.scheduler, options.steps).init_noise_sigma,
            seeds=np.arange(images, dtype=np.uint32),
            variations=(),
            noise=None,
            controls=[],
        )
        self.ask(images, options.steps)

    def ask(self, images: int, steps: int) -> None:
        """Ask for a number of pictures in a number of steps."""
        schedule = make_schedule(self.compiled.target.config.scheduler, steps)
        evaluations = schedule.stops[-1]
        scales = draw_job.GUIDANCE_SCALE, 0.0
        self._work = [pack(schedule, *scales, evaluations, seed) for seed in range(images)]
        self._evaluations = range(evaluations)
        self._entries = {slot: Entry(self._start, slot) for slot in range(images)}

    def pictures(self) -> np.ndarray:
        """Run a whole request; return `[B, H, W, 3]` uint8 on the host."""
        self.encode()
        return np.asarray(self.decode(self.denoise())[1])

    def encode(self) -> Any:
        """Encode the prompts and draw the noise; return the context."""
        self._slots.taken.clear()
        self._slots.enter(self._entries)
        return self._slots.context

    def denoise(self) -> jax.Array:
        """Run all steps; return the latents."""
        for i in self._evaluations:
            rows = {
                slot: Work(work.numbers[i], work.integers[i])
                for slot, work in enumerate(self._work)
            }
            self._slots.advance(rows, {})
        return self._slots.state.latents

    def decode(self, latents: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Decode the pictures; see `CompiledSampler.decode`."""
        return self.compiled.decode(latents, slot_mask(self.compiled.shapes.images, self._entries))


def read(options: Namespace) -> tuple[Config, Checkpoint | None]:
    """Return the configuration, and the checkpoint whose weights to load, if there are any."""
    if not options.weights:
        return read_config(Path(options.configs)), None
    reader = FamilyReader(safety_checker=False).for_model(options.configs)
    checkpoint = fetch(options.configs, None, reader, prefer_fp16=True)
    return checkpoint.config, checkpoint


def choose_dtype(config: Config, dtype: str | None, devices: Any) -> tuple[np.dtype[Any], int]:
    """Return the dtype that a server would choose, unless one is given, and the parameters."""
    chosen = network_dtype(dtype, devices)
    networks = trace_networks(config, chosen)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(networks))
    if dtype is None and worth_bfloat16(devices[0], parameters):
        chosen = network_dtype("bfloat16", devices)
    return chosen, parameters


def random_networks(config: Config, dtype: Any, place: NamedSharding) -> dict[str, Any]:
    """Return networks with random weights, which are the same in any dtype."""
    networks = {}
    for i, (name, network) in enumerate(trace_networks(config, dtype).items()):
        graphdef, shapes = nnx.split(network)
        networks[name] = nnx.merge(graphdef, fill(shapes, i, place))
    return networks


def peak_memory_mb(mesh: Mesh) -> float:
    """Return the most memory that was in use on a device, or in the process on a CPU."""
    statistics = (device.memory_stats() or {} for device in mesh.devices.flat)
    peak = max(memory.get("peak_bytes_in_use", 0) for memory in statistics)
    return (peak or 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6


def matmul_tflops(mesh: Mesh, dtype: jnp.dtype) -> float:
    """Measure the devices' own rate: each multiplies two square matrices of random values."""
    is_accelerated = platform_of(mesh.devices.flat[0]).is_accelerator
    side = draw_job.MATMUL if is_accelerated else draw_job.MATMUL_ON_CPU
    shape, place = (mesh.size, side, side), NamedSharding(mesh, P(mesh.axis_names))
    left, right = (
        jax.device_put(jax.random.normal(jax.random.key(i), shape, dtype), place) for i in range(2)
    )
    multiply = jax.jit(partial(dot_general, dimension_numbers=(((2,), (1,)), ((0,), (0,)))))
    times = draw_job.measure(lambda: multiply(left, right).block_until_ready(), repeats=10)
    return round(mesh.size * 2 * side**3 / times.median / 1e12, 4)


def psnr(pictures: np.ndarray, exact: np.ndarray) -> list[float]:
    """Return the peak signal-to-noise ratio of each picture in `[B, H, W, 3]` uint8, in dB."""
    squares = (pictures.astype(np.float64) - exact) ** 2
    with np.errstate(divide="ignore"):
        return (10 * np.log10(255**2 / squares.mean((1, 2, 3)))).round(2).tolist()


if __name__ == "__main__":
    main()
