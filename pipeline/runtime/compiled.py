"""The sampler on devices: mesh, sharding, ahead-of-time compilation, executable cache.

Everything is compiled once, for fixed shapes. What a request may change is an argument, so that
nothing compiles after startup.
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
    """How many ways to split the pictures, and the halves of guidance (1 or 2).

    The layout that uses most devices, pictures in equal shares; of several such layouts the one
    that splits the pictures most.
    """
    shares = [n for n in range(1, images + 1) if images % n == 0]
    layouts = [(n, halves) for n in shares for halves in (1, 2) if n * halves <= devices]
    return max(layouts, key=lambda layout: (layout[0] * layout[1], layout[0]))


def make_mesh(devices: Sequence[jax.Device], images: int) -> Mesh:
    """A mesh with the axes `guidance` and `images` over as many of the devices as fit."""
    split, halves = choose_layout(len(devices), images)
    used = split * halves
    if used < len(devices):
        log.warning("%d devices found; %d pictures use %d of them", len(devices), images, used)
    grid = np.array(devices[:used]).reshape(halves, split)
    return Mesh(grid, ("guidance", "images"))


def place_on(mesh: Mesh) -> Callable[[np.ndarray], Array]:
    """Puts a host array on every device of the mesh, whole."""
    return partial(jax.device_put, device=NamedSharding(mesh, P()))


class Kept(NamedTuple):
    """An executable out of the cache, and how many seconds it took to load."""

    executable: jax.stages.Compiled
    seconds: float


def load_kept(
    config: Config,
    dtype: np.dtype[Any],
    mesh: Mesh,
    shapes: Shapes,
    cache: ExecutableCache | None,
    without: Collection[str] = (),
) -> dict[str, Kept]:
    """By name, the programs of a `CompiledSampler` that need not be compiled.

    Nothing of the networks is needed for that but their configuration, and the dtype of their
    numbers: the rest of a checkpoint can be read meanwhile. Programs named in `without` are left
    out.
    """
    if cache is None:
        return {}

    def load(name: str) -> Kept | None:
        start = time.perf_counter()
        about = programs.about(name, config, dtype, mesh, shapes)
        executable = cache.load(name, about, list(mesh.devices.flat))
        seconds = time.perf_counter() - start
        return None if executable is None else Kept(executable, seconds)

    names = [name for name in programs.names(config, mesh) if name not in without]
    with ThreadPoolExecutor(len(names), thread_name_prefix="load") as threads:
        found = zip(names, threads.map(load, names), strict=True)
        return {name: kept for name, kept in found if kept is not None}


class CompiledSampler:
    """encode, denoise, decode and check for one set of shapes; a call only runs executables.

    It runs once it has the networks' parameters, by `fill`: one can compile while they are read.

    Args:
        networks: shapes and dtypes in place of their parameters will do.
        cache: where to keep what is compiled.
        kept: what `load_kept` gave for the same, of which nothing is compiled.
        shared: executables of a sampler of another size that serve this one too.

    Attributes:
        executables: by name; `seconds`: how long each took to compile, or to load, but for those
            that are shared.
        compile_seconds: what getting the executables took, added up: those that were in the cache
            ("hit"), and those that were compiled ("miss").
    """

    def __init__(
        self,
        config: Config,
        networks: Networks,
        mesh: Mesh,
        shapes: Shapes,
        cache: ExecutableCache | None,
        kept: Mapping[str, Kept],
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
        missing = [name for name in programs.names(config, mesh) if name not in self.executables]
        self._compile_all(missing)
        self.compile_seconds = {
            kind: sum(seconds for name, seconds in self.seconds.items() if (name in kept) == hit)
            for kind, hit in (("hit", True), ("miss", False))
        }

    def fill(self, networks: Networks) -> None:
        """Takes the same networks with their parameters."""
        self._networks, self._weights = networks, programs.weights(networks)

    def resized(self, height: int, width: int) -> "CompiledSampler":
        """The same networks and devices, compiled for pictures of other sides, in pixels.

        Programs that do not depend on the sides are shared.
        """
        shapes = replace(self.shapes, height=height, width=width)
        dtype = self._networks.unet.dtype
        shared = {name: run for name, run in self.executables.items() if name in programs.SIZELESS}
        kept = load_kept(self._config, dtype, self.mesh, shapes, self._cache, without=shared)
        other = CompiledSampler(
            self._config, self._networks, self.mesh, shapes, self._cache, kept, shared
        )
        other.fill(self._networks)
        return other

    def _compile_all(self, names: list[str]) -> None:
        """Side by side, in this order."""
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
            about = programs.about(name, self._config, dtype, self.mesh, self.shapes)
            self._cache.store(name, about, list(self.mesh.devices.flat), executable)
        return executable

    # --- running

    def warm_up(self, latents: np.ndarray) -> np.ndarray:
        """Run every program once: the first run of an executable is slow.

        Args:
            latents: `[B, h, w, C]` float32, to decode.

        Returns:
            Their pictures `[B, H, W, 3]` float32 in 0..1.
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
        """input_ids `[2, B, E, L]` int32, zero_negative `[B]` bool."""
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
        """Seeds `[B]` uint32, one per picture, from the host."""
        return jax.device_put(seeds, self._by_image)

    def initial_latents(self, seeds: Array, init_noise_sigma: float) -> Array:
        """From seeds `[B]` uint32, `[B, h, w, C]` float32 of the schedule's first variance."""
        return self.executables["noise"](
            seeds, jax.device_put(np.float32(init_noise_sigma), self._whole)
        )

    def vary(self, own: Array, other: Array, strength: float) -> Array:
        """Initial latents, turned towards others by a strength of 0..1."""
        return self.executables["vary"](
            own, other, jax.device_put(np.float32(strength), self._whole)
        )

    def put_latents(self, latents: np.ndarray) -> Array:
        """Latents `[B, h, w, C]` float32 from the host."""
        return jax.device_put(latents, self._by_image)

    def put_schedule(self, schedule: Schedule) -> Table[Array]:
        """The schedule's table, padded to the compiled maximum."""
        return Table(*(self._put_column(column) for column in schedule.table))

    def _put_column(self, column: np.ndarray) -> Array:
        padded = np.zeros((MAX_EVALUATIONS, *column.shape[1:]), np.float32)
        padded[: len(column)] = column
        return jax.device_put(padded, self._whole)

    def start(self, latents: Array) -> State:
        """What the first evaluation expects, with latents `[B, h, w, C]` float32."""
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
        """Evaluations `start` to `stop` of the UNet, the first `guided` of a run with guidance."""
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
        """Pictures `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
        return self.executables["decode"](self._weights["vae"], latents)

    def check(self, images: np.ndarray) -> np.ndarray:
        """Pictures `[B, S, S, 3]` uint8, made ready for the safety checker -> `[B]` bool."""
        placed = jax.device_put(images, self._by_image)
        return np.asarray(self.executables["check"](self._weights["safety_checker"], placed))
