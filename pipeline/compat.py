"""The calls of diffusers' Flax pipelines, which its version 0.40 removed, on this sampler.

A program only has to replace its import from diffusers:

    from pipeline.compat import FlaxStableDiffusionPipeline, FlaxStableDiffusionXLPipeline

The same keys give the same pictures. The interface is that of diffusers 0.39,
https://github.com/huggingface/diffusers; the programs in examples/ use it.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import EllipsisType
from typing import Any, ClassVar, NamedTuple, Self, cast

import jax
import jax.numpy as jnp
import numpy as np
from diffusers.utils import pil_utils
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.typing import ArrayLike, DTypeLike
from PIL import Image

from pipeline.checkpoints.source import fetch
from pipeline.errors import CheckpointError, InputError
from pipeline.families import FamilyReader, latent_unet
from pipeline.families.family import Config, image_size
from pipeline.images import inputs, moderation
from pipeline.models.safety_checker import SafetyChecker
from pipeline.platforms import network_dtype, platform_of
from pipeline.request import check_count
from pipeline.runtime import sampler
from pipeline.runtime.loading import find_networks, load_networks, load_tokenizers, module_factories
from pipeline.runtime.work import Task
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.stepping import add_noise
from pipeline.schedulers.table import REMEMBERED, Schedule, State, Table
from pipeline.text.tokenizer import Tokenizers

# Branches with the main branch's weights in Flax's own format, which is not read here.
FLAX_BRANCHES = ("flax", "bf16")
# `prepare_inputs` makes the sides of pictures multiples of this, as diffusers does.
MULTIPLE = 32
Pictures = Image.Image | list[Image.Image]

Params = Mapping[str, Any]

log = logging.getLogger(__name__)


class Output(NamedTuple):
    """The result of a call.

    Attributes:
        images: `[batch, H, W, 3]` float32 in 0..1, or latents if the call asked for them. With
            `jit` there is an axis of devices in front.
        nsfw_content_detected: whether the safety checker flagged each picture, with the pictures
            of all devices in a row; None without a safety checker.
    """

    images: Array | np.ndarray
    nsfw_content_detected: list[bool] | None = None


class FlaxDiffusionPipeline:
    """The base class of the pipelines.

    `from_pretrained` returns a pipeline of the class that fits the checkpoint. A pipeline holds
    only the safety checker's parameters; all others are an argument of every call.

    Attributes:
        model: the class of diffusers' pipeline for the checkpoints that it draws with.
        takes_mask: whether their UNet takes a mask.
        static: positions, counted from 0, of the arguments of `_generate` that are not arrays.
    """

    model: ClassVar = ""
    takes_mask: ClassVar = False
    static: ClassVar = (3, 4, 5, 9)

    def __init__(self, config: Config, tokenizers: Tokenizers, checker: SafetyChecker | None):
        self._config = config
        self._tokenizers = tokenizers
        self._factories = module_factories(config)
        self._factories.pop("safety_checker", None)
        self._check = None if checker is None else _on_first_device(checker)
        self._on_one_device = jax.jit(self._generate, static_argnums=self.static)
        self._on_each_device = jax.pmap(self._generate, static_broadcasted_argnums=self.static)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        revision: str | None = None,
        dtype: DTypeLike | None = None,
        variant: str | None = None,
        from_pt: bool = False,
        split_head_dim: bool = False,
        use_memory_efficient_attention: bool = False,
        safety_checker: EllipsisType | None = ...,
    ) -> tuple[Self, dict[str, Any]]:
        """Load a checkpoint; nothing is compiled yet.

        Args:
            model: a folder in diffusers' layout, or an id on the Hub.
            revision: a branch, tag or commit on the Hub. "flax" and "bf16", which have weights
                in Flax's own format, mean the main branch.
            dtype: dtype of the parameters; float32 where None.
            variant: ignored. Weights are read from safetensors files in float32, or in float16
                if a dtype of 16 bits is asked for and the checkpoint has them.
            from_pt: ignored, as `variant`.
            split_head_dim: ignored. Attention is computed in the way that suits the device.
            use_memory_efficient_attention: ignored, as `split_head_dim`.
            safety_checker: None leaves out the checkpoint's safety checker.

        Returns:
            The pipeline, and its parameters: a nested dict of NumPy arrays, with each network
            under its folder's name. Pictures are computed in the parameters' dtype, on CPUs
            always in float32. The entry "scheduler" is an empty dict, because a schedule follows
            from the checkpoint and the number of steps.

        Raises:
            CheckpointError: if the checkpoint is missing, damaged, not supported, or for another
                class than this one.
            InputError: if dtype or safety_checker is not supported.
        """
        if safety_checker not in (None, ...):
            raise InputError("safety_checker is given; pass None or leave it out")
        has_checker = safety_checker is ...
        if revision in FLAX_BRANCHES:
            log.warning("%s: the main branch is read in place of %r", model, revision)
            revision = None
        dtype = network_dtype(jnp.float32 if dtype is None else dtype, jax.devices())
        half = dtype.itemsize == 2
        reader = FamilyReader(safety_checker=has_checker)
        checkpoint = fetch(str(model), revision, reader, prefer_fp16=half)
        config = checkpoint.config
        if config.family.class_name not in KINDS:
            raise CheckpointError(
                f"{model}: is a {config.family.name}, for which diffusers had no Flax pipeline; use"
                " SDXLPipeline"
            )
        kind: Any = KINDS[config.family.class_name] if cls is FlaxDiffusionPipeline else cls
        if (kind.model, kind.takes_mask) != (config.family.class_name, config.takes_mask):
            right = (
                FlaxStableDiffusionInpaintPipeline
                if config.takes_mask
                else KINDS[config.family.class_name]
            )
            raise CheckpointError(f"{model}: is for {right.__name__}, not for {cls.__name__}")
        tokenizers = load_tokenizers(checkpoint)
        # They stay on the host, so that they take no memory that `replicate` needs.
        networks = load_networks(find_networks(checkpoint, dtype), cast(Any, np.asarray))
        checker = networks.pop("safety_checker", None)
        params = {name: _to_dict(network, dtype) for name, network in networks.items()}
        return kind(config, tokenizers, checker), {**params, "scheduler": {}}

    def __call__(self, *arguments: Any, **options: Any) -> Output:
        """Draw a picture for each prompt; the subclasses define the arguments."""
        raise NotImplementedError

    def prepare_inputs(self, prompt: str | list[str]) -> Array:
        """Return the prompts' ids, int32: `[B, L]`, or `[B, 2, L]` for the two encoders of SDXL."""
        if not isinstance(prompt, str | list):
            raise InputError(f"prompt is {type(prompt).__name__}; expected a str or a list of str")
        ids, _ = self._tokenizers.tokenize([prompt] if isinstance(prompt, str) else prompt)
        return jnp.asarray(ids.reshape(len(ids), *self._ids_row()))

    @staticmethod
    def numpy_to_pil(images: ArrayLike) -> list[Image.Image]:
        """Convert pictures `[n, H, W, 3]`, or one `[H, W, 3]`, in 0..1 to PIL pictures."""
        return pil_utils.numpy_to_pil(np.asarray(images))

    def _draw(self, jit: bool, **arguments: Any) -> Array:
        """Run `_generate`, compiled, on one device, or with `jit` on each device.

        `arguments` are those of `_generate`, in its order.
        """
        params, scale = arguments["params"], np.asarray(arguments["guidance_scale"], np.float32)
        if jit and scale.ndim == 0:
            scale = np.full(np.shape(arguments["prompt_ids"])[:1], scale)
        size = image_size(self._config, arguments["height"], arguments["width"])
        arguments |= {
            "params": {name: params[name] for name in self._factories if name in params},
            "height": size[0],
            "width": size[1],
            "guidance_scale": scale,
        }
        if jit:
            arrays = enumerate(arguments.items())
            _check_devices(**{name: value for i, (name, value) in arrays if i not in self.static})
        generate = self._on_each_device if jit else self._on_one_device
        return generate(*arguments.values())

    def _generate(
        self,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: ArrayLike = 7.5,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        return_latents: bool = False,
    ) -> Array:
        """Draw on one device: return pictures `[B, H, W, 3]`, or latents `[B, C, h, w]`.

        Some programs map this method themselves (`jax.pmap(pipeline._generate, ...)`), so the
        order of its arguments is part of the interface.
        """
        networks = self._networks(params)
        size = image_size(self._config, height, width)
        ids = self._checked_ids("prompt_ids", prompt_ids)
        schedule = self._schedule(num_inference_steps)
        latents = self._noise(len(ids), size, prng_seed, latents) * schedule.init_noise_sigma
        # One evaluation per step: PNDM's first step takes two, but its last one is left out, as
        # diffusers 0.39 does.
        part = schedule.part(0, num_inference_steps)
        final_latents = self._denoised(
            networks, ids, neg_prompt_ids, size, prng_seed, part, guidance_scale, latents
        )
        if return_latents:
            return final_latents.transpose(0, 3, 1, 2)  # [B, C, h, w]
        return self._config.architecture.decode.run(networks, final_latents)

    def _schedule(self, steps: int, strength: float = 1.0) -> Schedule:
        """Return the schedule of a run, for a share of the steps."""
        config = self._config.scheduler
        check_count("num_inference_steps", steps, 1, config.num_train_timesteps)
        return make_schedule(config, steps, strength=strength)

    def _denoised(
        self,
        networks: dict[str, Any],
        ids: Array,
        neg_prompt_ids: ArrayLike | None,
        size: tuple[int, int],
        key: Any,
        schedule: Schedule,
        guidance_scale: ArrayLike,
        latents: Array,
        masked: tuple[Array, Array] | None = None,
    ) -> Array:
        """Return latents `[B, h, w, C]` after all evaluations of a schedule.

        `masked` are the mask and the masked latents of networks that take them; see
        `Architecture.with_mask`.
        """
        architecture = self._config.architecture
        negative, zero = self._negative(len(ids), neg_prompt_ids)
        both_ids = jnp.stack([negative, ids])
        zeroed = jnp.stack([jnp.full(len(ids), zero), jnp.zeros(len(ids), bool)])
        guidance = jnp.broadcast_to(_scalar("guidance_scale", guidance_scale), len(ids))
        rows = [*jnp.moveaxis(both_ids, 2, 0)]  # of each text encoder
        embeds = architecture.encode.run(networks, rows, zeroed)
        picture = jnp.array(size, jnp.float32), jnp.array([True, False])
        context = architecture.condition.run(networks, embeds, *picture, guidance)
        if masked is not None and architecture.with_mask is not None:
            context = architecture.with_mask(context, *masked)
        predict = sampler.uncached(partial(architecture.predict.run, networks))
        tasks = partial(
            self._tasks,
            jax.tree.map(jnp.asarray, schedule.table),
            jnp.asarray(schedule.noised, jnp.float32),
            jax.random.bits(key, (len(ids),), jnp.uint32),
            guidance,
        )
        return jax.lax.fori_loop(
            0,
            len(schedule.timesteps),
            lambda i, state: sampler.step(sampler.by_slots, predict, state, context, tasks(i))[0],
            State(latents, jnp.zeros((REMEMBERED, *latents.shape))),
        ).latents

    def _tasks(
        self, table: Table[Array], noised: Array, seeds: Array, guidance: Array, i: Array
    ) -> Task[Array]:
        """Return evaluation `i` of B pictures, which share a table; see `Task`."""
        count = len(seeds)
        row = jax.tree.map(lambda x: jnp.broadcast_to(x[i], (count, *x.shape[1:])), table)
        is_guided = (guidance > 1) & (not self._config.architecture.embeds_guidance)
        return Task(
            row,
            guidance_scale=guidance,
            guidance_rescale=jnp.zeros(count),
            noised=jnp.broadcast_to(noised[i + 1], (count, 2)),
            seed=seeds,
            evaluation=jnp.broadcast_to(i, count),
            halves=1 + is_guided.astype(jnp.int32),
            shallow=jnp.zeros(count, bool),
        )

    def _checked(self, images: Array) -> Output:
        """Blur the pictures `[..., H, W, 3]` that the safety checker flags."""
        config = self._config.safety_checker
        if self._check is None or config is None:
            return Output(images)
        output_images = np.array(images).reshape(-1, *images.shape[-3:])  # a writable copy
        pixels = np.rint(output_images * 255).astype(np.uint8)
        flagged = np.asarray(self._check(moderation.prepare([*pixels], config)))
        for i in np.flatnonzero(flagged):
            output_images[i] = moderation.blur(pixels[i]) / np.float32(255)
        return Output(output_images.reshape(images.shape), flagged.tolist())

    def _networks(self, params: Params) -> dict[str, Any]:
        missing_names = [name for name in self._factories if name not in params]
        if missing_names:
            raise InputError(
                f"params lack {missing_names[0]!r}; pass all that from_pretrained returned"
            )
        return {
            name: _set_params(name, make, _suited(params[name]))
            for name, make in self._factories.items()
        }

    def _checked_ids(self, name: str, values: ArrayLike, batch: int | None = None) -> Array:
        """Return ids as `[B, E, L]` int32, for E text encoders."""
        ids = jnp.asarray(values)
        row = self._ids_row()
        if ids.shape[1:] != row or batch not in (None, len(ids)):
            right = ", ".join(map(str, ("B" if batch is None else batch, *row)))
            raise InputError(
                f"{name} are {list(ids.shape)} on each device; expected [{right}], from"
                " prepare_inputs"
            )
        return ids.reshape(len(ids), -1, self._tokenizers.length).astype(jnp.int32)

    def _ids_row(self) -> tuple[int, ...]:
        """Return the shape of one prompt's ids: `[L]`, or `[E, L]` for E text encoders."""
        encoders, length = len(self._tokenizers.each), self._tokenizers.length
        return (length,) if encoders == 1 else (encoders, length)

    def _negative(self, batch: int, values: ArrayLike | None) -> tuple[Array, bool]:
        """Return negative ids `[B, E, L]`, and whether to replace their embeddings with zeros.

        Without a negative prompt the ids are those of a blank prompt. If the family then uses zeros
        as embeddings, so do these calls, whatever the checkpoint says.
        """
        if values is not None:
            return self._checked_ids("neg_prompt_ids", values, batch), False
        blank, _ = self._tokenizers.tokenize([""] * batch)
        return jnp.asarray(blank), self._config.family.zeros_for_empty_prompt

    def _noise(
        self, batch: int, size: tuple[int, int], key: Any, latents: ArrayLike | None
    ) -> Array:
        """Return standard normal noise `[B, h, w, C]` float32, or the given latents in that order.

        Latents are given in diffusers' order, `[B, C, h, w]`. Noise is drawn in the same order,
        with one key for the whole batch.
        """
        height, width, channels = self._config.architecture.latents_shape(*size)
        shape = (batch, channels, height, width)
        if latents is None:
            latents = jax.random.normal(key, shape, jnp.float32)
        latents = jnp.asarray(latents)
        if latents.shape != shape:
            raise InputError(
                f"latents are {list(latents.shape)} on each device; expected {list(shape)}"
            )
        return latents.astype(jnp.float32).transpose(0, 2, 3, 1)


