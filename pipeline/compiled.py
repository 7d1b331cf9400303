"""The sampler on devices: mesh, sharding, ahead-of-time compilation, executable cache.

Everything is compiled once, for fixed shapes. What a request may change is an argument, so that
nothing compiles after startup.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from pipeline.clip_config import SafetyCheckerConfig
from pipeline.config import Config
from pipeline.executables import ExecutableCache
from pipeline.products import CompilerOptions, compiler_options
from pipeline.safety_checker import SafetyChecker
from pipeline.sampler import Conditioning
from pipeline.scheduler import REMEMBERED, Schedule, State, Table
from pipeline.scheduler_config import MAX_INFERENCE_STEPS
from pipeline.unet import Context, UNet
from pipeline.vae import VAE

MAX_EVALUATIONS = MAX_INFERENCE_STEPS + 1  # of the UNet; PNDM's first step takes two

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Networks:
    """A checkpoint's networks, their parameters on the mesh; one text encoder, or SDXL's two."""

    text_encoders: tuple[CLIPTextEncoder, ...]
    unet: UNet
    vae: VAE
    safety_checker: SafetyChecker | None

    @classmethod
    def named(cls, networks: Mapping[str, Any]) -> "Networks":
        """Those that are there, by the names of their folders in a checkpoint."""
        encoders = (networks.get(name) for name in ("text_encoder", "text_encoder_2"))
        return cls(
            text_encoders=tuple(encoder for encoder in encoders if encoder is not None),
            unet=networks["unet"],
            vae=networks["vae"],
            safety_checker=networks.get("safety_checker"),
        )


@dataclass(frozen=True)
class Shapes:
    """What is fixed when the sampler is compiled: pictures per request, pixels, tokens."""

    images: int
    height: int
    width: int
    tokens: int


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


class CompiledSampler:
    """encode, denoise, decode and check for one set of shapes; a call only runs executables.

    The networks may have shapes in place of their parameters until `fill`, so that one can compile
    while the parameters are read.

    Attributes:
        executables: by name; `seconds`: how long each took to compile, or to load.
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
        # The scheduler is no part of any executable: with another one they are still the same.
        self._networks_config = (config.text_encoders, config.unet, config.vae)
        self._cache = cache
        self.executables: dict[str, jax.stages.Compiled] = {}
        self.seconds: dict[str, float] = {}
        self._from_cache: set[str] = set()
        self._whole = NamedSharding(mesh, P())
        self._by_image = NamedSharding(mesh, P("images"))
        self._by_half = NamedSharding(mesh, P("guidance", "images"))
        parts = _split(networks)
        self._rebuild = {name: _rebuilder(*part) for name, part in parts.items()}
        self._networks, self._weights = networks, _parameters(parts)
        self._weights_spec = {
            name: [_spec(leaf.shape, leaf.dtype, self._whole) for leaf in leaves]
            for name, leaves in self._weights.items()
        }
        made = self._compile_all()
        self._noise, self._vary, self._encode = made["noise"], made["vary"], made["encode"]
        self._denoise, self._decode = made["denoise"], made["decode"]
        self._unguided = made.get("unguided", self._denoise)
        if "check" in made:
            self._check = made["check"]
        self.compile_seconds = {
            kind: sum(self.seconds[name] for name in made if (name in self._from_cache) == hit)
            for kind, hit in (("hit", True), ("miss", False))
        }

    def fill(self, networks: Networks) -> None:
        """Takes the same networks with their parameters."""
        self._networks, self._weights = networks, _parameters(_split(networks))

    def resized(self, height: int, width: int) -> "CompiledSampler":
        """The same networks and devices, compiled for pictures of other sides, in pixels."""
        shapes = replace(self.shapes, height=height, width=width)
        return CompiledSampler(self._config, self._networks, self.mesh, shapes, self._cache)

    # --- running

    def encode(self, input_ids: np.ndarray, zero_negative: np.ndarray) -> Context:
        """input_ids `[2, B, E, L]` int32, zero_negative `[B]` bool."""
        ids = jax.device_put(input_ids, self._by_half)
        zero = jax.device_put(zero_negative, self._by_image)
        return self._encode(self._weights["text_encoders"], self._weights["unet"], ids, zero)

    def put_seeds(self, seeds: np.ndarray) -> Array:
        """Seeds `[B]` uint32, one per picture, from the host."""
        return jax.device_put(seeds, self._by_image)

    def initial_latents(self, seeds: Array, init_noise_sigma: float) -> Array:
        """From seeds `[B]` uint32, `[B, h, w, C]` float32 of the schedule's first variance."""
        return self._noise(seeds, jax.device_put(np.float32(init_noise_sigma), self._whole))

    def vary(self, own: Array, other: Array, strength: float) -> Array:
        """Initial latents, turned towards others by a strength of 0..1."""
        return self._vary(own, other, jax.device_put(np.float32(strength), self._whole))

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
        spec = self._history_spec()
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
        for run, scale, first, last in (
            (self._denoise, guidance_scale, start, middle),
            (self._unguided, 1.0, middle, stop),
        ):
            if first < last:
                scalars = np.float32(scale), np.int32(first), np.int32(last)
                placed = jax.device_put(scalars, self._whole)
                state = run(self._weights["unet"], state, conditioning, seeds, table, *placed)
        return state

    def decode(self, latents: Array) -> tuple[Array, Array]:
        """Pictures `[B, H, W, 3]`, as float32 in 0..1 and as uint8."""
        return self._decode(self._weights["vae"], latents)

    def check(self, images: np.ndarray) -> np.ndarray:
        """Pictures `[B, S, S, 3]` uint8, made ready for the safety checker -> `[B]` bool."""
        placed = jax.device_put(images, self._by_image)
        return np.asarray(self._check(self._weights["safety_checker"], placed))

    # --- compiling

    def _compile_all(self) -> dict[str, Callable[..., Any]]:
        """The executables by name, compiled side by side, those that take longest first."""
        jobs = {"denoise": self._compile_denoise}
        # Halves on different devices take as long together as one alone: no second executable.
        if self.mesh.shape["guidance"] == 1:
            jobs["unguided"] = self._compile_unguided
        jobs |= {
            "decode": self._compile_decode,
            "encode": self._compile_encode,
            "noise": self._compile_noise,
            "vary": self._compile_vary,
        }
        if (checker := self._config.safety_checker) is not None:
            jobs["check"] = partial(self._compile_check, checker)
        with ThreadPoolExecutor(len(jobs), thread_name_prefix="compile") as threads:
            made = threads.map(lambda compile_: compile_(), jobs.values())
            return dict(zip(jobs, made, strict=True))

    def _compile_noise(self) -> Callable[..., Any]:
        def draw(seeds: Array, sigma: Array) -> Array:
            return sampler.noise(seeds, self.latents_shape) * sigma

        args = (self._seeds_spec(), _spec((), jnp.float32, self._whole))
        return self._compile("noise", draw, args, self._by_image)

    def _compile_vary(self) -> Callable[..., Any]:
        args = (self._latents_spec(), self._latents_spec(), _spec((), jnp.float32, self._whole))
        return self._compile("vary", sampler.vary, args, self._by_image)

    def _compile_encode(self) -> Callable[..., Any]:
        shapes, rebuild = self.shapes, self._rebuild
        ids_shape = (2, shapes.images, len(self._config.text_encoders), shapes.tokens)
        ids = _spec(ids_shape, jnp.int32, self._by_half)
        zero = _spec((shapes.images,), jnp.bool_, self._by_image)

        def encode(texts: list[Array], unet: list[Array], ids: Array, zero: Array) -> Context:
            size = (shapes.height, shapes.width)
            encoders = rebuild["text_encoders"](texts)
            conditioning = sampler.encode(encoders, ids, zero, size, self._shard)
            return sampler.prepare(rebuild["unet"](unet), conditioning, self._shard)

        args = (self._weights_spec["text_encoders"], self._weights_spec["unet"], ids, zero)
        outputs = _shardings(self._context_spec)
        return self._compile("encode", encode, args, outputs, options=self._options())

    def _compile_denoise(self) -> Callable[..., Any]:
        gather = partial(jax.lax.all_gather, axis_name="guidance", tiled=True)
        steps = self._steps()

        def denoise(weights: list[Array], *rest: Any) -> State:
            return steps(self._rebuild["unet"](weights), *rest, gather=gather)

        return self._compile_steps("denoise", denoise)

    def _compile_unguided(self) -> Callable[..., Any]:
        steps = self._steps()

        def denoise(weights: list[Array], state: State, context: Context, *rest: Any) -> State:
            prompts = jax.tree.map(lambda halves: halves[1:], context)
            return steps(self._rebuild["unet"](weights), state, prompts, *rest)

        return self._compile_steps("unguided", denoise)

    def _steps(self) -> Callable[..., State]:
        """`sampler.denoise`; on a TPU, whose VMEM has room for one half of one picture, in turn."""
        on_tpu = self.mesh.devices.flat[0].platform == "tpu"
        return partial(sampler.denoise, one_by_one=on_tpu)

    def _compile_steps(self, name: str, denoise: Callable[..., State]) -> Callable[..., Any]:
        state = State(self._latents_spec(), self._history_spec())
        column = _spec((MAX_EVALUATIONS,), jnp.float32, self._whole)
        values = _spec((MAX_EVALUATIONS, 1 + REMEMBERED), jnp.float32, self._whole)
        table = Table(*[column] * len(Table._fields))._replace(values=values)
        scalars = (_spec((), dtype, self._whole) for dtype in (jnp.float32, jnp.int32, jnp.int32))
        weights, context, seeds = self._weights_spec["unet"], self._context_spec, self._seeds_spec()
        args = (weights, state, context, seeds, table, *scalars)
        outputs, options = _shardings(state), self._options()
        return self._compile(name, denoise, args, outputs, apart=True, options=options)

    def _compile_decode(self) -> Callable[..., Any]:
        def decode(weights: list[Array], latents: Array):
            return sampler.decode(self._rebuild["vae"](weights), latents)

        args = (self._weights_spec["vae"], self._latents_spec())
        pictures = (self._by_image, self._by_image)
        return self._compile("decode", decode, args, pictures, apart=True)

    def _compile_check(self, config: SafetyCheckerConfig) -> Callable[..., Any]:
        def check(weights: list[Array], images: Array) -> Array:
            return self._rebuild["safety_checker"](weights)(images)

        side = config.vision.image_size
        images = _spec((self.shapes.images, side, side, 3), jnp.uint8, self._by_image)
        args = (self._weights_spec["safety_checker"], images)
        return self._compile("check", check, args, self._by_image, config)

    def _shard(self, joined: Array) -> Array:
        """Spreads a batch of both halves, `[2B, ...]`, over the devices."""
        sharding = NamedSharding(self.mesh, P(("images", "guidance")))
        return jax.lax.with_sharding_constraint(joined, sharding)

    def _seeds_spec(self) -> Any:
        return _spec((self.shapes.images,), jnp.uint32, self._by_image)

    def _latents_spec(self) -> Any:
        return _spec((self.shapes.images, *self.latents_shape), jnp.float32, self._by_image)

    def _history_spec(self) -> Any:
        shape = (REMEMBERED, self.shapes.images, *self.latents_shape)
        return _spec(shape, jnp.float32, NamedSharding(self.mesh, P(None, "images")))

    def _conditioning_spec(self) -> Conditioning:
        pair = (2, self.shapes.images)
        dtype = self._weights_spec["unet"][0].dtype
        embeds_shape = (*pair, self.shapes.tokens, self._config.unet.cross_attention_dim)
        embeds = _spec(embeds_shape, dtype, self._by_half)
        second = self._config.text_encoder_2
        if second is None:
            return Conditioning(embeds, None, None)
        pooled = _spec((*pair, second.projection_dim), dtype, self._by_half)
        return Conditioning(embeds, pooled, _spec((6,), jnp.float32, self._whole))

    @cached_property
    def _context_spec(self) -> Context:
        def prepare(weights: list[Array], conditioning: Conditioning) -> Context:
            return sampler.prepare(self._rebuild["unet"](weights), conditioning)

        weights = self._weights_spec["unet"]
        shapes = jax.eval_shape(prepare, weights, self._conditioning_spec())
        return jax.tree.map(lambda leaf: _spec(leaf.shape, leaf.dtype, self._by_half), shapes)

    def _options(self) -> CompilerOptions:
        """Of the text encoders' and the UNet's programs."""
        device, weight = self.mesh.devices.flat[0], self._weights_spec["unet"][0]
        return compiler_options(device, weight.dtype)

    def _compile(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        outputs: Any,
        config: object = None,
        *,
        apart: bool = False,
        options: CompilerOptions | None = None,
    ) -> Callable[..., Any]:
        """The executable for `function` at the shapes of `args`, from the cache if it is there.

        `config` is what it was made from, if that is not the sampler's networks. With `apart` every
        device runs `function` on its own share of the arguments. What is left to XLA to divide must
        not contain kernels, which it cannot divide. `options` are for the compiler.
        """

        def build() -> jax.stages.Compiled:
            program = self._apart(function, args, outputs) if apart else function
            return jax.jit(program, out_shardings=outputs).lower(*args).compile(options)

        start = time.perf_counter()
        if self._cache is None:
            found, executable = False, build()
        else:
            about = (name, config or self._networks_config, self.shapes)
            devices = list(self.mesh.devices.flat)
            found, executable = self._cache.get(name, about, args, devices, build)
        seconds = time.perf_counter() - start
        self.executables[name] = executable
        self.seconds[name] = seconds
        if found:
            self._from_cache.add(name)
        log.info("%s %s in %.1f s", "loaded" if found else "compiled", name, seconds)
        return executable

    def _apart(self, function: Callable[..., Any], args: Any, outputs: Any) -> Callable[..., Any]:
        inputs = jax.tree.map(lambda array: array.sharding.spec, args)
        results = jax.tree.map(lambda sharding: sharding.spec, outputs)
        # Without the check, which knows nothing of kernels and loops of unknown length.
        return jax.shard_map(
            function, mesh=self.mesh, in_specs=inputs, out_specs=results, check_vma=False
        )


def _spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """A `ShapeDtypeStruct`, which stands for an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _shardings(specs: Any) -> Any:
    """The same structure, of shardings."""
    return jax.tree.map(lambda spec: spec.sharding, specs)


def _split(networks: Networks) -> dict[str, Any]:
    """Of those that are there, by name, the graph definition and the parameters."""
    return {name: nnx.split(network) for name, network in vars(networks).items() if network}


def _parameters(parts: dict[str, Any]) -> dict[str, list[Array]]:
    """Of what `_split` gave, the parameters as lists."""
    return {name: jax.tree.leaves(state) for name, (_, state) in parts.items()}


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Turns a list of parameters back into the module.

    Only lists of leaves cross into the executables: NNX's own tree definitions cannot be stored
    in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
