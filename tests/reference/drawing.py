"""Random checkpoints and prompts for the live comparison."""

from collections.abc import Sequence
from typing import Any

import diffusers
import numpy as np
import torch
from diffusers import EulerDiscreteScheduler, PNDMScheduler

from pipeline.schedulers.config import SCHEDULERS, SIGMA_KEYS, SPACINGS
from tests.reference.tiny_checkpoints import (
    END,
    SDXL_SCHEDULE,
    Files,
    Tiny,
    safety_checker,
    text_encoder,
    unet,
    vae,
)

ACTIVATIONS = ("quick_gelu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")
# Stable Diffusion 1: only the timestep and the prompt condition the UNet.
NOTHING_ADDED = {"addition_embed_type": None, "use_linear_projection": False}
# First and last code point of each range: letters of several scripts, signs, emoji with joiners
# and selectors, control characters, spaces of all kinds.
UNICODE_RANGES = (
    (0x20, 0x7E),
    (0xA0, 0x17F),
    (0x400, 0x45F),
    (0x5D0, 0x5EA),
    (0x620, 0x652),
    (0x905, 0x939),
    (0x2000, 0x206F),
    (0x3041, 0x30FF),
    (0x4E00, 0x4FFF),
    (0xFE00, 0xFE0F),
    (0x1F300, 0x1F64F),
    (0x0, 0x1F),
)
NASTY_PROMPTS = (
    "",
    " \t\r\n\u3000\u00a0 ",
    "a long, winding prompt with many words; " * 60,
    "x" * 500,
    "\U0001f408\u200d\u2b1b \U0001f1ec\U0001f1e7 \U0001f44d\U0001f3fd \u2764\ufe0f!!",
    "\u0642\u0637\u0629 \u0633\u0648\u062f\u0627\u0621 \u2067\u05d7\u05ea\u05d5\u05dc\u2069 cat",
    "\x00red\x07 \x1b[31mstar\x7f\u202e\u200b\ufeff\u2028",
    "<|endoftext|> a star <|startoftext|> !!! </w>",
    "It's the CAFE\u0301's 12,345 \ufb01ne na\u00efve \u1e9e \u0130stanbul's",
)


def draw_text(rng: np.random.Generator) -> str:
    """Return up to 11 random words; each takes its letters from one of the Unicode ranges."""
    words = []
    for _ in range(rng.integers(1, 12)):
        first, last = UNICODE_RANGES[rng.integers(len(UNICODE_RANGES))]
        words.append(
            "".join(chr(rng.integers(first, last + 1)) for _ in range(rng.integers(1, 10)))
        )
    return " ".join(words)


def draw_checkpoint(rng: np.random.Generator) -> Tiny:
    """Draw a checkpoint of any supported family and shape, as small as possible."""
    xl = _flip(rng)
    latent_channels = _pick(rng, (4, 8, 16))
    scheduler = _pick(rng, (*SCHEDULERS,))
    return Tiny(
        seed=int(rng.integers(2**31)),
        words=_pick(rng, (("a", "red", "star"), ("star", "stars"), ())),
        text_encoder=_text_encoder(rng),
        text_encoder_2=_text_encoder(rng) if xl else None,
        unet=_unet(rng, latent_channels, xl),
        vae=_vae(rng, latent_channels, xl),
        scheduler=_scheduler(rng, scheduler),
        scheduler_class=getattr(diffusers, SCHEDULERS[scheduler].name),
        pad_token=_pick(rng, (END, "!")),
        real_eos=_flip(rng),
        force_zeros_for_empty_prompt=_flip(rng),
        files=Files(
            tokenizer_json=_flip(rng),
            published_text_encoders=_flip(rng),
            old_vae_attention=_flip(rng),
            variant=_pick(rng, (None, "fp16")),
            dtype=_pick(rng, (torch.float32, torch.float16, torch.bfloat16)),
        ),
    )


def draw_flax_checkpoint(rng: np.random.Generator, *, xl: bool) -> Tiny:
    """Draw a checkpoint of a shape that diffusers' Flax classes support, for 16x16 pixels."""
    added = {"addition_time_embed_dim": _pick(rng, (4, 10))} if xl else NOTHING_ADDED
    levels, latent_channels = _pick(rng, (2, 3)), _pick(rng, (4, 16))
    # As in `_unet`: a third level has 2x2 pixels, so that each of its groups needs two channels.
    return Tiny(
        seed=int(rng.integers(2**31)),
        words=("red", "llama"),
        text_encoder=_text_encoder(rng),
        text_encoder_2=_text_encoder(rng) if xl else None,
        unet=unet(
            [32 * max(int(rng.integers(1, 3)), i) for i in range(levels)],
            "".join(_pick(rng, "-x") for _ in range(levels - 1)) + "x",
            in_channels=latent_channels,
            out_channels=latent_channels,
            layers_per_block=_pick(rng, (1, 2)),
            attention_head_dim=[_pick(rng, (1, 2, 4)) for _ in range(levels)],
            transformer_layers_per_block=[_pick(rng, (1, 2)) for _ in range(levels)],
            norm_num_groups=32,
            flip_sin_to_cos=_flip(rng),
            freq_shift=_pick(rng, (0, 1)),
            sample_size=8,
            **added,
        ),
        vae=vae(
            [8 * int(rng.integers(1, 3)) for _ in range(2)],
            layers_per_block=_pick(rng, (1, 2)),
            norm_num_groups=_pick(rng, (2, 4, 8)),
            latent_channels=latent_channels,
            scaling_factor=float(rng.uniform(0.1, 1.0)),
        ),
        scheduler={
            **SDXL_SCHEDULE,
            "timestep_spacing": "leading",
            "steps_offset": 1,
            "prediction_type": _pick(rng, ("epsilon", "v_prediction")),
            **({} if xl else {"skip_prk_steps": True}),
        },
        scheduler_class=EulerDiscreteScheduler if xl else PNDMScheduler,
        real_eos=_flip(rng),
        files=Files(published_text_encoders=True),
    )


