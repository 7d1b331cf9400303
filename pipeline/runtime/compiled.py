"""The sampler on devices: mesh, sharding, ahead-of-time compilation, executable cache.

Everything is compiled once, for fixed shapes. The values that a request may change are arguments,
so that nothing compiles after startup.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.models.config import Config
from pipeline.models.unet import Context
from pipeline.runtime import programs, sampler
from pipeline.runtime.executable_cache import ExecutableCache
from pipeline.runtime.programs import MAX_EVALUATIONS, Networks, Program, Programs, Shapes
from pipeline.schedulers.methods import Schedule, State, Table, make_schedule

log = logging.getLogger(__name__)


def choose_layout(devices: int, images: int) -> tuple[int, int]:
    """Return how many devices share the pictures, and how many the guidance halves (1 or 2).

    The layout gives each device an equal share of the pictures and uses as many devices as
    possible. Among such layouts it is the one that splits the pictures most.
    """
    shares = [n for n in range(1, images + 1) if images % n == 0]
    layouts = [(n, halves) for n in shares for halves in (1, 2) if n * halves <= devices]
    return max(layouts, key=lambda layout: (layout[0] * layout[1], layout[0]))


def make_mesh(devices: Sequence[jax.Device], images: int) -> Mesh:
    """Return a mesh with the axes `guidance` and `images` over as many of the devices as fit."""
    split, halves = choose_layout(len(devices), images)
    used = split * halves
    if used < len(devices):
        log.warning("%d devices found; %d pictures use %d of them", len(devices), images, used)
    grid = np.array(devices[:used]).reshape(halves, split)
    return Mesh(grid, ("guidance", "images"))


def place_on(mesh: Mesh) -> Callable[[np.ndarray], Array]:
    """Return a function that copies a whole host array to every device of the mesh."""
    return partial(jax.device_put, device=NamedSharding(mesh, P()))


class CachedExecutable(NamedTuple):
    """An executable from the cache, and the seconds that it took to load."""

    executable: jax.stages.Compiled
    seconds: float


def load_cached(
    config: Config,
    dtype: np.dtype[Any],
    mesh: Mesh,
    shapes: Shapes,
    cache: ExecutableCache | None,
    without: Collection[str] = (),
) -> dict[str, CachedExecutable]:
    """Load the executables of a `CompiledSampler` that are in the cache, by program name.

    Only the networks' configuration and dtype are needed, so the rest of a checkpoint can be read
    meanwhile. Programs named in `without` are left out.
    """
    if cache is None:
        return {}

    def load(name: str) -> CachedExecutable | None:
        start = time.perf_counter()
        cache_key = programs.cache_key(name, config, dtype, mesh, shapes)
        executable = cache.load(name, cache_key, list(mesh.devices.flat))
        seconds = time.perf_counter() - start
        return None if executable is None else CachedExecutable(executable, seconds)

    names = [name for name in programs.program_names(config, mesh) if name not in without]
    with ThreadPoolExecutor(len(names), thread_name_prefix="load") as threads:
        found = zip(names, threads.map(load, names), strict=True)
        return {name: kept for name, kept in found if kept is not None}


class CompiledSampler:
    """The sampler's functions as executables for one set of shapes.

    The constructor compiles; the methods only run executables. They need the networks' parameters,
    which `set_params` sets, so that compilation can run while the parameters are read.

    Args:
        networks: the networks; shapes and dtypes suffice in place of their parameters.
        cache: stores the compiled executables; None stores nothing.
        kept: the result of `load_cached` for the same arguments; these programs are not compiled.
        shared: executables of a sampler of another size that serve this one too.

    Attributes:
        executables: the executables by program name.
        seconds: how long each took to compile or to load, by program name, except shared ones.
        compile_seconds: the sum of `seconds` over the programs that were in the cache ("hit"), and
            over those that were compiled ("miss").
    """

    def __init__(
        self,
        config: Config,
        networks: Networks,
        mesh: Mesh,
        shapes: Shapes,
        cache: ExecutableCache | None,
        kept: Mapping[str, CachedExecutable],
        shared: Mapping[str, jax.stages.Compiled] = MappingProxyType({}),
    ):
        self.mesh = mesh
        self.shapes = shapes
        self.latents_shape = programs.latents_shape(config, shapes)
        self._config = config
        self._cache = cache
        self._whole = NamedSharding(mesh, P())
        self._by_image = NamedSharding(mesh, P("images"))
        self._by_half = NamedSharding(mesh, P("guidance", "images"))
        self._networks = networks
        self.executables = {**shared, **{name: found.executable for name, found in kept.items()}}
        self.seconds = {name: found.seconds for name, found in kept.items()}
        for name, seconds in self.seconds.items():
            log.info("loaded %s in %.1f s", name, seconds)
        missing = [
            name for name in programs.program_names(config, mesh) if name not in self.executables
        ]
        self._compile_all(missing)
        self.compile_seconds = {
            kind: sum(seconds for name, seconds in self.seconds.items() if (name in kept) == hit)
            for kind, hit in (("hit", True), ("miss", False))
        }

    def set_params(self, networks: Networks) -> None:
        """Set the networks again, now with their parameters."""
        self._networks, self._weights = networks, programs.weights(networks)

    def resized(self, height: int, width: int) -> "CompiledSampler":
        """Return a sampler of the same networks and devices for another size, in pixels.

        The two share the programs that do not depend on the size.
        """
        shapes = replace(self.shapes, height=height, width=width)
        dtype = self._networks.unet.dtype
        shared = {name: run for name, run in self.executables.items() if name in programs.SIZELESS}
        kept = load_cached(self._config, dtype, self.mesh, shapes, self._cache, without=shared)
        other = CompiledSampler(
            self._config, self._networks, self.mesh, shapes, self._cache, kept, shared
        )
        other.set_params(self._networks)
        return other

    def _compile_all(self, names: list[str]) -> None:
        """Compile programs in parallel, started in this order, and keep the executables."""
        if not names:
            return
        made = Programs(self._config, self._networks, self.mesh, self.shapes)
        with ThreadPoolExecutor(len(names), thread_name_prefix="compile") as threads:
            done = threads.map(lambda name: self._compile(name, made[name]), names)
            self.executables |= zip(names, done, strict=True)

    def _compile(self, name: str, program: Program) -> jax.stages.Compiled:
        start = time.perf_counter()
        executable = program.compile()
        self.seconds[name] = time.perf_counter() - start
        log.info("compiled %s in %.1f s", name, self.seconds[name])
        if self._cache is not None:
            dtype = self._networks.unet.dtype
            cache_key = programs.cache_key(name, self._config, dtype, self.mesh, self.shapes)
            self._cache.store(name, cache_key, list(self.mesh.devices.flat), executable)
        return executable

    # --- running

    def warm_up(self, latents: np.ndarray) -> np.ndarray:
        """Run every program once, because the first run of an executable is slow.

        Args:
            latents: latents to decode, `[B, h, w, C]` float32.

        Returns:
            The decoded pictures `[B, H, W, 3]` float32 in 0..1.
        """
        images, tokens = self.shapes.images, self.shapes.tokens
        ids = np.zeros((2, images, len(self._config.text_encoders), tokens), np.int32)
        seeds = self.put_seeds(np.zeros(images, np.uint32))
        noise = self.initial_latents(seeds, 1.0)
        state = self.start(self.vary(noise, noise, 0.5))
        advance = partial(
            self.denoise,
            conditioning=self.encode(ids, np.zeros(images, bool)),
            seeds=seeds,
            table=self.put_schedule(make_schedule(self._config.scheduler, 1)),
            guidance_scale=2.0,
            start=0,
            stop=1,
        )
        state = advance(state, guided=1)
        if "unguided" in self.executables:
            state = advance(state, guided=0)
        jax.block_until_ready(state)
        if (checker := self._config.safety_checker) is not None:
            side = checker.vision.image_size
            self.check(np.zeros((images, side, side, 3), np.uint8))
        pictures, _ = self.decode(self.put_latents(latents))
        return np.asarray(pictures)

    def encode(self, input_ids: np.ndarray, zero_negative: np.ndarray) -> Context:
        """Return the UNet's context of the prompts.

        `input_ids` are `[2, B, E, L]` int32, `zero_negative` is `[B]` bool; see `sampler.encode`.
        """
        ids = jax.device_put(input_ids, self._by_half)
        zero = jax.device_put(zero_negative, self._by_image)
        texts, unet = self._weights["text_encoders"], self._weights["unet"]
        return self.executables["encode"](texts, unet, ids, zero, self._add_time_ids)

    @cached_property
    def _add_time_ids(self) -> Array | None:
        if self._config.text_encoder_2 is None:
            return None
        ids = sampler.time_ids(self.shapes.height, self.shapes.width)
        return jax.device_put(ids, self._whole)

    def put_seeds(self, seeds: np.ndarray) -> Array:
        """Copy seeds `[B]` uint32, one per picture, to the devices."""
        return jax.device_put(seeds, self._by_image)

    def initial_latents(self, seeds: Array, init_noise_sigma: float) -> Array:
        """Return noise `[B, h, w, C]` float32 of deviation `init_noise_sigma`.

        `seeds` are `[B]` uint32.
        """
        return self.executables["noise"](
            seeds, jax.device_put(np.float32(init_noise_sigma), self._whole)
        )

    def vary(self, own: Array, other: Array, strength: float) -> Array:
        """Return initial latents, turned towards others by a strength of 0..1."""
        return self.executables["vary"](
            own, other, jax.device_put(np.float32(strength), self._whole)
        )

    def put_latents(self, latents: np.ndarray) -> Array:
        """Copy latents `[B, h, w, C]` float32 to the devices."""
        return jax.device_put(latents, self._by_image)

    def put_schedule(self, schedule: Schedule) -> Table[Array]:
        """Copy the schedule's table to the devices, padded to the compiled maximum."""
        return Table(*(self._put_column(column) for column in schedule.table))

    def _put_column(self, column: np.ndarray) -> Array:
        padded = np.zeros((MAX_EVALUATIONS, *column.shape[1:]), np.float32)
        padded[: len(column)] = column
        return jax.device_put(padded, self._whole)

    def start(self, latents: Array) -> State:
        """Return the state before the first evaluation, with latents `[B, h, w, C]` float32."""
        return State(latents, self._no_history)

    @cached_property
    def _no_history(self) -> Array:
        spec = programs.history_spec(self._config, self.mesh, self.shapes)
        return jax.device_put(np.zeros(spec.shape, np.float32), spec.sharding)

    def denoise(
        self,
        state: State,
        conditioning: Context,
        seeds: Array,
        table: Table[Array],
        guidance_scale: float,
        guided: int,
        start: int,
        stop: int,
    ) -> State:
        """Run evaluations `start` to `stop` of the UNet and return the state after them.

        The first `guided` evaluations of a run have guidance.
        """
        middle = min(max(start, guided), stop)
        denoise = self.executables["denoise"]
        for run, scale, first, last in (
            (denoise, guidance_scale, start, middle),
            (self.executables.get("unguided", denoise), 1.0, middle, stop),
        ):
            if first < last:
                scalars = np.float32(scale), np.int32(first), np.int32(last)
                placed = jax.device_put(scalars, self._whole)
                state = run(self._weights["unet"], state, conditioning, seeds, table, *placed)
        return state

    def decode(self, latents: Array) -> tuple[Array, Array]:
        """Return the pictures of latents, `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
        return self.executables["decode"](self._weights["vae"], latents)

    def check(self, images: np.ndarray) -> np.ndarray:
        """Return which pictures the safety checker flags, `[B]` bool.

        `images` are `[B, S, S, 3]` uint8, from `moderation.prepare`.
        """
        placed = jax.device_put(images, self._by_image)
        return np.asarray(self.executables["check"](self._weights["safety_checker"], placed))
