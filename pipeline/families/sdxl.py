"""Stable Diffusion XL (Podell et al. 2023): two text encoders, a UNet and a VAE.

The pooled prompt and the picture's size condition the UNet too.

The refiner (section 2.5) is a UNet for the last steps. It goes on from the latents of the base
model, or from a picture. The base model's second text encoder reads the prompts, and in place of
the target size a score of the picture's beauty conditions the UNet.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.families import latent_unet
from pipeline.families.family import Config, Family, Network
from pipeline.families.halves import joined, split
from pipeline.families.latent_unet import Embeds, Networks
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.clip_config import read_text_encoder
from pipeline.models.shapes import text_encoder_of, unet_of
from pipeline.models.unet import Context, UNet, int8_layers
from pipeline.models.unet_config import read_unet
from pipeline.strict_json import StrictJson

# The class of diffusers' pipelines from pictures: of the refiner, and of whole models.
FROM_PICTURES = "StableDiffusionXLImg2ImgPipeline"
# The refiner's defaults in diffusers: the score to draw for, and that to keep away from.
AESTHETIC_SCORE, NEGATIVE_AESTHETIC_SCORE = 6.0, 2.5


def is_refiner(folder: Path) -> bool:
    """Return whether a checkpoint is a refiner: it has no first text encoder."""
    values = StrictJson(folder / "model_index.json").values
    return values.get("_class_name") == FROM_PICTURES and values.get("text_encoder") in (
        None,
        [None, None],
    )


def check(file: Path, config: Config, numbers: int = 6) -> None:
    """Raise CheckpointError if the UNet does not fit the other networks.

    `numbers` is the number of add_time_ids.
    """
    latent_unet.check(file, config)
    addition = config.networks["unet"].addition
    latent_unet.check_unet_size(
        file,
        "projection_class_embeddings_input_dim",
        addition.input_dim,
        config.networks["text_encoder_2"].projection_dim + numbers * addition.time_embed_dim,
        f"text_encoder_2's projection_dim + {numbers} * addition_time_embed_dim",
    )


def condition_on(
    numbers: Callable[[Array, Array], Array],
    networks: Networks,
    embeds: Embeds,
    size: Array,
    is_negative: Array,
    guidance: Array,
) -> Context:
    """Return the UNet's context for prompts, `[H, B, ...]`; see `Architecture.condition`.

    `numbers` makes the add_time_ids `[H, N]` float32 of a picture's size and the halves.
    """
    hidden, pooled = embeds
    assert pooled is not None  # the second text encoder has a projection
    halves, images = hidden.shape[:2]
    time_ids = numbers(size, is_negative)
    time_ids = jnp.broadcast_to(time_ids[:, None], (halves, images, time_ids.shape[-1]))
    inputs = joined(hidden), joined(pooled), joined(time_ids)
    context = networks["unet"].condition(*inputs, jnp.tile(guidance, halves))
    return jax.tree.map(lambda batch: split(batch, halves), context)


def time_ids(size: Array, is_negative: Array) -> Array:
    """Return the add_time_ids `[H, 6]` float32 of a whole picture, in pixels.

    They are the original size, the top and left of the crop, and the target size.
    """
    numbers = jnp.concatenate([size, jnp.zeros(2), size])
    return jnp.broadcast_to(numbers, (len(is_negative), 6))


def refiner_time_ids(size: Array, is_negative: Array) -> Array:
    """Return the refiner's add_time_ids `[H, 5]` float32 of a whole picture, in pixels.

    They are the original size, the top and left of the crop, and the score.
    """
    score = jnp.where(is_negative, NEGATIVE_AESTHETIC_SCORE, AESTHETIC_SCORE)
    sizes = jnp.broadcast_to(jnp.append(size, jnp.zeros(2)), (len(score), 4))
    return jnp.concatenate([sizes, score[:, None]], axis=1)


SDXL = Family(
    name="Stable Diffusion XL",
    class_name="StableDiffusionXLPipeline",
    other_class_names=("StableDiffusionXLInpaintPipeline", FROM_PICTURES),
    recognise=lambda folder: not is_refiner(folder),
    text_encoders=(
        Network(
            name="text_encoder",
            class_name="CLIPTextModel",
            read=partial(read_text_encoder, projected=False, penultimate=True),
            make=CLIPTextEncoder,
            tokenizer="tokenizer",
            fit=text_encoder_of,
        ),
        Network(
            name="text_encoder_2",
            class_name="CLIPTextModelWithProjection",
            read=partial(read_text_encoder, projected=True, penultimate=True),
            make=CLIPTextEncoder,
            tokenizer="tokenizer_2",
            fit=text_encoder_of,
        ),
    ),
    networks=(
        Network(
            name="unet",
            class_name=latent_unet.UNET_CLASS,
            read=partial(read_unet, addition=True),
            make=UNet,
            fit=unet_of,
            int8_layers=int8_layers,
        ),
        latent_unet.VAE_NETWORK,
    ),
    apart=(latent_unet.TINY_VAE_NETWORK, latent_unet.CONTROL_NETWORK),
    ignored=("add_watermarker", "requires_aesthetics_score"),
    # https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html
    aligned_sigmas=(
        *(14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113),
        0.029,
    ),
    zeros_for_empty_prompt=True,
    check=check,
    architecture=partial(latent_unet.architecture, condition=partial(condition_on, time_ids)),
)
SDXL_REFINER = replace(
    SDXL,
    name="Stable Diffusion XL refiner",
    class_name=FROM_PICTURES,
    other_class_names=(),
    recognise=is_refiner,
    text_encoders=SDXL.text_encoders[1:],
    ignored=(*SDXL.ignored, "text_encoder", "tokenizer"),
    aligned_sigmas=None,
    check=partial(check, numbers=5),
    architecture=partial(
        latent_unet.architecture,
        condition=partial(condition_on, refiner_time_ids),
        needs_image=True,
    ),
)
