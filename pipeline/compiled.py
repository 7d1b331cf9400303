"""The sampler on devices: mesh, sharding, ahead-of-time compilation, executable cache.

Three executables, compiled once for fixed shapes. Everything a request may change is an argument
to them, so nothing compiles after startup.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline import sampler
from pipeline.clip import CLIPTextEncoder
from pipeline.config import Config
from pipeline.executables import ExecutableCache
from pipeline.sampler import Conditioning
from pipeline.scheduler import Schedule
from pipeline.unet import UNet
from pipeline.vae import VAE

MAX_INFERENCE_STEPS = 50

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Networks:
    """A checkpoint's four networks, their parameters on the mesh."""

    text_encoder: CLIPTextEncoder
    text_encoder_2: CLIPTextEncoder
    unet: UNet
    vae: VAE


@dataclass(frozen=True)
class Shapes:
    """What is fixed when the sampler is compiled: pictures per request, pixels, tokens."""

    images: int
    height: int
    width: int
    tokens: int


def choose_layout(devices: int, images: int) -> tuple[int, int]:
    """How many ways to split the pictures, and the halves of guidance (1 or 2).

    The largest layout that fits: pictures first, in equal shares; with twice as many devices as
    pictures the two halves of guidance go to different devices.
    """
    if devices >= 2 * images:
        return images, 2
    return max(n for n in range(1, min(devices, images) + 1) if images % n == 0), 1


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