class FlaxStableDiffusionPipeline(FlaxDiffusionPipeline):
    """The pipeline of Stable Diffusion 1 and 2."""

    model = "StableDiffusionPipeline"

    def __call__(
        self,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: ArrayLike = 7.5,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        *,
        jit: bool = False,
    ) -> Output:
        """Draw a picture for each prompt; a new shape or number of steps compiles.

        The arguments are those of FlaxStableDiffusionXLPipeline in another order, without
        `output_type`. Ids are `[B, L]`. Without `neg_prompt_ids` the negative prompt is blank. A
        picture that the safety checker flags is blurred.
        """
        return self._checked(
            self._draw(
                jit,
                prompt_ids=prompt_ids,
                params=params,
                prng_seed=prng_seed,
                num_inference_steps=num_inference_steps,
                height=height,
                width=width,
                guidance_scale=guidance_scale,
                latents=latents,
                neg_prompt_ids=neg_prompt_ids,
                return_latents=False,
            )
        )


class FlaxStableDiffusionXLPipeline(FlaxDiffusionPipeline):
    """The pipeline of Stable Diffusion XL."""

    model = "StableDiffusionXLPipeline"

    def __call__(
        self,
        prompt_ids: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        guidance_scale: ArrayLike = 7.5,
        height: int | None = None,
        width: int | None = None,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        *,
        output_type: str | None = None,
        jit: bool = False,
    ) -> Output:
        """Draw a picture for each prompt; a new shape or number of steps compiles.

        With `jit` every array, those in `params` included, has an axis of D devices in front,
        which flax's `replicate` and `shard` add. Every device draws its part.

        Args:
            prompt_ids: `[B, 2, L]`, from `prepare_inputs`.
            params: the parameters from `from_pretrained`.
            prng_seed: a key; with `jit` one for each device.
            num_inference_steps: the number of steps in the schedule.
            guidance_scale: 1 and below means no guidance. A number, or with `jit` an array `[D]`
                or `[D, 1]`.
            height: in pixels; the checkpoint's own where None.
            width: in pixels; the checkpoint's own where None.
            latents: `[B, C, h, w]` float32 standard normal noise to start from, instead of noise
                drawn from the key.
            neg_prompt_ids: `[B, 2, L]`; where None the negative embeddings are zeros.
            output_type: "latent" for latents `[B, C, h, w]` float32 instead of pictures.
            jit: whether to draw on several devices. Without it the program is compiled as well,
                for one device.

        Raises:
            InputError: if an argument cannot be used; the message names it.
        """
        return Output(
            self._draw(
                jit,
                prompt_ids=prompt_ids,
                params=params,
                prng_seed=prng_seed,
                num_inference_steps=num_inference_steps,
                height=height,
                width=width,
                guidance_scale=guidance_scale,
                latents=latents,
                neg_prompt_ids=neg_prompt_ids,
                return_latents=output_type == "latent",
            )
        )


