"""The calls of diffusers' Flax pipelines that begin with a picture; see `flax_pipelines`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from PIL import Image

from pipeline.compat.flax_pipelines import FlaxDiffusionPipeline, Output, Params
from pipeline.errors import InputError
from pipeline.families import latent_unet
from pipeline.images import inputs
from pipeline.schedulers.stepping import add_noise

# `prepare_inputs` makes the sides of pictures multiples of this, as diffusers does.
MULTIPLE = 32
Pictures = Image.Image | list[Image.Image]


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
        return super().prepare_inputs(prompt), _hidden(pixels, masks), jnp.asarray(masks)

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


def _sampled(networks: dict[str, Any], pixels: Array, key: Any) -> Array:
    """Return latents `[B, h, w, C]` drawn from the VAE's posterior of pictures `[B, 3, H, W]`."""
    vae = networks["vae"]
    mean, logvar = vae.encode(pixels.transpose(0, 2, 3, 1))
    z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(key, mean.shape)
    return latent_unet.scale(vae.config, z)


def _hidden(pixels: Array, masks: np.ndarray) -> Array:
    """Return pictures `[n, 3, H, W]` with their masked parts in grey."""
    return jnp.where(jnp.asarray(masks < inputs.REDRAWN), pixels, 0)


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