class CompiledSampler:
    """encode, denoise and decode for one set of shapes; each call only runs an executable."""

    def __init__(
        self,
        config: Config,
        networks: Networks,
        mesh: Mesh,
        shapes: Shapes,
        cache: ExecutableCache | None,
    ):
        self.mesh = mesh
        self.shapes = shapes
        factor = config.vae.scale_factor
        self.latents_shape = (
            shapes.height // factor,
            shapes.width // factor,
            config.unet.in_channels,
        )
        self._config = config
        self._cache = cache
        self._whole = NamedSharding(mesh, P())
        self._by_image = NamedSharding(mesh, P("images"))
        self._by_half = NamedSharding(mesh, P("guidance", "images"))
        parts = {name: nnx.split(network) for name, network in vars(networks).items()}
        self._weights = {name: jax.tree.leaves(state) for name, (_, state) in parts.items()}
        self._rebuild = {name: _rebuilder(*part) for name, part in parts.items()}
        self._encode = self._compile_encode()
        self._denoise = self._compile_denoise()
        self._decode = self._compile_decode()

    # --- running

    def encode(self, input_ids: np.ndarray, zero_negative: np.ndarray) -> Conditioning:
        """input_ids `[2, B, 2, L]` int32, zero_negative `[B]` bool."""
        weights = self._weights["text_encoder"], self._weights["text_encoder_2"]
        ids = jax.device_put(input_ids, self._by_half)
        zero = jax.device_put(zero_negative, self._by_image)
        return Conditioning(*self._encode(*weights, ids, zero))

    def initial_latents(self, seeds: np.ndarray, init_noise_sigma: float) -> Array:
        """From seeds `[B]` uint32, `[B, h, w, C]` float32 of the schedule's first variance."""
        sigma = jax.device_put(np.float32(init_noise_sigma), self._whole)
        return self._noise(jax.device_put(seeds, self._by_image), sigma)

    def put_latents(self, latents: np.ndarray) -> Array:
        """Latents `[B, h, w, C]` float32 from the host."""
        return jax.device_put(latents, self._by_image)

    def put_schedule(self, schedule: Schedule) -> tuple[Array, Array]:
        """The schedule's timesteps and sigmas, padded to the compiled maximum."""
        timesteps = np.zeros(MAX_INFERENCE_STEPS, np.float32)
        sigmas = np.zeros(MAX_INFERENCE_STEPS + 1, np.float32)
        timesteps[: len(schedule.timesteps)] = schedule.timesteps
        sigmas[: len(schedule.sigmas)] = schedule.sigmas
        return jax.device_put(timesteps, self._whole), jax.device_put(sigmas, self._whole)

    def denoise(
        self,
        latents: Array,
        conditioning: Conditioning,
        schedule: tuple[Array, Array],
        guidance_scale: float,
        start: int,
        stop: int,
    ) -> Array:
        """Steps `start` to `stop`; latents `[B, h, w, C]` float32 in and out."""
        scalars = np.float32(guidance_scale), np.int32(start), np.int32(stop)
        placed = (jax.device_put(value, self._whole) for value in scalars)
        return self._denoise(
            self._weights["unet"], latents, tuple(conditioning), *schedule, *placed
        )

    def decode(self, latents: Array) -> tuple[Array, Array]:
        """Pictures `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
        return self._decode(self._weights["vae"], latents)

    # --- compiling

    def _compile_encode(self) -> Callable[..., Any]:
        shapes, rebuild = self.shapes, self._rebuild
        seeds = jax.ShapeDtypeStruct((shapes.images,), jnp.uint32, sharding=self._by_image)
        sigma = jax.ShapeDtypeStruct((), jnp.float32, sharding=self._whole)
        ids_shape = (2, shapes.images, 2, shapes.tokens)
        ids = jax.ShapeDtypeStruct(ids_shape, jnp.int32, sharding=self._by_half)
        zero = jax.ShapeDtypeStruct((shapes.images,), jnp.bool_, sharding=self._by_image)

        def draw(seeds: Array, sigma: Array) -> Array:
            return sampler.noise(seeds, self.latents_shape) * sigma

        def encode(first: list[Array], second: list[Array], ids: Array, zero: Array):
            encoders = rebuild["text_encoder"](first), rebuild["text_encoder_2"](second)
            size = (shapes.height, shapes.width)
            return tuple(sampler.encode(*encoders, ids, zero, size, self._shard))

        self._noise = self._compile("noise", draw, (seeds, sigma), self._by_image)
        weights = self._weights["text_encoder"], self._weights["text_encoder_2"]
        outputs = (self._by_half, self._by_half, self._whole)
        return self._compile("encode", encode, (*weights, ids, zero), outputs)

    def _compile_denoise(self) -> Callable[..., Any]:
        def denoise(weights: list[Array], latents: Array, conditioning: Any, *rest: Array):
            unet = self._rebuild["unet"](weights)
            given = Conditioning(*conditioning)
            scheduler_config = self._config.scheduler
            return sampler.denoise(unet, scheduler_config, latents, given, *rest, shard=self._shard)

        unet, encoders = self._config.unet, self._config.text_encoder_2
        pair = (2, self.shapes.images)
        dtype = self._weights["unet"][0].dtype
        spec = partial(jax.ShapeDtypeStruct, sharding=self._by_half)
        whole = partial(jax.ShapeDtypeStruct, sharding=self._whole)
        conditioning = (
            spec((*pair, self.shapes.tokens, unet.cross_attention_dim), dtype),
            spec((*pair, encoders.projection_dim), dtype),
            whole((6,), jnp.float32),
        )
        schedule = (
            whole((MAX_INFERENCE_STEPS,), jnp.float32),
            whole((MAX_INFERENCE_STEPS + 1,), jnp.float32),
        )
        scalars = (whole((), jnp.float32), whole((), jnp.int32), whole((), jnp.int32))
        args = (self._weights["unet"], self._latents_spec(), conditioning, *schedule, *scalars)
        return self._compile("denoise", denoise, args, self._by_image)

    def _compile_decode(self) -> Callable[..., Any]:
        def decode(weights: list[Array], latents: Array):
            return sampler.decode(self._rebuild["vae"](weights), latents)

        args = (self._weights["vae"], self._latents_spec())
        return self._compile("decode", decode, args, (self._by_image, self._by_image))

    def _shard(self, joined: Array) -> Array:
        """Spreads a batch of both halves, `[2B, ...]`, over the devices."""
        sharding = NamedSharding(self.mesh, P(("images", "guidance")))
        return jax.lax.with_sharding_constraint(joined, sharding)

    def _latents_spec(self) -> jax.ShapeDtypeStruct:
        shape = (self.shapes.images, *self.latents_shape)
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=self._by_image)

    def _compile(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], outputs: Any
    ) -> Callable[..., Any]:
        """The executable for `function` at the shapes of `args`, from the cache if it is there."""

        def build() -> jax.stages.Compiled:
            return jax.jit(function, out_shardings=outputs).lower(*args).compile()

        start = time.perf_counter()
        if self._cache is None:
            found, executable = False, build()
        else:
            about = (name, self._config, self.shapes)
            devices = list(self.mesh.devices.flat)
            found, executable = self._cache.get(name, about, args, devices, build)
        verb = "loaded" if found else "compiled"
        log.info("%s %s in %.1f s", verb, name, time.perf_counter() - start)
        return executable


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Turns a list of parameters back into the module.

    Only lists of leaves cross into the executables: NNX's own tree definitions cannot be stored
    in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