class FlaxStableDiffusionImg2ImgPipeline(FlaxDiffusionPipeline):
    """The pipeline of Stable Diffusion 1 and 2 from a picture to a picture."""

    model = "StableDiffusionPipeline"
    static = (4, 5, 6, 7)

    def prepare_inputs(  # type: ignore[override]  # as in diffusers
        self, prompt: str | list[str], image: Pictures
    ) -> tuple[Array, Array]:
        """Return the prompts' ids `[B, L]`, and pictures `[n, 3, H, W]` float32 in -1..1."""
        return super().prepare_inputs(prompt), _prepared("image", image)

    def get_timestep_start(self, num_inference_steps: int, strength: float) -> int:
        """Return the number of steps that are left out."""
        return num_inference_steps - min(int(num_inference_steps * strength), num_inference_steps)

    def __call__(
        self,
        prompt_ids: ArrayLike,
        image: ArrayLike,
        params: Params,
        prng_seed: Any,
        strength: float = 0.8,
        num_inference_steps: int = 50,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: ArrayLike = 7.5,
        noise: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        return_dict: bool = True,
        jit: bool = False,
    ) -> Output:
        """Redraw a picture for each prompt; a new shape, strength or number of steps compiles.

        The other arguments are those of FlaxStableDiffusionPipeline.

        Args:
            image: `[B, 3, H, W]` in -1..1, from `prepare_inputs`.
            strength: the share of the steps that are taken, above 0 to 1.
            noise: `[B, C, h, w]` float32 standard normal noise, instead of noise drawn from the
                key.
            return_dict: ignored; the result is a named tuple.

        Raises:
            InputError: if an argument cannot be used; the message names it.
        """
        pictures = self._draw(
            jit,
            prompt_ids=prompt_ids,
            image=image,
            params=params,
            prng_seed=prng_seed,
            start_timestep=self.get_timestep_start(num_inference_steps, strength),
            num_inference_steps=num_inference_steps,
            height=height,
            width=width,
            guidance_scale=guidance_scale,
            noise=noise,
            neg_prompt_ids=neg_prompt_ids,
        )
        return self._checked(pictures)

    def _generate(  # type: ignore[override]  # as in diffusers
        self,
        prompt_ids: ArrayLike,
        image: ArrayLike,
        params: Params,
        prng_seed: Any,
        start_timestep: int,
        num_inference_steps: int,
        height: int,
        width: int,
        guidance_scale: ArrayLike,
        noise: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
    ) -> Array:
        """Draw on one device: return pictures `[B, H, W, 3]`."""
        networks, size = self._networks(params), (height, width)
        ids = self._checked_ids("prompt_ids", prompt_ids)
        pixels = jnp.asarray(image)
        if pixels.shape != (len(ids), 3, *size):
            raise InputError(
                f"image is {list(pixels.shape)} on each device; expected {[len(ids), 3, *size]}"
            )
        step_count = num_inference_steps - start_timestep
        # Half a step more, so that no rounding loses one.
        share = min((step_count + 0.5) / num_inference_steps, 1.0) if step_count else 0.0
        schedule = self._schedule(num_inference_steps, share).part(0, step_count)
        unit = self._noise(len(ids), size, prng_seed, noise)
        x0 = _sampled(networks, pixels, prng_seed)
        latents = add_noise(x0, unit, jnp.asarray(schedule.noised[0], jnp.float32))
        final_latents = self._denoised(
            networks, ids, neg_prompt_ids, size, prng_seed, schedule, guidance_scale, latents
        )
        return self._config.architecture.decode.run(networks, final_latents)


