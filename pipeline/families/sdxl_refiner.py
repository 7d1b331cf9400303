"""The refiner of Stable Diffusion XL (Podell et al. 2023, section 2.5): a UNet for the last steps.

It goes on from the latents of the base model, or from a picture. The base model's second text
encoder reads the prompts, and in place of the target size a score of the picture's beauty
conditions the UNet.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import Array

from pipeline.families import latent_unet, sdxl
from pipeline.families.sdxl import SDXL

TEXT_ENCODERS = ("text_encoder_2",)
# The defaults of diffusers: the score to draw for, and that to keep away from.
AESTHETIC_SCORE, NEGATIVE_AESTHETIC_SCORE = 6.0, 2.5


def time_ids(size: Array, is_negative: Array) -> Array:
    """Return the add_time_ids `[H, 5]` float32 of a whole picture, in pixels.

    They are the original size, the top and left of the crop, and the score.
    """
    score = jnp.where(is_negative, NEGATIVE_AESTHETIC_SCORE, AESTHETIC_SCORE)
    sizes = jnp.broadcast_to(jnp.append(size, jnp.zeros(2)), (len(score), 4))
    return jnp.concatenate([sizes, score[:, None]], axis=1)


SDXL_REFINER = replace(
    SDXL,
    name="Stable Diffusion XL refiner",
    class_name=sdxl.FROM_PICTURES,
    other_class_names=(),
    recognise=sdxl.is_refiner,
    text_encoders=tuple(part for part in SDXL.text_encoders if part.name in TEXT_ENCODERS),
    ignored=(*SDXL.ignored, "text_encoder", "tokenizer"),
    aligned_sigmas=None,
    check=partial(sdxl.check, numbers=5),
    architecture=partial(
        latent_unet.architecture, condition=partial(sdxl.condition_on, time_ids), needs_image=True
    ),
)
