"""Tiny checkpoints of every family with random weights, built and saved by torch's own classes.

Together the entries of `TINY` cover the shapes of checkpoints and the ways in which their files are
written; `tests.reference.make_goldens` writes them to `tests/golden/`. Weights are float16 on disk,
which float32 represents exactly, so both sides of a comparison start from the same numbers. Runs in
the reference environment.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    DDIMScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
    PNDMScheduler,
    SchedulerMixin,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
)

from tools.vocabulary import write_tokenizer

Pipeline = StableDiffusionPipeline | StableDiffusionXLPipeline | StableDiffusionXLImg2ImgPipeline

END = "<|endoftext|>"
# The keys that files had in 2022; later ones follow from defaults.
FIRST_KEYS = {
    "unet/config.json": (
        *("_class_name", "act_fn", "attention_head_dim", "block_out_channels"),
        *("center_input_sample", "cross_attention_dim", "down_block_types", "downsample_padding"),
        *("flip_sin_to_cos", "freq_shift", "in_channels", "layers_per_block"),
        *("mid_block_scale_factor", "norm_eps", "norm_num_groups", "out_channels"),
        *("sample_size", "up_block_types"),
    ),
    "vae/config.json": (
        *("_class_name", "act_fn", "block_out_channels", "down_block_types", "in_channels"),
        *("latent_channels", "layers_per_block", "norm_num_groups", "out_channels"),
        *("sample_size", "up_block_types"),
    ),
    "scheduler/scheduler_config.json": (
        *("_class_name", "beta_end", "beta_schedule", "beta_start", "num_train_timesteps"),
        *("set_alpha_to_one", "skip_prk_steps", "steps_offset", "trained_betas"),
    ),
}

NO_SAFETY_CHECKER = {
    "safety_checker": None,
    "feature_extractor": None,
    "requires_safety_checker": False,
}
# Settings of other schedulers, which published files have beside their own.
CARRIED_SETTINGS = {"clip_sample": False, "set_alpha_to_one": False, "skip_prk_steps": True}


@dataclass(frozen=True)
class Files:
    """The ways in which a checkpoint's files differ from those that torch's classes write."""

    tokenizer_json: bool = False  # `tokenizer.json` alone, not `vocab.json` and `merges.txt`
    published_text_encoders: bool = False  # prefix `text_model.` and an integer `position_ids`
    old_vae_attention: bool = False  # `query`, `key`, `value`, `proj_attn`
    first_keys: bool = False  # `FIRST_KEYS` alone
    carried_settings: bool = False  # `CARRIED_SETTINGS` too
    variant: str | None = None
    max_shard_size: str = "10GB"
    dtype: torch.dtype = torch.float16


@dataclass(frozen=True)
class Tiny:
    """One checkpoint: the arguments of every component's class, and how its files are written.

    Attributes:
        text_encoder, text_encoder_2: without the arguments that follow from the tokenizer. None for
            `text_encoder_2` makes a Stable Diffusion 1 or 2, None for `text_encoder` a refiner.
        unet: without the arguments that follow from the other components.
        every_scheduler: adds golden pictures of all schedulers.
        safety_checker: made by the function of that name.
        pad_token: the first tokenizer's.
        real_eos: False writes 2 as `eos_token_id`, as published files do.
    """

    seed: int
    words: Sequence[str]
    text_encoder: dict[str, Any] | None
    text_encoder_2: dict[str, Any] | None
    unet: dict[str, Any]
    vae: dict[str, Any]
    scheduler: dict[str, Any]
    scheduler_class: type[SchedulerMixin] = EulerDiscreteScheduler
    every_scheduler: bool = False
    safety_checker: dict[str, Any] | None = None
    pad_token: str = END
    real_eos: bool = True
    force_zeros_for_empty_prompt: bool = True
    files: Files = field(default_factory=Files)

    @property
    def tokenizers(self) -> dict[str, str]:
        """The pad token of each tokenizer, by its folder."""
        pad_tokens = {"tokenizer": self.pad_token, "tokenizer_2": "!"}
        encoders = dict(zip(pad_tokens, (self.text_encoder, self.text_encoder_2), strict=True))
        return {name: token for name, token in pad_tokens.items() if encoders[name] is not None}


def text_encoder(width: int, layers: int, heads: int, act: str, **options: Any) -> dict[str, Any]:
    """Return a CLIP text encoder's arguments."""
    return {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": act,
        "projection_dim": width,
        **options,
    }


