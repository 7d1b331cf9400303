"""The sampler's programs: functions to compile, their shapes, and how devices share the work.

A target is what they are compiled for. `PROGRAMS` is the table of all of them.
"""

from collections.abc import Callable, Mapping
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

from pipeline.errors import InputError
from pipeline.families.family import Architecture, Config, StepCache
from pipeline.families.latent_unet import CONTROL
from pipeline.kernels import rows
from pipeline.platforms import CompilerOptions, compiler_options, platform_of
from pipeline.runtime import controlling, looping, sampler
from pipeline.runtime.sampler import Context, Embeds, Tokens
from pipeline.runtime.work import Work, no_work, unpack
from pipeline.schedulers.table import REMEMBERED, Kept, State
from pipeline.text.controls import UNION_TYPES
from pipeline.text.embeddings import MAX_VECTORS
from pipeline.text.prompt_syntax import MAX_TEXTS

# A program's first argument: the parameters of its networks, by the network's name.
Weights = Mapping[str, list[Array]]

# Pixels of the tiny VAE's previews per latent pixel, along each side.
PREVIEW_PIXELS = 2
# The axes of the mesh over which the rows of a picture are spread, where it has more than one. The
# VAE has no halves of guidance, so all of a picture's devices share its rows.
UNET_ROWS = ("rows",)
VAE_ROWS = ("guidance", "rows")


@dataclass(frozen=True)
class Shapes:
    """The sizes fixed at compilation: slots, the pictures' sides in pixels, and chunks.

    `images` is the number of slots, which is the most pictures of a request. `chunks` is the most
    chunks of a prompt.
    """

    images: int
    height: int
    width: int
    chunks: int = 1


@dataclass(frozen=True)
class Target:
    """The model, the devices and the sizes that programs are compiled for.

    `dtype` is that of the networks. With `step_cache`, a step may use deep features of an earlier
    one. `quantization` is one of `pipeline.models.quantized.QUANTIZATIONS`, or None. The mesh has
    the axes `guidance`, `images` and `rows`. With `controls`, networks beside the model's guide the
    denoiser; `guided_by` makes the targets of their programs.
    """

    config: Config
    dtype: np.dtype[Any]
    mesh: Mesh
    shapes: Shapes
    step_cache: bool = False
    quantization: str | None = None
    controls: bool = False

    def guided_by(self, network: Any) -> "Target":
        """Return the target of the programs of a network that guides the denoiser.

        `network` is its configuration.
        """
        config = replace(self.config, networks={**self.config.networks, CONTROL: network})
        return replace(self, config=config)

    def resized(self, height: int, width: int) -> "Target":
        """Return the same for pictures of another size, in pixels."""
        return replace(self, shapes=replace(self.shapes, height=height, width=width))

    @property
    def latents_shape(self) -> tuple[int, int, int]:
        """The shape `(h, w, C)` of a picture's latents."""
        size = self.shapes.height, self.shapes.width
        return self.config.architecture.latents_shape(*size)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The most tokens of a prompt for each text encoder, with each chunk's start and end."""
        return tuple(self.shapes.chunks * count for count in self.config.tokens)

    @property
    def kept_spec(self) -> Kept:
        """The shapes and shardings of the kept parts of the pictures in all slots."""
        latents = self.state_spec.latents
        mask = spec((*latents.shape[:3], 1), jnp.float32, NamedSharding(self.mesh, P("images")))
        return Kept(latents, latents, mask)

    @property
    def predicted_halves(self) -> int:
        """The number of halves of guidance that the networks predict for, on all devices."""
        by_half = self.mesh.shape["guidance"] == 2
        return 2 if by_half or not self.config.architecture.embeds_guidance else 1

    @property
    def devices_per_picture(self) -> int:
        """The number of devices that draw a picture together."""
        return self.mesh.shape["guidance"] * self.mesh.shape["rows"]

    @property
    def deep_spec(self) -> Any:
        """The shape and sharding of all slots' deep features; None without step caching."""
        if (cache := self.caching) is None:
            return None
        shape = cache.shape(self.shapes.height, self.shapes.width)
        sharding = NamedSharding(self.mesh, P("guidance", "images", "rows"))
        return spec((self.predicted_halves, self.shapes.images, *shape), self.dtype, sharding)

    @property
    def residuals_spec(self) -> Any:
        """The shapes and shardings of all slots' residuals; None without controls."""
        if not self.controls:
            return None
        assert self.config.architecture.control is not None
        shapes = self.config.architecture.control.shapes(self.shapes.height, self.shapes.width)
        sharding = NamedSharding(self.mesh, P("guidance", "images", "rows"))
        slots = self.predicted_halves, self.shapes.images
        return tuple(spec((*slots, *shape), self.dtype, sharding) for shape in shapes)

    @property
    def hints_spec(self) -> Any:
        """The shape and sharding of a hint in all slots."""
        shape = self.shapes.images, *self.residuals_spec[0].shape[2:]
        return spec(shape, self.dtype, NamedSharding(self.mesh, P("images", "rows")))

    @property
    def caching(self) -> StepCache | None:
        """How a step uses deep features of an earlier one; None if it does not."""
        return self.config.architecture.step_cache if self.step_cache else None

    @property
    def state_spec(self) -> State:
        """The shapes and shardings of the state of all slots."""
        latents = self.shapes.images, *self.latents_shape
        by_slot, behind = (
            NamedSharding(self.mesh, P(*axes)) for axes in (["images"], [None, "images"])
        )
        return State(
            spec(latents, jnp.float32, by_slot), spec((REMEMBERED, *latents), jnp.float32, behind)
        )