class FlaxStableDiffusionInpaintPipeline(FlaxDiffusionPipeline):
    """The pipeline of Stable Diffusion 1 and 2's models for inpainting."""

    model = "StableDiffusionPipeline"
    takes_mask = True
    static = (5, 6, 7)

    def prepare_inputs(  # type: ignore[override]  # as in diffusers
        self, prompt: str | list[str], image: Pictures, mask: Pictures
    ) -> tuple[Array, Array, Array]:
        """Return the prompts' ids `[B, L]`, masked pictures and masks.

        The pictures are `[n, 3, H, W]` float32 in -1..1, the masks `[n, 1, H, W]` float32, 1 where
        a picture is redrawn.
        """
        pixels = _prepared("image", image)
        masks = np.stack([_prepared_mask(picture) for picture in _listed("mask", mask)])[:, None]
        grey = jnp.where(jnp.asarray(masks < inputs.REDRAWN), pixels, 0)  # in the masked parts
        return super().prepare_inputs(prompt), grey, jnp.asarray(masks)

    def __call__(
        self,
        prompt_ids: ArrayLike,
        mask: ArrayLike,
        masked_image: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int = 50,
        height: int | None = None,
        width: int | None = None,
        guidance_scale: ArrayLike = 7.5,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
        return_dict: bool = True,
        jit: bool = False,
    ) -> Output:
        """Redraw the masked part of a picture for each prompt; a new shape compiles.

        The other arguments are those of FlaxStableDiffusionPipeline.

        Args:
            mask: `[B, 1, H, W]`, from `prepare_inputs`; of any size.
            masked_image: `[B, 3, H, W]` in -1..1, likewise.
            return_dict: ignored; the result is a named tuple.

        Raises:
            InputError: if an argument cannot be used; the message names it.
        """
        pictures = self._draw(
            jit,
            prompt_ids=prompt_ids,
            mask=mask,
            masked_image=masked_image,
            params=params,
            prng_seed=prng_seed,
            num_inference_steps=num_inference_steps,
            height=height,
            width=width,
            guidance_scale=guidance_scale,
            latents=latents,
            neg_prompt_ids=neg_prompt_ids,
        )
        return self._checked(pictures)

    def _generate(  # type: ignore[override]  # as in diffusers
        self,
        prompt_ids: ArrayLike,
        mask: ArrayLike,
        masked_image: ArrayLike,
        params: Params,
        prng_seed: Any,
        num_inference_steps: int,
        height: int,
        width: int,
        guidance_scale: ArrayLike,
        latents: ArrayLike | None = None,
        neg_prompt_ids: ArrayLike | None = None,
    ) -> Array:
        """Draw on one device: return pictures `[B, H, W, 3]`."""
        networks, size = self._networks(params), (height, width)
        ids = self._checked_ids("prompt_ids", prompt_ids)
        schedule = self._schedule(num_inference_steps)
        noise = self._noise(len(ids), size, prng_seed, latents)
        pixels, full_mask = jnp.asarray(masked_image), jnp.asarray(mask)
        pixels = jax.image.resize(pixels, (*pixels.shape[:2], *size), "bicubic")
        full_mask = jax.image.resize(full_mask, (*full_mask.shape[:2], *size), "nearest")
        key, mask_key = jax.random.split(prng_seed)
        hidden = _sampled(networks, pixels, mask_key)
        small_mask = jax.image.resize(
            full_mask, (*full_mask.shape[:2], *noise.shape[1:3]), "nearest"
        )
        final_latents = self._denoised(
            networks,
            ids,
            neg_prompt_ids,
            size,
            key,
            schedule.part(0, num_inference_steps),
            guidance_scale,
            noise * schedule.init_noise_sigma,
            (small_mask.transpose(0, 2, 3, 1), hidden),
        )
        return self._config.architecture.decode.run(networks, final_latents)


