"""Stable Diffusion 1 and 2 (Rombach et al. 2022): one text encoder, a UNet and a VAE."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import jax.numpy as jnp

from pipeline.families import latent_unet
from pipeline.families.family import Architecture, Config, Family, Network
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.clip_config import read_safety_checker, read_text_encoder
from pipeline.models.safety_checker import SafetyChecker
from pipeline.models.shapes import text_encoder_of, unet_of
from pipeline.models.unet import UNet, int8_layers
from pipeline.models.unet_config import read_unet
from pipeline.request import MAX_CLIP_SKIP
from pipeline.strict_json import StrictJson

# The first files of Stable Diffusion 1 give a smaller sample_size; according to diffusers they mean
# this one.
LEGACY_SAMPLE_SIZE = 64


def architecture(config: Config) -> Architecture:
    """Return what the networks of a checkpoint of version 1 compute."""
    layers = config.networks["text_encoder"].num_hidden_layers
    return latent_unet.architecture(config, max_clip_skip=min(layers, MAX_CLIP_SKIP))


def is_version_2(folder: Path) -> bool:
    """Return whether a checkpoint is of version 2: only its UNets have linear projections."""
    values = StrictJson(folder / "unet/config.json").values
    return bool(values.get("use_linear_projection"))


SAFETY_CHECKER = Network(
    name="safety_checker",
    class_name="StableDiffusionSafetyChecker",
    read=read_safety_checker,
    make=SafetyChecker,
    # The thresholds have three decimals, which need more than 16 bits.
    dtypes={"bfloat16": jnp.float32, "float16": jnp.float32},
    hint="or turn the safety checker off",
)
SD_1 = Family(
    name="Stable Diffusion",
    class_name="StableDiffusionPipeline",
    other_class_names=("LatentConsistencyModelPipeline", "StableDiffusionInpaintPipeline"),
    recognise=lambda folder: not is_version_2(folder),
    text_encoders=(
        Network(
            name="text_encoder",
            class_name="CLIPTextModel",
            read=partial(read_text_encoder, projected=False, penultimate=False),
            make=CLIPTextEncoder,
            tokenizer="tokenizer",
            fit=text_encoder_of,
        ),
    ),
    networks=(
        Network(
            name="unet",
            class_name=latent_unet.UNET_CLASS,
            read=partial(read_unet, smallest_legacy_size=LEGACY_SAMPLE_SIZE),
            make=UNet,
            fit=unet_of,
            int8_layers=int8_layers,
        ),
        latent_unet.VAE_NETWORK,
    ),
    optional=(SAFETY_CHECKER,),
    apart=(latent_unet.TINY_VAE_NETWORK, latent_unet.CONTROL_NETWORK),
    ignored=("requires_safety_checker",),
    forced_scheduler_settings={"steps_offset": 1, "clip_sample": False},
    # https://research.nvidia.com/labs/toronto-ai/AlignYourSteps/howto.html
    aligned_sigmas=(
        *(14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152),
        0.029,
    ),
    check=latent_unet.check,
    architecture=architecture,
)
# AUTOMATIC1111, too, has its clip skip for version 1 only.
SD_2 = replace(
    SD_1,
    recognise=is_version_2,
    aligned_sigmas=None,
    architecture=latent_unet.architecture,
)
