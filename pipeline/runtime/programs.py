"""The sampler's programs: functions to compile, their shapes, and how devices share the work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.config import Config
from pipeline.models.safety_checker import SafetyChecker
from pipeline.models.unet import Context, UNet
from pipeline.models.vae import VAE
from pipeline.platforms import CompilerOptions, compiler_options, platform_of
from pipeline.runtime import sampler
from pipeline.runtime.sampler import Conditioning
from pipeline.schedulers.config import MAX_INFERENCE_STEPS
from pipeline.schedulers.methods import REMEMBERED, State, Table

MAX_EVALUATIONS = MAX_INFERENCE_STEPS + 1  # of the UNet; PNDM's first step takes two
# Programs that do not depend on the pictures' height and width.
SIZELESS = ("encode", "check")


@dataclass(frozen=True)
class Networks:
    """A checkpoint's networks, with one text encoder or SDXL's two."""

    text_encoders: tuple[CLIPTextEncoder, ...]
    unet: UNet
    vae: VAE
    safety_checker: SafetyChecker | None

    @classmethod
    def named(cls, networks: Mapping[str, Any]) -> "Networks":
        """Return the networks of a mapping by the names of their folders in a checkpoint.

        The second text encoder and the safety checker may be missing.
        """
        encoders = (networks.get(name) for name in ("text_encoder", "text_encoder_2"))
        return cls(
            text_encoders=tuple(encoder for encoder in encoders if encoder is not None),
            unet=networks["unet"],
            vae=networks["vae"],
            safety_checker=networks.get("safety_checker"),
        )


@dataclass(frozen=True)
class Shapes:
    """The sizes fixed at compilation: pictures per request, their sides in pixels, and tokens."""

    images: int
    height: int
    width: int
    tokens: int


@dataclass(frozen=True)
class Program:
    """A function, and the shapes and shardings that it is compiled for.

    Attributes:
        function: the function to compile.
        args: shapes, dtypes and shardings in place of its arguments.
        outputs: shardings, in the structure of its results.
        options: compiler options.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Any
    options: CompilerOptions | None = None

    def compile(self) -> jax.stages.Compiled:
        """Compile ahead of time, which takes minutes for a large network."""
        jitted = jax.jit(self.function, out_shardings=self.outputs)
        return jitted.lower(*self.args).compile(self.options)


def program_names(config: Config, mesh: Mesh) -> list[str]:
    """Return the names of the programs, the slowest to compile first."""
    # Guidance halves on different devices run at the same time, so a program without guidance
    # would save nothing there.
    unguided = ["unguided"] if mesh.shape["guidance"] == 1 else []
    check = ["check"] if config.safety_checker is not None else []
    return ["denoise", *unguided, "decode", "encode", "noise", "vary", *check]


def cache_key(
    name: str, config: Config, dtype: np.dtype[Any], mesh: Mesh, shapes: Shapes
) -> object:
    """Return the key under which a compiled program is cached.

    `ExecutableCache` adds this package's source and the devices. The scheduler is not in the key,
    because all schedulers run the same programs.
    """
    networks = (config.text_encoders, config.unet, config.vae)
    part = config.safety_checker if name == "check" else networks
    sides = None if name in SIZELESS else (shapes.height, shapes.width)
    return name, part, dtype.name, dict(mesh.shape), shapes.images, shapes.tokens, sides


def latents_shape(config: Config, shapes: Shapes) -> tuple[int, int, int]:
    """Return the shape `(h, w, C)` of a picture's latents."""
    factor = config.vae.scale_factor
    return shapes.height // factor, shapes.width // factor, config.unet.in_channels


def history_spec(config: Config, mesh: Mesh, shapes: Shapes) -> Any:
    """Return the shape and sharding of the `history` in a run's `State`."""
    shape = (REMEMBERED, shapes.images, *latents_shape(config, shapes))
    return _spec(shape, jnp.float32, NamedSharding(mesh, P(None, "images")))


def weights(networks: Networks) -> dict[str, list[Array]]:
    """Return each network's parameters as the programs take them, by its name in `Networks`."""
    return {name: jax.tree.leaves(state) for name, (_, state) in _split(networks).items()}


