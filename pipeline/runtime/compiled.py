"""The sampler on devices: mesh, sharding, and the runs of compiled programs.

Everything is compiled once, for fixed shapes. The values that a request may change are arguments,
so that nothing compiles after startup.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.runtime import programs
from pipeline.runtime.executable_cache import ExecutableCache
from pipeline.runtime.executables import Executables, compile_missing, load_cached
from pipeline.runtime.parameters import Parameters
from pipeline.runtime.programs import MAX_EVALUATIONS, Target
from pipeline.runtime.sampler import Context
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import Schedule, State, Table
from pipeline.text.embeddings import MAX_VECTORS

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


class CompiledSampler:
    """The sampler's functions as executables for one set of shapes, with networks to run.

    Nothing compiles except in `resized`.

    Args:
        target: what the executables were compiled for.
        executables: the executables of all the target's programs.
        parameters: the parameters of the networks.
        cache: stores the executables of other sizes; None stores nothing.

    Attributes:
        parameters: the parameters that every run takes.
        executables: the executables by program name.
        seconds: how long each took to load or compile, by program name, except shared ones.
        compile_seconds: seconds spent on the executables: "hit" for those from the cache, "miss"
            for those that were compiled.
    """

    def __init__(
        self,
        target: Target,
        executables: Executables,
        parameters: Parameters,
        cache: ExecutableCache | None = None,
    ):
        self.mesh = target.mesh
        self.shapes = target.shapes
        self.latents_shape = target.latents_shape
        self.executables = executables.by_name
        self.seconds = executables.seconds
        self.compile_seconds = {
            "hit": sum(executables.load_seconds.values()),
            "miss": sum(executables.compile_seconds.values()),
        }
        self._target = target
        self._config = target.config
        self._cache = cache
        self.parameters = parameters
        self._whole = NamedSharding(target.mesh, P())
        self._by_image = NamedSharding(target.mesh, P("images"))
        self._by_half = NamedSharding(target.mesh, P("guidance", "images"))

    def resized(self, height: int, width: int) -> "CompiledSampler":
        """Return a sampler of the same networks and devices for another size, in pixels.

        The two share the parameters, and the programs that do not depend on the size.
        """
        target = replace(self._target, shapes=replace(self.shapes, height=height, width=width))
        shared = {
            name: executable
            for name, executable in self.executables.items()
            if not programs.PROGRAMS[name].sized
        }
        cached = load_cached(target, self._cache, without=shared)
        networks = self.parameters.networks
        executables = compile_missing(target, networks, self._cache, cached, shared)
        return CompiledSampler(target, executables, self.parameters, self._cache)

    def _run(self, program: str, *arguments: Any) -> Any:
        names = programs.network_names(program, self._config.family)
        weights = {name: self.parameters.leaves[name] for name in names}
        return self.executables[program](weights, *arguments)

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
            guidance_rescale=0.0,
            start=0,
            stop=1,
        )
        if "denoise" in self.executables:
            state = advance(state, guided=1)
        if "unguided" in self.executables:
            state = advance(state, guided=0)
        jax.block_until_ready(state)
        if (checker := self._config.safety_checker) is not None:
            side = checker.vision.image_size
            self.check(np.zeros((images, side, side, 3), np.uint8))
        placed = self.put_latents(latents)
        if self.has_tiny_vae:
            jax.block_until_ready(self.tiny_decode(placed))
        pictures, _ = self.decode(placed)
        return np.asarray(pictures)

    def encode(
        self,
        input_ids: np.ndarray,
        zero_negative: np.ndarray,
        vectors: Sequence[np.ndarray] | None = None,
        guidance_scale: float = 1.0,
    ) -> Context:
        """Return the context of the prompts, the same in all steps.

        `input_ids` are `[2, B, E, L]` int32, `zero_negative` is `[B]` bool; see `Family.encode`.
        `vectors` are each text encoder's `[MAX_VECTORS, D]` float32, for ids below 0; see
        `CLIPTextEncoder`. `guidance_scale` matters to networks alone that take it as an input.
        """
        ids = jax.device_put(input_ids, self._by_half)
        zero = jax.device_put(zero_negative, self._by_image)
        rows = self._no_vectors if vectors is None else self._put_whole(vectors)
        guidance = jax.device_put(np.float32(guidance_scale), self._whole)
        return self._run("encode", ids, zero, self._size, guidance, rows)

    @cached_property
    def _no_vectors(self) -> tuple[Array, ...]:
        widths = [encoder.hidden_size for encoder in self._config.text_encoders.values()]
        return self._put_whole([np.zeros((MAX_VECTORS, width), np.float32) for width in widths])

    def _put_whole(self, arrays: Sequence[np.ndarray]) -> tuple[Array, ...]:
        return jax.device_put(tuple(arrays), self._whole)

    @cached_property
    def _size(self) -> Array:
        size = np.array([self.shapes.height, self.shapes.width], np.float32)
        return jax.device_put(size, self._whole)

    def put_seeds(self, seeds: np.ndarray) -> Array:
        """Copy seeds `[B]` uint32, one per picture, to the devices."""
        return jax.device_put(seeds, self._by_image)

    def initial_latents(self, seeds: Array, init_noise_sigma: float) -> Array:
        """Return noise `[B, h, w, C]` float32 of deviation `init_noise_sigma`.

        `seeds` are `[B]` uint32.
        """
        sigma = jax.device_put(np.float32(init_noise_sigma), self._whole)
        return self._run("noise", seeds, sigma)

    def vary(self, own: Array, other: Array, strength: float) -> Array:
        """Return initial latents `own`, turned towards `other` by `strength`, 0..1."""
        return self._run("vary", own, other, jax.device_put(np.float32(strength), self._whole))

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
        spec = self._target.history_spec
        return jax.device_put(np.zeros(spec.shape, np.float32), spec.sharding)

    def denoise(
        self,
        state: State,
        conditioning: Context,
        seeds: Array,
        table: Table[Array],
        guidance_scale: float,
        guidance_rescale: float,
        guided: int,
        start: int,
        stop: int,
    ) -> State:
        """Run evaluations `start` to `stop` of the network and return the state after them.

        The first `guided` evaluations of a run have guidance.
        """
        middle = min(max(start, guided), stop)
        unguided = "unguided" if "unguided" in self.executables else "denoise"
        for program, scale, first, last in (
            ("denoise", guidance_scale, start, middle),
            (unguided, 1.0, middle, stop),
        ):
            if first < last:
                guidance = np.float32(scale), np.float32(guidance_rescale)
                placed = jax.device_put((*guidance, np.int32(first), np.int32(last)), self._whole)
                state = self._run(program, state, conditioning, seeds, table, *placed)
        return state

    def decode(self, latents: Array) -> tuple[Array, Array]:
        """Return the pictures of latents, `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
        return self._run("decode", latents)

    @property
    def has_tiny_vae(self) -> bool:
        """Whether `tiny_decode` and `preview` can be called."""
        return "tiny_decode" in self.executables

    def tiny_decode(self, latents: Array) -> tuple[Array, Array]:
        """Do what `decode` does, with the tiny VAE."""
        images, pixels, _ = self._tiny_decode(self.start(latents), 1.0, 0.0)
        return images, pixels

    def preview(self, before: Array, after: State, pred_x0: np.ndarray) -> np.ndarray:
        """Return previews of unfinished pictures, `[B, h, w, 3]` uint8, by the tiny VAE.

        Args:
            before: the latents `[B, h, w, C]` before an evaluation.
            after: the state after it.
            pred_x0: the evaluation's row of `Schedule.pred_x0`.
        """
        *_, previews = self._tiny_decode(State(before, after.history), *pred_x0)
        return np.asarray(previews)

    def _tiny_decode(self, state: State, *coefficients: float) -> tuple[Array, Array, Array]:
        scalars = jax.device_put(tuple(map(np.float32, coefficients)), self._whole)
        return self._run("tiny_decode", state, *scalars)

    def check(self, images: np.ndarray) -> np.ndarray:
        """Return which pictures the safety checker flags, `[B]` bool.

        `images` are `[B, S, S, 3]` uint8, from `moderation.prepare`.
        """
        placed = jax.device_put(images, self._by_image)
        return np.asarray(self._run("check", placed))