# The pipeline of each family, by the class of diffusers' pipeline.
KINDS: dict[str, type[FlaxDiffusionPipeline]] = {
    kind.model: kind for kind in (FlaxStableDiffusionPipeline, FlaxStableDiffusionXLPipeline)
}


def _suited(params: Params) -> Params:
    """Convert parameters to float32 on CPUs, most of which are slower in bfloat16."""
    if platform_of(jax.devices()[0]).is_accelerator:
        return params
    converted_params = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, params
    )
    return jax.lax.optimization_barrier(converted_params)  # otherwise XLA converts in every step


def _on_first_device(checker: SafetyChecker) -> Callable[[np.ndarray], Array]:
    """Return the safety checker as a function of pictures `[B, S, S, 3]`, which returns `[B]`.

    It compiles for each new number of pictures.
    """
    graphdef, state = nnx.split(checker)
    weights = jax.device_put(state, jax.local_devices()[0])
    run = jax.jit(lambda weights, pixels: nnx.merge(graphdef, weights)(pixels))
    return partial(run, weights)


def _scalar(name: str, value: ArrayLike) -> Array:
    array = jnp.asarray(value, jnp.float32)
    if array.size != 1:
        raise InputError(f"{name} is {list(array.shape)} on each device; expected one number")
    return array.reshape(())


