"""The sampler's programs: functions to compile, their shapes, and how devices share the work.

`PROGRAMS` is the table of all of them.
"""

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

from pipeline.families.family import Config, Family
from pipeline.platforms import CompilerOptions, compiler_options, platform_of
from pipeline.runtime import sampler
from pipeline.runtime.sampler import Context
from pipeline.schedulers.config import MAX_INFERENCE_STEPS
from pipeline.schedulers.table import REMEMBERED, State, Table
from pipeline.text.embeddings import MAX_VECTORS

# The most evaluations of the network in a run: Heun's steps take two, except the last.
MAX_EVALUATIONS = 2 * MAX_INFERENCE_STEPS - 1

# Pixels of the tiny VAE's previews per latent pixel, along each side.
PREVIEW_PIXELS = 2

# A program's first argument: the parameters of its networks, by the network's name.
Weights = Mapping[str, list[Array]]


@dataclass(frozen=True)
class Shapes:
    """The sizes fixed at compilation: pictures per request, their sides in pixels, and tokens."""

    images: int
    height: int
    width: int
    tokens: int


@dataclass(frozen=True)
class Target:
    """The model, the devices and the sizes that programs are compiled for.

    `dtype` is that of the networks.
    """

    config: Config
    dtype: np.dtype[Any]
    mesh: Mesh
    shapes: Shapes

    @property
    def latents_shape(self) -> tuple[int, int, int]:
        """The shape `(h, w, C)` of a picture's latents."""
        size = self.shapes.height, self.shapes.width
        return self.config.family.latents_shape(self.config, *size)

    @property
    def history_spec(self) -> Any:
        """The shape and sharding of the `history` in a run's `State`."""
        shape = (REMEMBERED, self.shapes.images, *self.latents_shape)
        return _spec(shape, jnp.float32, NamedSharding(self.mesh, P(None, "images")))


@dataclass(frozen=True)
class Program:
    """A function, and the shapes and shardings that it is compiled for.

    Attributes:
        function: the function to compile.
        args: shapes, dtypes and shardings in place of its arguments.
        outputs: the sharding of its results, or a structure of shardings like theirs.
        options: compiler options.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Any
    options: CompilerOptions | None = None

    @cached_property
    def jitted(self) -> Any:
        """The function under `jax.jit`, which is traced once."""
        return jax.jit(self.function, out_shardings=self.outputs)

    def compile(self) -> jax.stages.Compiled:
        """Compile ahead of time, which takes minutes for a large network."""
        return self.jitted.lower(*self.args).compile(self.options)


def weights(networks: Mapping[str, nnx.Module]) -> dict[str, list[Array]]:
    """Return each network's parameters as the programs take them, by its name."""
    return {name: jax.tree.leaves(nnx.state(network)) for name, network in networks.items()}