def check_rows(config: Config, mesh: Mesh, height: int) -> None:
    """Raise InputError if a mesh's devices cannot share the rows of pictures of a height in pixels.

    Every device must have as many rows as the others wherever the networks shrink the picture.
    """
    if (rows := mesh.shape["rows"]) == 1:
        return
    architecture, devices = config.architecture, rows * mesh.shape["guidance"]
    latent_rows, *_ = architecture.latents_shape(height, height)
    multiple = max(architecture.size_multiple * rows, height // latent_rows * devices)
    if height % multiple:
        raise InputError(
            f"height is {height}; with devices_per_picture {devices}, expected a multiple of"
            f" {multiple}"
        )


@dataclass(frozen=True)
class Program:
    """A function, and the shapes and shardings that it is compiled for.

    Attributes:
        function: the function to compile.
        args: shapes, dtypes and shardings in place of its arguments.
        outputs: the sharding of its results, or a structure of shardings like theirs.
        options: compiler options.
        donated: positions of arguments whose memory the results take; callers lose these.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    outputs: Any
    options: CompilerOptions | None = None
    donated: tuple[int, ...] = ()

    @cached_property
    def jitted(self) -> Any:
        """The function under `jax.jit`, which is traced once."""
        return jax.jit(self.function, out_shardings=self.outputs, donate_argnums=self.donated)

    def compile(self) -> jax.stages.Compiled:
        """Compile ahead of time, which takes minutes for a large network."""
        return self.jitted.lower(*self.args).compile(self.options)


def weights(networks: Mapping[str, nnx.Module]) -> dict[str, list[Array]]:
    """Return each network's parameters as the programs take them, by its name."""
    return {name: jax.tree.leaves(nnx.state(network)) for name, network in networks.items()}


def spec(shape: tuple[int | None, ...], dtype: Any, sharding: NamedSharding) -> Any:
    """Return a `ShapeDtypeStruct`, which can replace an array in any structure of arrays."""
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def shardings(specs: Any) -> Any:
    """Return the shardings of a structure of specs, in the same structure."""
    return jax.tree.map(lambda leaf: leaf.sharding, specs)


class Programs:
    """The builder of programs for a target.

    Args:
        networks: the networks by name; shapes and dtypes suffice in place of their parameters.
    """

    def __init__(self, target: Target, networks: Mapping[str, nnx.Module]):
        self._target = target
        self._architecture = target.config.architecture
        self._whole = NamedSharding(target.mesh, P())
        self._by_image = NamedSharding(target.mesh, P("images"))
        self._by_half = NamedSharding(target.mesh, P("guidance", "images"))
        self._of_half = NamedSharding(target.mesh, P("guidance"))
        parts = {name: nnx.split(network) for name, network in networks.items()}
        self._rebuild = {name: _rebuilder(*part) for name, part in parts.items()}
        self._leaves = {
            name: [spec(leaf.shape, leaf.dtype, self._whole) for leaf in jax.tree.leaves(state)]
            for name, (_, state) in parts.items()
        }

    def __getitem__(self, name: str) -> Program:
        """Return the program of this name, a key of `PROGRAMS`."""
        return PROGRAMS[name].build(self)

    def noise(self) -> Program:
        """Return the program that draws noise of a given standard deviation."""

        def draw(_: Weights, seeds: Array, sigma: Array) -> Array:
            return sampler.noise(seeds, self._target.latents_shape) * sigma

        seeds = self._column_spec(jnp.uint32)
        args = (self._weights_spec("noise"), seeds, self._scalar_spec(jnp.float32))
        return Program(draw, args, self._by_image)

    def vary(self) -> Program:
        """Return the program that turns noise towards other noise."""

        def vary(_: Weights, base_noise: Array, other_noise: Array, strength: Array) -> Array:
            return sampler.vary(base_noise, other_noise, strength)

        latents = self._target.state_spec.latents
        args = (self._weights_spec("vary"), latents, latents, self._scalar_spec(jnp.float32))
        return Program(vary, args, self._by_image)

    def encode(self) -> Program:
        """Return the program that writes the embeddings of new pictures' prompts into slots."""
        encoders, count = self._target.config.text_encoders, self._target.shapes.chunks
        sources, tokens = self._column_spec(jnp.int32), self._tokens_spec
        vectors = tuple(
            spec((MAX_VECTORS, encoder.hidden_size), jnp.float32, self._whole)
            for encoder in encoders.values()
        )

        def encode_chunk(
            weights: Weights, vectors: tuple[Array, ...], tokens: Tokens[Array]
        ) -> Embeds:
            networks = self._networks(weights)
            for name, encoder_vectors in zip(encoders, vectors, strict=True):
                networks[name] = partial(networks[name], vectors=encoder_vectors)
            architecture = self._architecture
            skips = {"clip_skip": tokens.clip_skip} if architecture.max_clip_skip else {}
            inputs = tokens.ids, tokens.zeroed, tokens.weights
            return architecture.encode.run(networks, *inputs, **skips)

        weights = self._weights_spec("encode")
        chunk_tokens = jax.eval_shape(partial(sampler.chunk_of, i=0, count=count), tokens)
        embeds = jax.tree.map(
            lambda leaf: self._half_spec((count, *leaf.shape[2:]), leaf.dtype),
            jax.eval_shape(encode_chunk, weights, vectors, chunk_tokens),
        )

        def encode(
            weights: Weights,
            embeds: Embeds,
            sources: Array,
            tokens: Tokens[Array],
            vectors: tuple[Array, ...],
        ) -> Embeds:
            run = partial(encode_chunk, weights, vectors)
            return sampler.encode(run, embeds, sources, tokens, count)

        args = (weights, embeds, sources, tokens, vectors)
        return self._apart(encode, args, shardings(embeds), self._options(), donated=(1,))

    def condition(self) -> Program:
        """Return the program that writes the context of pictures' prompts into their slots."""
        texts, count = (self._embeds_spec,) * MAX_TEXTS, self._target.shapes.chunks
        size, is_negative = self._picture_spec
        guidance = self._column_spec(jnp.float32)
        numbers, chunks = self._half_spec((), jnp.int32), self._half_spec((), jnp.int32)

        def condition_chunk(
            weights: Weights,
            picture: tuple[Array, Array],
            embeds: Embeds,
            guidance: Array,
            chunks: Array,
            room: int = 1,
        ) -> Context:
            networks = self._networks(weights)
            context = self._architecture.condition.run(networks, embeds, *picture, guidance)
            return self._with_chunks(context, room, chunks)

        weights = self._weights_spec("condition")
        chunk_embeds = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((*leaf.shape[:2], *leaf.shape[3:]), leaf.dtype),
            texts[0],
        )
        run_chunk = partial(condition_chunk, room=count)
        context = jax.tree.map(
            lambda leaf: self._half_spec(leaf.shape[2:], leaf.dtype),
            jax.eval_shape(run_chunk, weights, (size, is_negative), chunk_embeds, guidance, chunks),
        )

        def condition(
            weights: Weights,
            context: Context,
            new_slots: Array,
            texts: tuple[Embeds, ...],
            text_numbers: Array,
            size: Array,
            is_negative: Array,
            guidance: Array,
            chunks: Array,
        ) -> Context:
            run = partial(condition_chunk, weights, (size, is_negative))
            inputs = new_slots, texts, text_numbers, guidance, chunks
            return sampler.condition(run, context, *inputs)

        places = self._column_spec(jnp.bool_)
        args = (weights, context, places, texts, numbers, size, is_negative, guidance, chunks)
        return self._apart(condition, args, shardings(context), self._options(), donated=(1,))

    def encode_image(self) -> Program:
        """Return the program that encodes the pictures that new ones start from."""
        run = self._architecture.encode_image.run

        def encode(
            weights: Weights, images: Array, noise: Array, coefficients: Array, slot_mask: Array
        ) -> tuple[Array, Array]:
            encoder = partial(run, self._networks(weights))

            def one(i: Array) -> tuple[Array, Array]:
                image, picture_noise = looping.take(images, i), looping.take(noise, i)
                return sampler.start(encoder, image, picture_noise, coefficients)

            return looping.map_wanted(slot_mask, one)

        shapes = self._target.shapes
        pixels = shapes.images, shapes.height, shapes.width, 3
        images = spec(pixels, jnp.float32, self._by_image)
        noise = self._target.state_spec.latents
        coefficients = spec((2,), jnp.float32, self._whole)
        weights, slot_mask = self._weights_spec("encode_image"), self._column_spec(jnp.bool_)
        args = (weights, images, noise, coefficients, slot_mask)
        return self._apart(encode, args, (self._by_image,) * 2, spread=VAE_ROWS)

    def enter(self) -> Program:
        """Return the program that lets new pictures enter their slots."""

        def enter(
            _: Weights, state: State, kept: Kept, latents: Array, parts: Kept, new_slots: Array
        ) -> tuple[State, Kept]:
            return sampler.enter(state, kept, latents, parts, new_slots)

        state, kept = self._target.state_spec, self._target.kept_spec
        new_slots = self._column_spec(jnp.bool_)
        args = (self._weights_spec("enter"), state, kept, state.latents, kept, new_slots)
        return Program(enter, args, shardings((state, kept)))

    def step(self) -> Program:
        """Return the program that advances the pictures in all slots by one evaluation."""
        form = sampler.FORMS[platform_of(self._target.mesh.devices.flat[0]).forward]
        by_half = self._target.mesh.shape["guidance"] == 2
        gather = partial(jax.lax.all_gather, axis_name="guidance", tiled=True)
        options = {"gather": gather} if by_half else {}
        only_prompts = self._target.predicted_halves == 1
        architecture, caching = self._architecture, self._target.caching
        with_mask = architecture.with_mask

        def step(
            weights: Weights,
            state: State,
            context: Context,
            work: Work[Array],
            kept: Kept,
            deep: sampler.Deep,
            residuals: controlling.Residuals | None,
        ) -> sampler.Stepped:
            computation = architecture.predict if caching is None else caching.predict
            predict = partial(computation.run, self._networks(weights))
            if caching is None:
                predict = sampler.uncached(predict)
            if only_prompts:
                context = jax.tree.map(lambda leaf: leaf[1:], context)
            if with_mask is not None:
                context = with_mask(context, kept.mask, kept.x0)
            if residuals is not None and architecture.control is not None:
                context = architecture.control.with_residuals(context, residuals)
            tasks, parts = unpack(work), kept if with_mask is None else None
            return sampler.step(form, predict, state, context, tasks, parts, deep=deep, **options)

        images, state = self._target.shapes.images, self._target.state_spec
        work = jax.tree.map(
            lambda part: spec(part.shape, part.dtype, self._by_image), no_work(images)
        )
        kept, deep = self._target.kept_spec, self._target.deep_spec
        residuals = self._target.residuals_spec
        args = (self._weights_spec("step"), state, self._context_spec, work, kept, deep, residuals)
        outputs = shardings((state, deep))
        return self._apart(step, args, outputs, self._options(), donated=(5,), spread=UNET_ROWS)

    def decode(self) -> Program:
        """Return the program that turns latents into pictures."""
        run = self._architecture.decode.run

        def decode(weights: Weights, latents: Array, slot_mask: Array) -> tuple[Array, Array]:
            decoder = partial(run, self._networks(weights))
            return looping.map_wanted(
                slot_mask, lambda i: sampler.decode(decoder, looping.take(latents, i))
            )

        latents = self._target.state_spec.latents
        args = (self._weights_spec("decode"), latents, self._column_spec(jnp.bool_))
        return self._apart(decode, args, (self._by_image,) * 2, spread=VAE_ROWS)

    def tiny_decode(self) -> Program:
        """Return the program that decodes with the tiny VAE, at any evaluation of a run."""
        computation = self._architecture.tiny_decode
        assert computation is not None
        run = computation.run
        factor = self._target.shapes.height // self._target.latents_shape[0]
        shrink = max(1, factor // PREVIEW_PIXELS)

        def decode(
            weights: Weights, state: State, coefficients: Array, slot_mask: Array
        ) -> tuple[Array, ...]:
            decoder = partial(run, self._networks(weights))

            def one(i: Array) -> tuple[Array, ...]:
                latents, value = looping.take(state.latents, i), looping.take(state.history[0], i)
                row = looping.take(coefficients, i)
                return sampler.decode_early(decoder, latents, value, (row[0], row[1]), shrink)

            return looping.map_wanted(slot_mask, one)

        images, state = self._target.shapes.images, self._target.state_spec
        coefficients = spec((images, 2), jnp.float32, self._by_image)
        weights = self._weights_spec("tiny_decode")
        args = (weights, state, coefficients, self._column_spec(jnp.bool_))
        return self._apart(decode, args, (self._by_image,) * 3, spread=VAE_ROWS)

    def check(self) -> Program:
        """Return the program of the safety checker."""
        checker = self._target.config.safety_checker
        assert checker is not None
        side = checker.vision.image_size

        def check(weights: Weights, images: Array, slot_mask: Array) -> Array:
            network = self._networks(weights)["safety_checker"]
            return looping.map_wanted(slot_mask, lambda i: network(looping.take_one(images, i))[0])

        images = spec((self._target.shapes.images, side, side, 3), jnp.uint8, self._by_image)
        args = (self._weights_spec("check"), images, self._column_spec(jnp.bool_))
        return self._apart(check, args, self._by_image)

    def clear(self) -> Program:
        """Return the program that writes zeros in place of residuals."""

        def clear(
            _: Weights, residuals: controlling.Residuals, slot_mask: Array
        ) -> controlling.Residuals:
            return controlling.clear(residuals, slot_mask)

        residuals = self._target.residuals_spec
        args = (self._weights_spec("clear"), residuals, self._column_spec(jnp.bool_))
        return self._apart(clear, args, shardings(residuals), donated=(1,))

    def hint(self) -> Program:
        """Return the program that reads the pictures that new ones follow."""
        control = self._architecture.control
        assert control is not None

        def hint(weights: Weights, hints: Array, images: Array, *columns: Array) -> Array:
            embed = partial(control.hint.run, self._networks(weights))
            return controlling.hint(embed, hints, images, *columns)

        shapes, hints = self._target.shapes, self._target.hints_spec
        pixels = shapes.images, shapes.height, shapes.width, 3
        images = spec(pixels, jnp.float32, self._by_image)
        columns = map(self._column_spec, (jnp.int32, jnp.float32, jnp.bool_, jnp.bool_))
        args = (self._weights_spec("hint"), hints, images, *columns)
        return self._apart(hint, args, shardings(hints), donated=(1,), spread=UNET_ROWS)

    def control(self) -> Program:
        """Return the program that computes the residuals of a network for pictures in slots."""
        control = self._architecture.control
        assert control is not None
        form = controlling.FORMS[platform_of(self._target.mesh.devices.flat[0]).forward]
        count = self._target.shapes.chunks

        def control_step(
            weights: Weights,
            residuals: controlling.Residuals,
            latents: Array,
            work: Work[Array],
            prompts: controlling.Prompts[Array],
            picture: tuple[Array, Array],
            hints: Array,
            scales: Array,
            slots: tuple[Array, Array],
        ) -> controlling.Residuals:
            networks, halves = self._networks(weights), len(residuals[0])
            adds, slot_mask = slots

            def condition_chunk(
                embeds: Embeds, prompts: controlling.Prompts[Array], room: int
            ) -> Context:
                inputs = *picture, jnp.zeros(len(prompts.types)), prompts.types
                context = control.condition.run(networks, embeds, *inputs)
                return self._with_chunks(context, room, prompts.chunks)

            def condition(prompts: controlling.Prompts[Array]) -> Context:
                return controlling.context(condition_chunk, prompts, count, halves)

            following = controlling.Following(
                latents, unpack(work), prompts, hints, scales[-halves:], adds
            )
            predict = partial(control.predict.run, networks)
            return form(predict, condition, residuals, following, slot_mask)

        images, target = self._target.shapes.images, self._target
        work = jax.tree.map(
            lambda part: spec(part.shape, part.dtype, self._by_image), no_work(images)
        )
        numbers = self._half_spec((), jnp.int32)
        types = spec((images, len(UNION_TYPES)), jnp.float32, self._by_image)
        texts = (self._embeds_spec,) * MAX_TEXTS
        prompts = controlling.Prompts(texts, numbers, numbers, types)
        picture = self._picture_spec
        flags = (self._column_spec(jnp.bool_),) * 2
        scales = self._half_spec((len(target.residuals_spec),), jnp.float32)
        latents, residuals = target.state_spec.latents, target.residuals_spec
        weights = self._weights_spec("control")
        args = (weights, residuals, latents, work, prompts, picture, target.hints_spec, scales)
        return self._apart(
            control_step,
            (*args, flags),
            shardings(residuals),
            self._options(),
            donated=(1,),
            spread=UNET_ROWS,
        )

    def _with_chunks(self, context: Context, room: int, chunks: Array) -> Context:
        """Give a context of one chunk room for more, where prompts can have several."""
        with_chunks = self._architecture.with_chunks
        if self._target.shapes.chunks == 1 or with_chunks is None:
            return context
        return with_chunks(context, room, chunks)

    @property
    def _picture_spec(self) -> tuple[Any, Any]:
        """The specs of a picture's size, and of which halves of guidance are negative."""
        size = spec((2,), jnp.float32, self._whole)
        return size, spec((2,), jnp.bool_, self._of_half)

    @property
    def prompts_spec(self) -> Any:
        """The shapes and shardings of all that the slots hold of prompts, in every size."""
        return (self._embeds_spec,) * MAX_TEXTS, self._context_spec

    def _networks(self, weights: Weights) -> dict[str, Any]:
        """Return networks with the given parameters, by name."""
        return {name: self._rebuild[name](leaves) for name, leaves in weights.items()}

    def _apart(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        outputs: Any,
        options: CompilerOptions | None = None,
        donated: tuple[int, ...] = (),
        spread: tuple[str, ...] = (),
    ) -> Program:
        """Return a program in which every device runs `function` on its share of the arguments.

        Functions with kernels need this, because XLA cannot divide a kernel among devices. So do
        loops over a device's own pictures. Networks that run in it spread the rows of pictures over
        the axes `spread`.
        """
        inputs = jax.tree.map(lambda array: array.sharding.spec, args)
        results = jax.tree.map(lambda sharding: sharding.spec, outputs)
        if self._target.mesh.shape["rows"] > 1:
            function = rows.spread(*spread)(function)
        # `check_vma` does not support kernels and loops of unknown length.
        mapped = jax.shard_map(
            function, mesh=self._target.mesh, in_specs=inputs, out_specs=results, check_vma=False
        )
        return Program(mapped, args, outputs, options, donated)

    def _weights_spec(self, name: str) -> dict[str, list[Any]]:
        return {
            network: self._leaves[network] for network in network_names(name, self._architecture)
        }

    def _scalar_spec(self, dtype: Any) -> Any:
        return spec((), dtype, self._whole)

    def _column_spec(self, dtype: Any) -> Any:
        """Return the spec of one number for each slot."""
        return spec((self._target.shapes.images,), dtype, self._by_image)

    def _half_spec(self, shape: tuple[int | None, ...], dtype: Any) -> Any:
        """Return the spec of an array of this shape for each half of guidance of each slot."""
        return spec((2, self._target.shapes.images, *shape), dtype, self._by_half)

    @cached_property
    def _tokens_spec(self) -> Tokens[Array]:
        counts = self._target.prompt_tokens
        return Tokens(
            ids=tuple(self._half_spec((count,), jnp.int32) for count in counts),
            weights=tuple(self._half_spec((count,), jnp.float32) for count in counts),
            zeroed=self._half_spec((), jnp.bool_),
            chunks=self._half_spec((), jnp.int32),
            clip_skip=self._half_spec((), jnp.int32),
        )

    @cached_property
    def _embeds_spec(self) -> Embeds:
        _, embeds, *_ = self.encode().args
        return embeds

    @cached_property
    def _context_spec(self) -> Context:
        _, context, *_ = self.condition().args
        return context

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
        of_control: whether it is a program of a network that guides the denoiser.
        exists: whether a target has it.
    """

    build: Callable[[Programs], Program]
    networks: Callable[[Architecture], tuple[str, ...]]
    sized: bool = True
    of_control: bool = False
    exists: Callable[[Target], bool] = lambda _: True


# The programs by name, the slowest to compile first.
PROGRAMS: dict[str, Entry] = {
    "step": Entry(Programs.step, lambda model: model.predict.networks),
    "decode": Entry(Programs.decode, lambda model: model.decode.networks),
    "tiny_decode": Entry(
        Programs.tiny_decode,
        lambda model: () if model.tiny_decode is None else model.tiny_decode.networks,
        exists=lambda target: target.config.architecture.tiny_decode is not None,
    ),
    "encode_image": Entry(Programs.encode_image, lambda model: model.encode_image.networks),
    "encode": Entry(Programs.encode, lambda model: model.encode.networks, sized=False),
    "condition": Entry(Programs.condition, lambda model: model.condition.networks, sized=False),
    "enter": Entry(Programs.enter, lambda _: ()),
    "noise": Entry(Programs.noise, lambda _: ()),
    "vary": Entry(Programs.vary, lambda _: ()),
    "check": Entry(
        Programs.check,
        lambda _: ("safety_checker",),
        sized=False,
        exists=lambda target: target.config.safety_checker is not None,
    ),
    "clear": Entry(Programs.clear, lambda _: (), exists=lambda target: target.controls),
    "control": Entry(Programs.control, lambda _: (CONTROL,), of_control=True),
    "hint": Entry(Programs.hint, lambda _: (CONTROL,), of_control=True),
}


def program_names(target: Target) -> list[str]:
    """Return the names of a target's programs, the slowest to compile first."""
    of_control = CONTROL in target.config.networks
    return [
        name
        for name, entry in PROGRAMS.items()
        if entry.of_control is of_control and entry.exists(target)
    ]


def network_names(program: str, architecture: Architecture) -> tuple[str, ...]:
    """Return the names of the networks whose parameters a program takes."""
    return PROGRAMS[program].networks(architecture)


def cache_key(name: str, target: Target) -> object:
    """Return the key under which a compiled program is cached.

    `ExecutableCache` adds this package's source and the devices. The scheduler is not in the key,
    because all schedulers run the same programs.
    """
    config, shapes, entry = target.config, target.shapes, PROGRAMS[name]
    family, used = config.family, entry.networks(config.architecture)
    networks = {
        name: network
        for name, network in config.networks.items()
        if name in used or family.needs(name)
    }
    sides = (shapes.height, shapes.width) if entry.sized else None
    model = family.class_name, family.name, networks, target.dtype.name
    tokens = config.tokens, shapes.chunks
    options = {"step_cache": target.step_cache, "controls": target.controls}
    modes = [option for option, is_on in options.items() if is_on and name == "step"]
    if target.quantization and not family.quantized.isdisjoint(used):
        modes.append(target.quantization)
    return name, *model, dict(target.mesh.shape), shapes.images, *tokens, sides, *modes


def _rebuilder(graphdef: Any, state: Any) -> Callable[[list[Array]], Any]:
    """Return a function that turns a list of parameters back into the module.

    Executables take parameters only as lists of leaves, because NNX's own tree definitions cannot
    be stored in the executable cache.
    """
    structure = jax.tree.structure(state)
    return lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(structure, leaves))