def unet(channels: Sequence[int], attention: str, **options: Any) -> dict[str, Any]:
    """Return a UNet's arguments.

    `attention` has one letter per block: "x" with attention, "-" without.
    """
    down = ["CrossAttnDownBlock2D" if letter == "x" else "DownBlock2D" for letter in attention]
    up = ["CrossAttnUpBlock2D" if letter == "x" else "UpBlock2D" for letter in attention[::-1]]
    return {
        "block_out_channels": list(channels),
        "down_block_types": down,
        "up_block_types": up,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        **options,
    }


def vae(channels: Sequence[int], **options: Any) -> dict[str, Any]:
    """Return a VAE's arguments."""
    return {
        "block_out_channels": list(channels),
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels),
        **options,
    }


def safety_checker(
    width: int, layers: int, heads: int, *, shortest_edge: int, projection_dim: int, **options: Any
) -> dict[str, Any]:
    """Return the arguments of a safety checker and of the processor of its pictures."""
    vision = text_encoder(width, layers, heads, "quick_gelu", **options)
    return {
        "projection_dim": projection_dim,
        "shortest_edge": shortest_edge,
        "vision_config": {name: vision[name] for name in vision if name != "projection_dim"},
    }


SDXL_SCHEDULE = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
}

TINY: dict[str, Tiny] = {
    # A small SDXL base, with files as published.
    "plain": Tiny(
        seed=1,
        words=("a", "red", "star", "on", "blue"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=text_encoder(24, 3, 3, "gelu"),
        unet=unet(
            (16, 32),
            "-x",
            layers_per_block=2,
            attention_head_dim=4,
            norm_num_groups=8,
            addition_time_embed_dim=8,
            sample_size=8,
        ),
        vae=vae((8, 16), layers_per_block=1, norm_num_groups=4, scaling_factor=0.13025),
        scheduler={**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 1},
        every_scheduler=True,
        real_eos=False,
        files=Files(published_text_encoders=True, carried_settings=True),
    ),
    "three_levels": Tiny(
        seed=2,
        words=("green", "circle"),
        text_encoder=text_encoder(24, 3, 4, "gelu", layer_norm_eps=1e-6),
        text_encoder_2=text_encoder(32, 2, 8, "quick_gelu", projection_dim=16),
        unet=unet(
            (8, 24, 32),
            "-xx",
            layers_per_block=1,
            attention_head_dim=[1, 3, 8],
            transformer_layers_per_block=[1, 1, 2],
            norm_num_groups=4,
            addition_time_embed_dim=16,
            sample_size=[8, 12],
        ),
        vae=vae((8, 16, 16), layers_per_block=2, norm_num_groups=8, scaling_factor=0.2),
        scheduler={**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 0},
        files=Files(max_shard_size="100KB"),
    ),
    "v_prediction": Tiny(
        seed=3,
        words=("night", "knight", "light"),
        text_encoder=text_encoder(16, 2, 4, "quick_gelu"),
        text_encoder_2=text_encoder(16, 2, 1, "gelu", intermediate_size=48),
        unet=unet(
            (16, 32),
            "xx",
            layers_per_block=1,
            attention_head_dim=[2, 4],
            transformer_layers_per_block=[1, 2],
            norm_num_groups=2,
            addition_time_embed_dim=8,
            sample_size=8,
        ),
        vae=vae(
            (8, 16),
            layers_per_block=1,
            norm_num_groups=2,
            scaling_factor=0.5,
            latents_mean=[0.1, -0.2, 0.3, 0.05],
            latents_std=[1.1, 0.9, 1.3, 0.7],
        ),
        scheduler={
            **SDXL_SCHEDULE,
            "timestep_spacing": "trailing",
            "prediction_type": "v_prediction",
        },
        force_zeros_for_empty_prompt=False,
        files=Files(old_vae_attention=True),
    ),
    "karras": Tiny(
        seed=4,
        words=("soft", "outline"),
        text_encoder=text_encoder(32, 2, 2, "gelu"),
        text_encoder_2=text_encoder(16, 2, 2, "gelu", projection_dim=32),
        unet=unet(
            (16, 32),
            "x-",
            layers_per_block=1,
            attention_head_dim=2,
            mid_block_type="UNetMidBlock2DCrossAttn",
            norm_num_groups=8,
            norm_eps=1e-6,
            addition_time_embed_dim=8,
            flip_sin_to_cos=False,
            freq_shift=1,
            sample_size=8,
        ),
        vae=vae(
            (8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            scaling_factor=0.3,
            mid_block_add_attention=False,
        ),
        scheduler={
            "beta_start": 0.0001,
            "beta_end": 0.02,
            "beta_schedule": "linear",
            "num_train_timesteps": 1000,
            "timestep_spacing": "linspace",
            "use_karras_sigmas": True,
        },
        files=Files(tokenizer_json=True, variant="fp16"),
    ),
    "deep_vae": Tiny(
        seed=5,
        words=("yellow", "square", "above", "below"),
        text_encoder=text_encoder(16, 3, 2, "quick_gelu"),
        text_encoder_2=text_encoder(32, 2, 4, "gelu", projection_dim=24),
        unet=unet(
            (16, 32),
            "-x",
            in_channels=8,
            out_channels=8,
            layers_per_block=[1, 2],
            attention_head_dim=[1, 2],
            norm_num_groups=8,
            addition_time_embed_dim=16,
            sample_size=4,
        ),
        vae=vae(
            (8, 8, 8, 16, 16),
            layers_per_block=1,
            norm_num_groups=4,
            latent_channels=8,
            scaling_factor=0.7,
        ),
        scheduler={**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 1},
        files=Files(published_text_encoders=True),
    ),
    # Distilled SDXLs have a number of transformer layers for every single ResNet.
    "distilled": Tiny(
        seed=6,
        words=("fine", "finest"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=text_encoder(16, 3, 2, "gelu"),
        unet=unet(
            (8, 16, 16),
            "-xx",
            layers_per_block=[2, 2, 1],
            attention_head_dim=[1, 2, 4],
            transformer_layers_per_block=[[1, 1], [1, 2], [2]],
            reverse_transformer_layers_per_block=[[1, 2], [2, 1, 1], [1, 1, 1]],
            mid_block_type="UNetMidBlock2D",
            norm_num_groups=4,
            addition_time_embed_dim=8,
            time_embedding_dim=24,
            resnet_time_scale_shift="scale_shift",
            sample_size=8,
        ),
        vae=vae(
            (8, 16),
            layers_per_block=1,
            norm_num_groups=8,
            scaling_factor=0.2,
            use_quant_conv=False,
            use_post_quant_conv=False,
        ),
        scheduler={**SDXL_SCHEDULE, "timestep_spacing": "trailing"},
        files=Files(tokenizer_json=True, variant="fp16", max_shard_size="50KB"),
    ),
    # A small Stable Diffusion 1, with files as first published.
    "sd_1": Tiny(
        seed=7,
        words=("a", "red", "star", "on", "blue"),
        text_encoder=text_encoder(16, 3, 2, "quick_gelu"),
        text_encoder_2=None,
        unet=unet(
            (8, 8, 16),
            "xx-",
            layers_per_block=1,
            attention_head_dim=2,
            norm_num_groups=4,
            use_linear_projection=False,
            addition_embed_type=None,
            sample_size=16,
        ),
        vae=vae((8, 16), layers_per_block=1, norm_num_groups=4),
        scheduler={**SDXL_SCHEDULE, "skip_prk_steps": True, "steps_offset": 1},
        scheduler_class=PNDMScheduler,
        every_scheduler=True,
        real_eos=False,
        files=Files(
            published_text_encoders=True,
            old_vae_attention=True,
            first_keys=True,
            carried_settings=True,
        ),
    ),
    # A small Stable Diffusion 2, like the one for 768 pixels.
    "sd_2": Tiny(
        seed=8,
        words=("night", "knight", "light"),
        text_encoder=text_encoder(24, 3, 3, "gelu", projection_dim=8),
        text_encoder_2=None,
        unet=unet(
            (8, 8, 16, 16),
            "xxx-",
            layers_per_block=1,
            attention_head_dim=[1, 2, 4, 4],
            norm_num_groups=4,
            upcast_attention=True,
            addition_embed_type=None,
            sample_size=[16, 24],
        ),
        vae=vae((8, 8, 16), layers_per_block=1, norm_num_groups=4, scaling_factor=0.3),
        scheduler={
            **SDXL_SCHEDULE,
            "prediction_type": "v_prediction",
            "set_alpha_to_one": False,
            "clip_sample": False,
            "steps_offset": 1,
        },
        scheduler_class=DDIMScheduler,
        every_scheduler=True,
        pad_token="!",
        files=Files(variant="fp16", carried_settings=True),
    ),
    # A small latent consistency model, whose UNet takes the guidance scale.
    "consistency": Tiny(
        seed=12,
        words=("circle", "green"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=None,
        unet=unet(
            (8, 16),
            "x-",
            layers_per_block=1,
            attention_head_dim=2,
            norm_num_groups=4,
            use_linear_projection=False,
            addition_embed_type=None,
            time_cond_proj_dim=12,
            sample_size=8,
        ),
        vae=vae((8, 16), layers_per_block=1, norm_num_groups=4),
        scheduler=SDXL_SCHEDULE,
        scheduler_class=LCMScheduler,
    ),
}

# The refiner for `TINY["plain"]`, whose text encoder and VAE have the same shapes; `refiner.npz` is
# beside it.
REFINER: dict[str, Tiny] = {
    "refiner": Tiny(
        seed=13,
        words=TINY["plain"].words,
        text_encoder=None,
        text_encoder_2=TINY["plain"].text_encoder_2,
        unet=unet(
            (8, 16, 16),
            "-x-",
            layers_per_block=1,
            attention_head_dim=[1, 2, 4],
            transformer_layers_per_block=2,
            norm_num_groups=4,
            addition_time_embed_dim=8,
            sample_size=8,
        ),
        vae=TINY["plain"].vae,
        scheduler=TINY["plain"].scheduler,
        real_eos=False,
        force_zeros_for_empty_prompt=False,
        files=Files(published_text_encoders=True),
    ),
}

# A Stable Diffusion 1 with its safety checker; `safety.npz` is beside it.
SAFE: dict[str, Tiny] = {
    "safety": Tiny(
        seed=11,
        words=("llama", "dolphin", "hat"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=None,
        unet=unet(
            (8, 8),
            "x-",
            layers_per_block=1,
            attention_head_dim=2,
            norm_num_groups=4,
            use_linear_projection=False,
            addition_embed_type=None,
            sample_size=[16, 24],
        ),
        vae=vae((8, 8), layers_per_block=1, norm_num_groups=4),
        scheduler={**SDXL_SCHEDULE, "skip_prk_steps": True, "steps_offset": 1},
        scheduler_class=PNDMScheduler,
        safety_checker=safety_checker(
            16, 2, 2, image_size=28, patch_size=7, projection_dim=12, shortest_edge=28
        ),
        real_eos=False,
        files=Files(published_text_encoders=True),
    ),
}

# Arguments of a tiny VAE whose latents have the shape of most tiny checkpoints.
TINY_VAE: dict[str, Any] = {
    **{f"{half}_block_out_channels": (6, 6) for half in ("encoder", "decoder")},
    "num_encoder_blocks": (1, 2),
    "num_decoder_blocks": (2, 1),
}

# Checkpoints that diffusers' Flax classes can read too: 32 groups, a middle block with attention,
# `leading` timesteps with an offset of 1. `tests.reference.incumbent` makes their golden files.
FLAX: dict[str, Tiny] = {
    "flax": Tiny(
        seed=7,
        words=("llama", "dolphin", "hat"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=text_encoder(16, 2, 2, "gelu", projection_dim=24),
        unet=unet(
            (32, 32),
            "-x",
            layers_per_block=1,
            attention_head_dim=[2, 4],
            transformer_layers_per_block=[1, 2],
            norm_num_groups=32,
            addition_time_embed_dim=8,
            sample_size=8,
        ),
        vae=vae((8, 16), layers_per_block=1, norm_num_groups=4, scaling_factor=0.13025),
        scheduler={**SDXL_SCHEDULE, "timestep_spacing": "leading", "steps_offset": 1},
        real_eos=False,
        files=Files(published_text_encoders=True),
    ),
    "flax_sd": Tiny(
        seed=10,
        words=("llama", "dolphin", "hat"),
        text_encoder=text_encoder(16, 2, 2, "quick_gelu"),
        text_encoder_2=None,
        unet=unet(
            (32, 32),
            "x-",
            layers_per_block=1,
            attention_head_dim=2,
            norm_num_groups=32,
            use_linear_projection=False,
            addition_embed_type=None,
            sample_size=8,
        ),
        vae=vae((8, 16), layers_per_block=1, norm_num_groups=4),
        scheduler={**SDXL_SCHEDULE, "skip_prk_steps": True, "steps_offset": 1},
        scheduler_class=PNDMScheduler,
        real_eos=False,
        files=Files(published_text_encoders=True),
    ),
}


def write(tiny: Tiny, folder: Path) -> None:
    """Build the checkpoint and write it to `folder`, replacing its contents."""
    shutil.rmtree(folder, ignore_errors=True)
    pipe = build(tiny, folder).to(tiny.files.dtype)
    pipe.save_pretrained(
        folder,
        safe_serialization=True,
        variant=tiny.files.variant,
        max_shard_size=tiny.files.max_shard_size,
    )
    if not tiny.files.tokenizer_json:
        for name, pad_token in tiny.tokenizers.items():
            shutil.rmtree(folder / name)
            write_tokenizer(folder / name, tiny.words, pad_token)
    if tiny.files.published_text_encoders:
        for name in tiny.tokenizers:
            component = name.replace("tokenizer", "text_encoder")
            _rename(folder / component, _published_text_encoder)
        if tiny.safety_checker is not None:
            _rename(folder / "safety_checker", _published_safety_checker)
    if tiny.files.old_vae_attention:
        _rename(folder / "vae", _old_vae)
    if tiny.files.first_keys:
        for name, keys in FIRST_KEYS.items():
            values = json.loads((folder / name).read_text())
            values = {key: value for key, value in values.items() if key in keys}
            (folder / name).write_text(json.dumps(values, indent=2) + "\n")
    if tiny.files.carried_settings:
        file = folder / "scheduler/scheduler_config.json"
        values = json.loads(file.read_text()) | CARRIED_SETTINGS
        file.write_text(json.dumps(values, indent=2) + "\n")
    _verify(pipe, load(folder, tiny.files.variant))


def load(folder: Path, variant: str | None = None, **networks: torch.nn.Module) -> Pipeline:
    """Load a checkpoint with diffusers, in float32; `networks` are taken from another one."""
    is_xl, has_text_encoder = (
        (folder / name).is_dir() for name in ("text_encoder_2", "text_encoder")
    )
    kind = StableDiffusionXLPipeline if has_text_encoder else StableDiffusionXLImg2ImgPipeline
    pipe = (kind if is_xl else StableDiffusionPipeline).from_pretrained(
        folder,
        dtype=torch.float32,
        variant=variant,
        local_files_only=True,
        **networks,
        **({"add_watermarker": False} if is_xl else {}),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def build(tiny: Tiny, scratch: Path) -> Pipeline:
    """Build the pipeline in memory, in float32; `scratch` gets temporary tokenizer files."""
    tokenizers = {}
    for name, pad_token in tiny.tokenizers.items():
        write_tokenizer(scratch / name, tiny.words, pad_token)
        tokenizers[name] = CLIPTokenizer.from_pretrained(scratch / name)
        shutil.rmtree(scratch / name)
    encoder_arguments = [
        arguments for arguments in (tiny.text_encoder, tiny.text_encoder_2) if arguments is not None
    ]
    encoders = [
        _text_config(arguments, tokenizer, tiny.real_eos)
        for arguments, tokenizer in zip(encoder_arguments, tokenizers.values(), strict=True)
    ]
    modules: dict[str, torch.nn.Module] = {}
    if tiny.text_encoder is not None:
        modules["text_encoder"] = CLIPTextModel(encoders[0])
    unet_arguments = {}
    if tiny.text_encoder_2 is not None:
        modules["text_encoder_2"] = CLIPTextModelWithProjection(encoders[-1])
        count = 5 if tiny.text_encoder is None else 6
        numbers = count * tiny.unet["addition_time_embed_dim"]
        unet_arguments["projection_class_embeddings_input_dim"] = (
            encoders[-1].projection_dim + numbers
        )
    modules["unet"] = UNet2DConditionModel(
        cross_attention_dim=sum(encoder.hidden_size for encoder in encoders),
        **unet_arguments,
        **tiny.unet,
    )
    modules["vae"] = AutoencoderKL(**tiny.vae)
    extras: dict[str, Any] = {}
    if tiny.safety_checker is not None:
        modules["safety_checker"], processor = build_safety_checker(tiny.safety_checker)
        extras = {"feature_extractor": processor, "requires_safety_checker": True}
    for number, module in enumerate(modules.values()):
        randomise(module, np.random.default_rng([tiny.seed, number]))
    parts = {**modules, **tokenizers, "scheduler": tiny.scheduler_class(**tiny.scheduler)}
    if tiny.text_encoder is None:
        return StableDiffusionXLImg2ImgPipeline(
            text_encoder=None,
            tokenizer=None,
            **parts,
            requires_aesthetics_score=True,
            force_zeros_for_empty_prompt=tiny.force_zeros_for_empty_prompt,
            add_watermarker=False,
        )
    if tiny.text_encoder_2 is not None:
        return StableDiffusionXLPipeline(
            **parts,
            force_zeros_for_empty_prompt=tiny.force_zeros_for_empty_prompt,
            add_watermarker=False,
        )
    return StableDiffusionPipeline(**{**NO_SAFETY_CHECKER, **parts, **extras})


def build_safety_checker(
    arguments: dict[str, Any],
) -> tuple[StableDiffusionSafetyChecker, CLIPImageProcessorPil]:
    """Build a safety checker from `safety_checker`'s arguments, and its image processor."""
    config = CLIPConfig(
        text_config={"hidden_size": 8, "num_attention_heads": 1},  # unused: no text encoder
        vision_config=arguments["vision_config"],
        projection_dim=arguments["projection_dim"],
    )
    side = config.vision_config.image_size
    processor = CLIPImageProcessorPil(
        size={"shortest_edge": arguments["shortest_edge"]},
        crop_size={"height": side, "width": side},
    )
    return StableDiffusionSafetyChecker(config), processor


def write_tiny_vae(folder: Path, rng: np.random.Generator, **arguments: Any) -> AutoencoderTiny:
    """Save a tiny VAE of `arguments`, whose default is the smallest, with random weights."""
    vae = AutoencoderTiny(**{**TINY_VAE, **arguments})
    randomise(vae, rng)
    vae.half().save_pretrained(folder)
    return vae.float()


def _text_config(
    arguments: dict[str, Any], tokenizer: CLIPTokenizer, real_eos: bool
) -> CLIPTextConfig:
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id if real_eos else 2,
        **arguments,
    )


def randomise(module: torch.nn.Module, rng: np.random.Generator) -> None:
    """Fill every parameter with `draw`."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(draw(name, tuple(parameter.shape), rng)))


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw values for the parameter called `name`, float16.

    No parameter is without effect: there are no zeros and no ones, and activations are near unit
    size at any depth. With these values 25 Euler steps neither ignore their inputs nor amplify
    rounding errors.
    """
    values = rng.standard_normal(shape, dtype=np.float32)
    if "embedding.weight" in name:  # the text encoders' tables
        values *= 0.5
    elif len(shape) > 1:
        values /= np.sqrt(np.prod(shape[1:]))
    elif name.endswith("weight"):  # a norm's
        values = 1 + 0.2 * values
    else:
        values *= 0.1
    return values.astype(np.float16)


def _rename(
    folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> None:
    [file] = folder.glob("*.safetensors")
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def _published_text_encoder(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename tensors as transformers before version 5 did, and add the buffer that it saved."""
    positions = next(v for k, v in tensors.items() if k.endswith("position_embedding.weight"))
    renamed_tensors = {
        name if name.startswith(("text_model.", "text_projection.")) else f"text_model.{name}": v
        for name, v in tensors.items()
    }
    ids = torch.arange(len(positions)).unsqueeze(0)
    return renamed_tensors | {"text_model.embeddings.position_ids": ids}


def _published_safety_checker(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename tensors as transformers before version 5 did, and add the buffer that it saved."""
    encoder = "vision_model."
    positions = tensors[f"{encoder}embeddings.position_embedding.weight"]
    renamed_tensors = {
        f"{encoder}{name}" if name.startswith(encoder) else name: tensor
        for name, tensor in tensors.items()
    }
    ids = torch.arange(len(positions)).unsqueeze(0)
    return renamed_tensors | {f"{encoder}{encoder}embeddings.position_ids": ids}


def _old_vae(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename tensors as diffusers before version 0.18 did."""
    renames = {
        ".to_q.": ".query.",
        ".to_k.": ".key.",
        ".to_v.": ".value.",
        ".to_out.0.": ".proj_attn.",
    }
    renamed_tensors = {}
    for name, tensor in tensors.items():
        for modern, ancient in renames.items():
            name = name.replace(modern, ancient) if ".attentions." in name else name
        renamed_tensors[name] = tensor
    return renamed_tensors


def _verify(built_pipe: Pipeline, saved_pipe: Pipeline) -> None:
    """Assert that diffusers reads the same pipeline from the rewritten files as was built."""
    for name, module in built_pipe.components.items():
        if not isinstance(module, torch.nn.Module):
            continue
        built_state, saved_state = module.state_dict(), getattr(saved_pipe, name).state_dict()
        assert built_state.keys() == saved_state.keys(), name
        for key, tensor in built_state.items():
            assert torch.equal(tensor.to(saved_state[key].dtype), saved_state[key]), (
                f"{name}: {key}"
            )
    for name in ("unet", "vae", "scheduler"):
        saved_config = getattr(saved_pipe, name).config
        for key, value in getattr(built_pipe, name).config.items():
            # Keys that begin with "_" are notes; JSON turns tuples into lists.
            is_same = key.startswith("_") or json.dumps(value) == json.dumps(saved_config[key])
            assert is_same, f"{name}: {key}"