class Programs:
    """The builder of programs for a target.

    Args:
        networks: the networks by name; shapes and dtypes suffice in place of their parameters.
    """

    def __init__(self, target: Target, networks: Mapping[str, nnx.Module]):
        self._target = target
        self._family = target.config.family
        self._whole = NamedSharding(target.mesh, P())
        self._by_image = NamedSharding(target.mesh, P("images"))
        self._by_half = NamedSharding(target.mesh, P("guidance", "images"))
        parts = {name: nnx.split(network) for name, network in networks.items()}
        self._rebuild = {name: _rebuilder(*part) for name, part in parts.items()}
        self._leaves = {
            name: [_spec(leaf.shape, leaf.dtype, self._whole) for leaf in jax.tree.leaves(state)]
            for name, (_, state) in parts.items()
        }

    def __getitem__(self, name: str) -> Program:
        """Return the program of this name, a key of `PROGRAMS`."""
        return PROGRAMS[name].build(self)

    def noise(self) -> Program:
        """Return the program that draws noise of a given standard deviation."""

        def draw(_: Weights, seeds: Array, sigma: Array) -> Array:
            return sampler.noise(seeds, self._target.latents_shape) * sigma

        args = (self._weights_spec("noise"), self._seeds_spec(), self._scalar_spec(jnp.float32))
        return Program(draw, args, self._by_image)

    def vary(self) -> Program:
        """Return the program that turns noise towards other noise."""

        def vary(_: Weights, own: Array, other: Array, strength: Array) -> Array:
            return sampler.vary(own, other, strength)

        latents = self._latents_spec()
        args = (self._weights_spec("vary"), latents, latents, self._scalar_spec(jnp.float32))
        return Program(vary, args, self._by_image)

    def encode(self) -> Program:
        """Return the program that turns token ids into the context of a request."""
        return self._encode

    @cached_property
    def _encode(self) -> Program:
        shapes = self._target.shapes
        ids_shape = (2, shapes.images, len(self._family.text_encoders), shapes.tokens)
        ids = _spec(ids_shape, jnp.int32, self._by_half)
        zero = _spec((shapes.images,), jnp.bool_, self._by_image)
        size = _spec((2,), jnp.float32, self._whole)
        encoders = self._target.config.text_encoders
        vectors = tuple(
            _spec((MAX_VECTORS, encoder.hidden_size), jnp.float32, self._whole)
            for encoder in encoders.values()
        )
        run = self._family.encode.run

        def encode(
            weights: Weights,
            ids: Array,
            zero: Array,
            size: Array,
            guidance: Array,
            vectors: tuple[Array, ...],
        ) -> Context:
            networks = self._networks(weights)
            for name, rows in zip(encoders, vectors, strict=True):
                networks[name] = partial(networks[name], vectors=rows)
            return run(networks, ids, zero, size, guidance, self._shard)

        guidance = self._scalar_spec(jnp.float32)
        args = (self._weights_spec("encode"), ids, zero, size, guidance, vectors)
        return Program(encode, args, self._by_half, self._options())

    def denoise(self) -> Program:
        """Return the program that runs steps with guidance."""
        gather = partial(jax.lax.all_gather, axis_name="guidance", tiled=True)
        steps = self._steps()

        def denoise(weights: Weights, *rest: Any) -> State:
            return steps(self._predict(weights), *rest, gather=gather)

        return self._evaluations("denoise", denoise)

    def unguided(self) -> Program:
        """Return the program that runs steps without guidance."""
        steps = self._steps()

        def denoise(weights: Weights, state: State, context: Context, *rest: Any) -> State:
            prompts = jax.tree.map(lambda halves: halves[1:], context)
            return steps(self._predict(weights), state, prompts, *rest)

        return self._evaluations("unguided", denoise)

    def _predict(self, weights: Weights) -> sampler.Predict:
        return partial(self._family.predict.run, self._networks(weights))

    def _steps(self) -> Callable[..., State]:
        """Return `sampler.denoise` as the devices' platform runs it."""
        platform = platform_of(self._target.mesh.devices.flat[0])
        return partial(sampler.denoise, one_by_one=platform.one_by_one)

    def _evaluations(self, name: str, denoise: Callable[..., State]) -> Program:
        state = State(self._latents_spec(), self._target.history_spec)
        column = _spec((MAX_EVALUATIONS,), jnp.float32, self._whole)
        values = _spec((MAX_EVALUATIONS, 1 + REMEMBERED), jnp.float32, self._whole)
        table = Table(*[column] * len(Table._fields))._replace(values=values)
        scalars = map(self._scalar_spec, (jnp.float32, jnp.float32, jnp.int32, jnp.int32))
        weights, seeds = self._weights_spec(name), self._seeds_spec()
        args = (weights, state, self._context_spec, seeds, table, *scalars)
        return self._apart(denoise, args, _shardings(state), self._options())

    def decode(self) -> Program:
        """Return the program that turns latents into pictures."""
        run = self._family.decode.run

        def decode(weights: Weights, latents: Array) -> tuple[Array, Array]:
            return sampler.decode(partial(run, self._networks(weights)), latents)

        args = (self._weights_spec("decode"), self._latents_spec())
        return self._apart(decode, args, (self._by_image, self._by_image))

    def tiny_decode(self) -> Program:
        """Return the program that decodes with the tiny VAE, at any evaluation of a run."""
        run = self._family.tiny_decode.run
        factor = self._target.shapes.height // self._target.latents_shape[0]
        shrink = max(1, factor // PREVIEW_PIXELS)

        def decode(weights: Weights, state: State, a: Array, b: Array) -> tuple[Array, ...]:
            decoder = partial(run, self._networks(weights))
            latents, history = state
            return sampler.decode_early(decoder, latents, history[0], (a, b), shrink)

        state = State(self._latents_spec(), self._target.history_spec)
        scalars = self._scalar_spec(jnp.float32), self._scalar_spec(jnp.float32)
        args = (self._weights_spec("tiny_decode"), state, *scalars)
        return self._apart(decode, args, (self._by_image,) * 3)

    def check(self) -> Program:
        """Return the program of the safety checker."""

        def check(weights: Weights, images: Array) -> Array:
            return self._networks(weights)["safety_checker"](images)

        checker = self._target.config.safety_checker
        assert checker is not None
        side = checker.vision.image_size
        images = _spec((self._target.shapes.images, side, side, 3), jnp.uint8, self._by_image)
        return Program(check, (self._weights_spec("check"), images), self._by_image)

    def _networks(self, weights: Weights) -> dict[str, Any]:
        """Return networks with the given parameters, by name."""
        return {name: self._rebuild[name](leaves) for name, leaves in weights.items()}

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
            function, mesh=self._target.mesh, in_specs=inputs, out_specs=results, check_vma=False
        )
        return Program(mapped, args, outputs, options)

    def _shard(self, joined: Array) -> Array:
        """Spread a batch of both halves, `[2B, ...]`, over the devices."""
        sharding = NamedSharding(self._target.mesh, P(("images", "guidance")))
        return jax.lax.with_sharding_constraint(joined, sharding)

    def _weights_spec(self, name: str) -> dict[str, list[Any]]:
        return {network: self._leaves[network] for network in network_names(name, self._family)}

    def _scalar_spec(self, dtype: Any) -> Any:
        return _spec((), dtype, self._whole)

    def _seeds_spec(self) -> Any:
        return _spec((self._target.shapes.images,), jnp.uint32, self._by_image)

    def _latents_spec(self) -> Any:
        shape = (self._target.shapes.images, *self._target.latents_shape)
        return _spec(shape, jnp.float32, self._by_image)

    @cached_property
    def _context_spec(self) -> Context:
        shapes = self._encode.jitted.eval_shape(*self._encode.args)
        return jax.tree.map(lambda leaf: _spec(leaf.shape, leaf.dtype, self._by_half), shapes)

    def _options(self) -> CompilerOptions:
        """Return the compiler options of the text encoders' and the UNet's programs."""
        return compiler_options(self._target.mesh.devices.flat[0], self._target.dtype)