def _check_devices(**arguments: Any) -> None:
    """Raise InputError unless every array has the same leading axis of devices as the prompts."""
    devices = np.shape(arguments["prompt_ids"])[0]
    if devices > jax.local_device_count():
        device_count = jax.local_device_count()
        raise InputError(f"prompt_ids are for {devices} devices; there are {device_count}")
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        if np.shape(leaf)[:1] != (devices,):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InputError(
                f"{name} is {list(np.shape(leaf))}; with jit=True expected [{devices}, ...], an"
                " axis of devices in front: see flax.jax_utils.replicate and"
                " flax.training.common_utils.shard"
            )


def _to_dict(network: nnx.Module, dtype: DTypeLike) -> dict[str, Any]:
    """Return the parameters in a dtype, in nested dicts by module names.

    List indices are names too. Norms' parameters have the dtype of the others, as in diffusers.
    """
    flat = nnx.to_flat_state(nnx.state(network, nnx.Param))
    return unflatten_dict(
        {_names(path): param.get_value().astype(dtype, copy=False) for path, param in flat}
    )


def _set_params(
    name: str, make: Callable[[DTypeLike], nnx.Module], params: Mapping[str, Any]
) -> nnx.Module:
    """Return a network that has these parameters and computes in their dtype.

    Args:
        name: the network's name, for messages.
        make: makes the network in a dtype; only its shapes are used.
        params: the parameters in the form that `to_dict` returns.

    Raises:
        InputError: if a parameter is unknown, missing or of the wrong shape or dtype; the message
            names it.
    """
    flat_params: dict[tuple[str, ...], Any] = dict(flatten_dict(params))
    dtypes = {jnp.dtype(leaf.dtype) for leaf in flat_params.values()}
    if dtypes not in ({jnp.dtype(jnp.float32)}, {jnp.dtype(jnp.bfloat16)}):
        dtype_names = " and ".join(sorted(map(str, dtypes)))
        right = "one dtype for all, float32 or bfloat16"
        raise InputError(f"params[{name!r}] are {dtype_names}; expected {right}")
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(*dtypes)))
    flat = dict(nnx.to_flat_state(state))
    for path, param in flat.items():
        names = _names(path)
        value = flat_params.pop(names, None)
        if value is None or value.shape != param.shape:
            fault = "is missing" if value is None else f"is {list(value.shape)}"
            raise InputError(
                f"params[{name!r}]: {'.'.join(names)} {fault}; expected {list(param.shape)} on each"
                " device: do they belong to another model, or have the wrong number of axes?"
            )
        flat[path] = param.replace(value.astype(param.dtype, copy=False))
    for names in flat_params:
        where = f"params[{name!r}]: {'.'.join(names)}"
        raise InputError(f"{where} is unknown; does it belong to another model?")
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def _names(path: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(str(part) for part in path)


def _sampled(networks: dict[str, Any], pixels: Array, key: Any) -> Array:
    """Return latents `[B, h, w, C]` drawn from the VAE's posterior of pictures `[B, 3, H, W]`."""
    vae = networks["vae"]
    mean, logvar = vae.encode(pixels.transpose(0, 2, 3, 1))
    z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
    return latent_unet.scale(vae.config, z)


def _listed(name: str, value: Pictures) -> list[Image.Image]:
    pictures = [value] if isinstance(value, Image.Image) else value
    if not isinstance(pictures, list) or not all(
        isinstance(picture, Image.Image) for picture in pictures
    ):
        raise InputError(f"{name} is {type(value).__name__}; expected a PIL picture, or a list")
    return pictures


def _sides(image: Image.Image) -> tuple[int, int]:
    """Return a picture's width and height, rounded down to multiples."""
    return image.width // MULTIPLE * MULTIPLE, image.height // MULTIPLE * MULTIPLE


def _prepared(name: str, pictures: Pictures) -> Array:
    """Return pictures `[n, 3, H, W]` float32 in -1..1."""
    scaled_pictures = [
        picture.convert("RGB").resize(_sides(picture), Image.Resampling.LANCZOS)
        for picture in _listed(name, pictures)
    ]
    pixels = np.stack([np.asarray(picture, np.float32) / 255 for picture in scaled_pictures])
    return 2 * jnp.asarray(pixels).transpose(0, 3, 1, 2) - 1


def _prepared_mask(mask: Image.Image) -> np.ndarray:
    """Return a mask `[H, W]` float32, 1 where a picture is redrawn."""
    grey = np.asarray(mask.resize(_sides(mask)).convert("L"), np.float32) / 255
    return (grey >= inputs.REDRAWN).astype(np.float32)
