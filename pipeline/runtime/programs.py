"""The sampler's programs: what is compiled, for which shapes, and how devices share the work."""

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

from pipeline.kernels.matmul_conv import CompilerOptions, compiler_options
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.config import Config
from pipeline.models.safety_checker import SafetyChecker
from pipeline.models.unet import Context, UNet
from pipeline.models.vae import VAE
from pipeline.runtime import sampler
from pipeline.runtime.sampler import Conditioning
from pipeline.schedulers.config import MAX_INFERENCE_STEPS
from pipeline.schedulers.methods import REMEMBERED, State, Table

MAX_EVALUATIONS = MAX_INFERENCE_STEPS + 1  # of the UNet; PNDM's first step takes two
# Programs that are the same whatever the pictures' sides are.
SIZELESS = ("encode", "check")


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


@dataclass(frozen=True)
class Program:
    """A function, and what it is compiled for.

    Attributes:
        args: shapes, dtypes and shardings in place of its arguments.
        outputs: shardings, in the structure of its results.
        options: for the compiler.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Any
    options: CompilerOptions | None = None

    def compile(self) -> jax.stages.Compiled:
        """Ahead of time, which takes minutes for a large network."""
        jitted = jax.jit(self.function, out_shardings=self.outputs)
        return jitted.lower(*self.args).compile(self.options)


def names(config: Config, mesh: Mesh) -> list[str]:
    """Of the programs that there are, those first that take longest to compile."""
    # Halves on different devices take as long together as one alone: no second program.
    unguided = ["unguided"] if mesh.shape["guidance"] == 1 else []
    check = ["check"] if config.safety_checker is not None else []
    return ["denoise", *unguided, "decode", "encode", "noise", "vary", *check]


def about(name: str, config: Config, dtype: np.dtype[Any], mesh: Mesh, shapes: Shapes) -> object:
    """What decides, beside this package and the devices, what a program is compiled to.

    The scheduler does not: with another one all programs are still the same.
    """
    networks = (config.text_encoders, config.unet, config.vae)
    part = config.safety_checker if name == "check" else networks
    sides = None if name in SIZELESS else (shapes.height, shapes.width)
    return name, part, dtype.name, dict(mesh.shape), shapes.images, shapes.tokens, sides


def latents_shape(config: Config, shapes: Shapes) -> tuple[int, int, int]:
    """`(h, w, C)` of a picture's latents."""
    factor = config.vae.scale_factor
    return shapes.height // factor, shapes.width // factor, config.unet.in_channels


def history_spec(config: Config, mesh: Mesh, shapes: Shapes) -> Any:
    """Of what a run's state remembers, at its start too."""
    shape = (REMEMBERED, shapes.images, *latents_shape(config, shapes))
    return _spec(shape, jnp.float32, NamedSharding(mesh, P(None, "images")))


def weights(networks: Networks) -> dict[str, list[Array]]:
    """Of those that are there, by name, the parameters as the programs take them."""
    return {name: jax.tree.leaves(state) for name, (_, state) in _split(networks).items()}


class Programs:
    """By name, what a checkpoint's networks are asked for on the devices of a mesh.

    Args:
        networks: shapes and dtypes in place of their parameters will do.
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
        """One of `names`."""
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
        """`sampler.denoise`; on a TPU, whose VMEM has room for one half of one picture, in turn."""
        on_tpu = self._mesh.devices.flat[0].platform == "tpu"
        return partial(sampler.denoise, one_by_one=on_tpu)

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
        """Every device runs `function` on its own share of the arguments.

        What is left to XLA to divide must not contain kernels, which it cannot divide.
        """
        inputs = jax.tree.map(lambda array: array.sharding.spec, args)
        results = jax.tree.map(lambda sharding: sharding.spec, outputs)
        # Without the check, which knows nothing of kernels and loops of unknown length.
        mapped = jax.shard_map(
            function, mesh=self._mesh, in_specs=inputs, out_specs=results, check_vma=False
        )
        return Program(mapped, args, outputs, options)

    def _shard(self, joined: Array) -> Array:
        """Spreads a batch of both halves, `[2B, ...]`, over the devices."""
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
        """Of the text encoders' and the UNet's programs."""
        device, weight = self._mesh.devices.flat[0], self._weights_spec["unet"][0]
        return compiler_options(device, weight.dtype)


def _spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """A `ShapeDtypeStruct`, which stands for an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _shardings(specs: Any) -> Any:
    """The same structure, of shardings."""
    return jax.tree.map(lambda spec: spec.sharding, specs)


def _split(networks: Networks) -> dict[str, Any]:
    """Of those that are there, by name, the graph definition and the parameters."""
    return {name: nnx.split(network) for name, network in vars(networks).items() if network}


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Turns a list of parameters back into the module.

    Only lists of leaves cross into the executables: NNX's own tree definitions cannot be stored
    in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