@dataclass(frozen=True)
class Entry:
    """A row of the table of programs.

    Attributes:
        build: makes the program.
        networks: the names of the networks whose parameters it takes.
        sized: whether it depends on the pictures' height and width.
        exists: whether a target has it.
    """

    build: Callable[[Programs], Program]
    networks: Callable[[Family], tuple[str, ...]]
    sized: bool = True
    exists: Callable[[Target], bool] = lambda _: True


def _halves_together(target: Target) -> bool:
    """Return whether the halves of guidance share devices.

    On different devices they run at the same time, so a program without guidance would save
    nothing there.
    """
    return target.mesh.shape["guidance"] == 1


def _has_tiny_vae(target: Target) -> bool:
    return target.config.tiny_vae is not None


def _is_guided(target: Target) -> bool:
    """Return whether both halves are predicted for, or have devices of their own anyway."""
    return not (target.config.embeds_guidance and _halves_together(target))


def _is_checked(target: Target) -> bool:
    return target.config.safety_checker is not None


# The programs by name, the slowest to compile first.
PROGRAMS: dict[str, Entry] = {
    "denoise": Entry(Programs.denoise, lambda family: family.predict.networks, exists=_is_guided),
    "unguided": Entry(
        Programs.unguided, lambda family: family.predict.networks, exists=_halves_together
    ),
    "decode": Entry(Programs.decode, lambda family: family.decode.networks),
    "tiny_decode": Entry(
        Programs.tiny_decode, lambda family: family.tiny_decode.networks, exists=_has_tiny_vae
    ),
    "encode": Entry(Programs.encode, lambda family: family.encode.networks, sized=False),
    "noise": Entry(Programs.noise, lambda _: ()),
    "vary": Entry(Programs.vary, lambda _: ()),
    "check": Entry(Programs.check, lambda _: ("safety_checker",), sized=False, exists=_is_checked),
}


def program_names(target: Target) -> list[str]:
    """Return the names of a target's programs, the slowest to compile first."""
    return [name for name, entry in PROGRAMS.items() if entry.exists(target)]


def network_names(program: str, family: Family) -> tuple[str, ...]:
    """Return the names of the networks whose parameters a program takes."""
    return PROGRAMS[program].networks(family)


def cache_key(name: str, target: Target) -> object:
    """Return the key under which a compiled program is cached.

    `ExecutableCache` adds this package's source and the devices. The scheduler is not in the key,
    because all schedulers run the same programs.
    """
    config, shapes, entry = target.config, target.shapes, PROGRAMS[name]
    family = config.family
    others = {part.name for part in (*family.optional, *family.apart)} - {*entry.networks(family)}
    networks = {part: read for part, read in config.networks.items() if part not in others}
    sides = (shapes.height, shapes.width) if entry.sized else None
    model = family.class_name, family.name, networks, target.dtype.name
    return name, *model, dict(target.mesh.shape), shapes.images, shapes.tokens, sides


def _spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Return a `ShapeDtypeStruct`, which can replace an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _shardings(specs: Any) -> Any:
    """Return the shardings of a structure of specs, in the same structure."""
    return jax.tree.map(lambda spec: spec.sharding, specs)


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Return a function that turns a list of parameters back into the module.

    Executables take parameters only as lists of leaves, because NNX's own tree definitions cannot
    be stored in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