class Programs:
    """The programs of a checkpoint's networks on the devices of a mesh, by name.

    Args:
        networks: the networks; shapes and dtypes suffice in place of their parameters.
    """

    def __init__(self, config: Config, networks: Networks, mesh: Mesh, shapes: Shapes):
        self._config, self._mesh, self._shapes = config, mesh, shapes
        self._latents_shape = latents_shape(config, shapes)
        self._whole = NamedSharding(mesh, P())
        self._by_image = NamedSharding(mesh, P("images"))
        self._by_half = NamedSharding(mesh, P("guidance", "images"))
        parts = _split(networks)
        self._rebuild = {name: _rebuilder(*part) for name, part in parts.items()}
        self._weights_spec = {
            name: [_spec(leaf.shape, leaf.dtype, self._whole) for leaf in jax.tree.leaves(state)]
            for name, (_, state) in parts.items()
        }

    def __getitem__(self, name: str) -> Program:
        """Return the program of this name, one of those in `names`."""
        makers = {
            "denoise": self._denoise,
            "unguided": self._unguided,
            "decode": self._decode,
            "encode": self._encode,
            "noise": self._noise,
            "vary": self._vary,
            "check": self._check,
        }
        return makers[name]()

    def _noise(self) -> Program:
        def draw(seeds: Array, sigma: Array) -> Array:
            return sampler.noise(seeds, self._latents_shape) * sigma

        args = (self._seeds_spec(), _spec((), jnp.float32, self._whole))
        return Program(draw, args, self._by_image)

    def _vary(self) -> Program:
        args = (self._latents_spec(), self._latents_spec(), _spec((), jnp.float32, self._whole))
        return Program(sampler.vary, args, self._by_image)

    def _encode(self) -> Program:
        shapes, rebuild = self._shapes, self._rebuild
        ids_shape = (2, shapes.images, len(self._config.text_encoders), shapes.tokens)
        ids = _spec(ids_shape, jnp.int32, self._by_half)
        zero = _spec((shapes.images,), jnp.bool_, self._by_image)
        time_ids = self._conditioning_spec().add_time_ids

        def encode(
            texts: list[Array],
            unet: list[Array],
            ids: Array,
            zero: Array,
            add_time_ids: Array | None,
        ) -> Context:
            encoders = rebuild["text_encoders"](texts)
            conditioning = sampler.encode(encoders, ids, zero, add_time_ids, self._shard)
            return sampler.prepare(rebuild["unet"](unet), conditioning, self._shard)

        weights = self._weights_spec
        args = (weights["text_encoders"], weights["unet"], ids, zero, time_ids)
        return Program(encode, args, _shardings(self._context_spec), self._options())

    def _denoise(self) -> Program:
        gather = partial(jax.lax.all_gather, axis_name="guidance", tiled=True)
        steps = self._steps()

        def denoise(weights: list[Array], *rest: Any) -> State:
            return steps(self._rebuild["unet"](weights), *rest, gather=gather)

        return self._evaluations(denoise)

    def _unguided(self) -> Program:
        steps = self._steps()

        def denoise(weights: list[Array], state: State, context: Context, *rest: Any) -> State:
            prompts = jax.tree.map(lambda halves: halves[1:], context)
            return steps(self._rebuild["unet"](weights), state, prompts, *rest)

        return self._evaluations(denoise)

    def _steps(self) -> Callable[..., State]:
        """Return `sampler.denoise` as the devices' platform runs it."""
        platform = platform_of(self._mesh.devices.flat[0])
        return partial(sampler.denoise, one_by_one=platform.one_by_one)

    def _evaluations(self, denoise: Callable[..., State]) -> Program:
        history = history_spec(self._config, self._mesh, self._shapes)
        state = State(self._latents_spec(), history)
        column = _spec((MAX_EVALUATIONS,), jnp.float32, self._whole)
        values = _spec((MAX_EVALUATIONS, 1 + REMEMBERED), jnp.float32, self._whole)
        table = Table(*[column] * len(Table._fields))._replace(values=values)
        scalars = (_spec((), dtype, self._whole) for dtype in (jnp.float32, jnp.int32, jnp.int32))
        weights, context, seeds = self._weights_spec["unet"], self._context_spec, self._seeds_spec()
        args = (weights, state, context, seeds, table, *scalars)
        return self._apart(denoise, args, _shardings(state), self._options())

    def _decode(self) -> Program:
        def decode(weights: list[Array], latents: Array):
            return sampler.decode(self._rebuild["vae"](weights), latents)

        args = (self._weights_spec["vae"], self._latents_spec())
        return self._apart(decode, args, (self._by_image, self._by_image))

    def _check(self) -> Program:
        def check(weights: list[Array], images: Array) -> Array:
            return self._rebuild["safety_checker"](weights)(images)

        assert self._config.safety_checker is not None
        side = self._config.safety_checker.vision.image_size
        images = _spec((self._shapes.images, side, side, 3), jnp.uint8, self._by_image)
        return Program(check, (self._weights_spec["safety_checker"], images), self._by_image)

    def _apart(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        outputs: Any,
        options: CompilerOptions | None = None,
    ) -> Program:
        """Return a program in which every device runs `function` on its share of the arguments.

        Functions with kernels need this, because XLA cannot divide a kernel among devices.
        """
        inputs = jax.tree.map(lambda array: array.sharding.spec, args)
        results = jax.tree.map(lambda sharding: sharding.spec, outputs)
        # `check_vma` does not support kernels and loops of unknown length.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=inputs, out_specs=results, check_vma=False
        )
        return Program(mapped, args, outputs, options)

    def _shard(self, joined: Array) -> Array:
        """Spread a batch of both halves, `[2B, ...]`, over the devices."""
        sharding = NamedSharding(self._mesh, P(("images", "guidance")))
        return jax.lax.with_sharding_constraint(joined, sharding)

    def _seeds_spec(self) -> Any:
        return _spec((self._shapes.images,), jnp.uint32, self._by_image)

    def _latents_spec(self) -> Any:
        return _spec((self._shapes.images, *self._latents_shape), jnp.float32, self._by_image)

    def _conditioning_spec(self) -> Conditioning:
        pair = (2, self._shapes.images)
        dtype = self._weights_spec["unet"][0].dtype
        embeds_shape = (*pair, self._shapes.tokens, self._config.unet.cross_attention_dim)
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
        """Return the compiler options of the text encoders' and the UNet's programs."""
        device, weight = self._mesh.devices.flat[0], self._weights_spec["unet"][0]
        return compiler_options(device, weight.dtype)


def _spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Return a `ShapeDtypeStruct`, which can replace an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _shardings(specs: Any) -> Any:
    """Return the shardings of a structure of specs, in the same structure."""
    return jax.tree.map(lambda spec: spec.sharding, specs)


def _split(networks: Networks) -> dict[str, Any]:
    """Return the graph definition and the parameters of each network, by its name in `Networks`.

    A safety checker that is None is left out.
    """
    return {name: nnx.split(network) for name, network in vars(networks).items() if network}


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Return a function that turns a list of parameters back into the module.

    Executables take parameters only as lists of leaves, because NNX's own tree definitions cannot
    be stored in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