def draw_safety_checker(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the arguments of a safety checker for pictures of up to 40 pixels a side."""
    heads, patch = _pick(rng, (1, 2, 3)), _pick(rng, (5, 7, 8))
    # The patches need not cover the whole picture.
    side = patch * int(rng.integers(2, 5)) + _pick(rng, (0, 0, 3))
    return safety_checker(
        heads * _pick(rng, (4, 8, 10)),
        _pick(rng, (1, 2, 3)),
        heads,
        image_size=side,
        patch_size=patch,
        shortest_edge=side + _pick(rng, (0, 1, 6)),
        projection_dim=_pick(rng, (8, 20)),
        layer_norm_eps=_pick(rng, (1e-5, 1e-6)),
    )


def _pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[rng.integers(len(choices))]


def _flip(rng: np.random.Generator) -> bool:
    return bool(rng.integers(2))


def _text_encoder(rng: np.random.Generator) -> dict[str, Any]:
    heads = _pick(rng, (1, 2, 3))
    return text_encoder(
        # The norm of four values magnifies rounding, as that of a small group does in `_unet`.
        max(8, heads * _pick(rng, (4, 8, 10))),
        _pick(rng, (2, 3, 4)),
        heads,
        _pick(rng, ACTIVATIONS),
        projection_dim=_pick(rng, (8, 20)),
        layer_norm_eps=_pick(rng, (1e-5, 1e-6)),
    )


def _unet(rng: np.random.Generator, latent_channels: int, xl: bool) -> dict[str, Any]:
    levels = _pick(rng, (2, 3, 4))
    # Each group has at least eight values at the deepest level: the norm of two nearly equal
    # values magnifies rounding a thousandfold, in torch as well.
    groups = _pick(rng, (2, 4))
    deepest = (2, _pick(rng, (2, 3, 4)))
    channels = [8 * int(rng.integers(1, 4)) for _ in range(levels)]
    attention = "".join(_pick(rng, "-x") for _ in range(levels - 1)) + "x"
    heads = [_pick(rng, [n for n in range(1, 9) if width % n == 0]) for width in channels]
    addition = {"addition_time_embed_dim": _pick(rng, (4, 10))}
    return unet(
        channels,
        attention,
        in_channels=latent_channels,
        out_channels=latent_channels,
        layers_per_block=_pick(rng, (1, 2, [_pick(rng, (1, 2)) for _ in range(levels)])),
        attention_head_dim=_pick(rng, (2, heads)),
        norm_num_groups=groups,
        norm_eps=_pick(rng, (1e-5, 1e-6)),
        use_linear_projection=_flip(rng),
        upcast_attention=_flip(rng),
        flip_sin_to_cos=_flip(rng),
        freq_shift=_pick(rng, (0, 1)),
        sample_size=[side * 2 ** (levels - 1) for side in deepest],
        time_cond_proj_dim=_pick(rng, (None, None, 12)),
        **_transformer_depths(rng, levels),
        **(addition if xl else {"addition_embed_type": None}),
    )


def _transformer_depths(rng: np.random.Generator, levels: int) -> dict[str, Any]:
    depths = [_pick(rng, (1, 2)) for _ in range(levels)]
    return {
        "transformer_layers_per_block": _pick(rng, (1, 2, depths)),
        "mid_block_type": _pick(rng, ("UNetMidBlock2DCrossAttn", "UNetMidBlock2D", None)),
    }


def _vae(rng: np.random.Generator, latent_channels: int, xl: bool) -> dict[str, Any]:
    groups = _pick(rng, (2, 4, 8))
    # diffusers normalises latents only for SDXL with 4 channels.
    normalised = xl and latent_channels == 4 and _flip(rng)
    statistics = {
        "latents_mean": rng.normal(0, 0.3, 4).tolist(),
        "latents_std": rng.uniform(0.5, 1.5, 4).tolist(),
    }
    # diffusers accepts only pictures whose sides are multiples of 8.
    return vae(
        [8 * int(rng.integers(1, 3)) for _ in range(_pick(rng, (4, 5)))],
        layers_per_block=_pick(rng, (1, 2)),
        norm_num_groups=groups,
        latent_channels=latent_channels,
        scaling_factor=float(rng.uniform(0.1, 1.0)),
        use_quant_conv=_flip(rng),
        use_post_quant_conv=_flip(rng),
        mid_block_add_attention=_flip(rng),
        **(statistics if normalised else {}),
    )


def _scheduler(rng: np.random.Generator, name: str) -> dict[str, Any]:
    own = SCHEDULERS[name]
    linear = {**SDXL_SCHEDULE, "beta_schedule": "linear", "beta_start": 1e-4, "beta_end": 0.02}
    prediction_type = _pick(rng, own.predictions)
    settings = {
        **_pick(rng, (SDXL_SCHEDULE, linear)),
        **{key: values[0] for key, values in own.supported.items()},
        "timestep_spacing": _pick(rng, SPACINGS),
        "steps_offset": _pick(rng, (0, 1)),
        "prediction_type": prediction_type,
    }
    if own.sigma_schedules and _flip(rng):
        settings[_pick(rng, (*SIGMA_KEYS,))] = True
    if own.alpha_to_one is not None:
        settings["set_alpha_to_one"] = _flip(rng)
    if own.zero_snr and not (own.whole_timesteps and prediction_type == "epsilon"):
        settings["rescale_betas_zero_snr"] = _flip(rng)
    return settings
