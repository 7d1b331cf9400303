"""Configuration of the VAE and of the tiny VAE, from a checkpoint's JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.strict_json import StrictJson


@dataclass(frozen=True)
class VAEConfig:
    """Configuration of AutoencoderKL.

    `latents_mean` and `latents_std` are per latent channel, or None.
    """

    in_channels: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int
    norm_num_groups: int
    scaling_factor: float
    latents_mean: tuple[float, ...] | None
    latents_std: tuple[float, ...] | None
    use_quant_conv: bool
    use_post_quant_conv: bool
    mid_block_add_attention: bool

    @property
    def scale_factor(self) -> int:
        """Pixels per latent, along each side."""
        return 2 ** (len(self.block_out_channels) - 1)


def read_vae(path: Path) -> VAEConfig:
    """Read a VAE's `config.json`.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    channels = keys.sizes("block_out_channels", [64])
    for key, name in (
        ("down_block_types", "DownEncoderBlock2D"),
        ("up_block_types", "UpDecoderBlock2D"),
    ):
        value = keys.take(key, list, [name])
        if value != [name] * len(channels):
            raise keys.error(key, value, f"{len(channels)} of {name!r}")
    latent_channels = keys.size("latent_channels", 4)
    config = VAEConfig(
        in_channels=keys.one_of("in_channels", (3,)),
        latent_channels=latent_channels,
        block_out_channels=channels,
        layers_per_block=keys.size("layers_per_block", 1),
        norm_num_groups=keys.size("norm_num_groups", 32),
        scaling_factor=keys.positive("scaling_factor", 0.18215),
        latents_mean=keys.numbers("latents_mean", latent_channels, None),
        latents_std=keys.numbers("latents_std", latent_channels, None),
        use_quant_conv=keys.take("use_quant_conv", bool, True),
        use_post_quant_conv=keys.take("use_post_quant_conv", bool, True),
        mid_block_add_attention=keys.take("mid_block_add_attention", bool, True),
    )
    keys.expect({"out_channels": (3,), "act_fn": ("silu", "swish"), "shift_factor": (None,)})
    # force_upcast is advice about float16, which no VAE is in here.
    keys.finish("sample_size", "force_upcast")
    if (config.latents_mean is None) != (config.latents_std is None):
        std = config.latents_std and list(config.latents_std)
        raise keys.error("latents_std", std, "both latents_mean and latents_std, or neither")
    if config.latents_std is not None and min(config.latents_std) <= 0:
        raise keys.error("latents_std", list(config.latents_std), "numbers above 0")
    if any(width % config.norm_num_groups for width in channels):
        right = f"a divisor of every one of {list(channels)} channels"
        raise keys.error("norm_num_groups", config.norm_num_groups, right)
    return config


@dataclass(frozen=True)
class TinyVAEConfig:
    """Configuration of AutoencoderTiny's decoder.

    It is a sequence of stages, between which the size changes by a factor of 2.

    Attributes:
        in_channels: the number of channels of a picture.
        latent_channels: the number of channels of the latents.
        decoder_width: the number of channels in the decoder.
        decoder_blocks: the number of blocks in each stage of the decoder.
        scaling_factor: the factor between the VAE's own latents and the diffusion model's.
    """

    in_channels: int
    latent_channels: int
    decoder_width: int
    decoder_blocks: tuple[int, ...]
    scaling_factor: float

    @property
    def scale_factor(self) -> int:
        """Pixels per latent, along each side."""
        return 2 ** (len(self.decoder_blocks) - 1)


NEUTRAL: Mapping[str, Sequence[Any]] = {
    "out_channels": (3,),
    "act_fn": ("relu",),
    "upsample_fn": ("nearest",),
    "upsampling_scaling_factor": (2,),
    "shift_factor": (0.0, 0, None),
}
# force_upcast is advice about float16. The magnitude and the shift are for latents in bytes.
# diffusers writes block_out_channels beside decoder_block_out_channels.
UNUSED = (
    *("force_upcast", "latent_magnitude", "latent_shift", "block_out_channels"),
    *("num_encoder_blocks", "encoder_block_out_channels"),
)
# The configuration of every published one, with the defaults of diffusers' class.
PUBLISHED = TinyVAEConfig(
    in_channels=3,
    latent_channels=4,
    decoder_width=64,
    decoder_blocks=(3, 3, 3, 1),
    scaling_factor=1.0,
)


def read_tiny_vae(path: Path) -> TinyVAEConfig:
    """Read a tiny VAE's `config.json`.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    blocks = keys.sizes("num_decoder_blocks", [*PUBLISHED.decoder_blocks])
    key = "decoder_block_out_channels"
    widths = keys.sizes(key, [PUBLISHED.decoder_width] * len(PUBLISHED.decoder_blocks))
    if widths != widths[:1] * len(blocks):
        # diffusers' class fails on other widths, because no layer changes them.
        raise keys.error(key, [*widths], f"{len(blocks)} equal integers, one for each stage")
    config = TinyVAEConfig(
        in_channels=keys.one_of("in_channels", (3,)),
        latent_channels=keys.size("latent_channels", 4),
        decoder_width=widths[0],
        decoder_blocks=blocks,
        scaling_factor=keys.positive("scaling_factor", 1.0),
    )
    keys.expect(NEUTRAL)
    keys.finish(*UNUSED)
    return config
