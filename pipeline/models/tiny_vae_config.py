"""Configuration of the tiny VAE, from a checkpoint's JSON."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.strict_json import StrictJson


@dataclass(frozen=True)
class TinyVAEConfig:
    """Configuration of AutoencoderTiny.

    Each half is a sequence of stages, between which the size changes by a factor of 2.

    Attributes:
        in_channels: the number of channels of a picture.
        latent_channels: the number of channels of the latents.
        decoder_width: the number of channels in the decoder.
        decoder_blocks: the number of blocks in each stage of the decoder.
        encoder_width: the number of channels in the encoder.
        encoder_blocks: the number of blocks in each stage of the encoder; () for a VAE without one.
        scaling_factor: the factor between the VAE's own latents and the diffusion model's.
    """

    in_channels: int
    latent_channels: int
    decoder_width: int
    decoder_blocks: tuple[int, ...]
    encoder_width: int
    encoder_blocks: tuple[int, ...]
    scaling_factor: float

    @property
    def scale_factor(self) -> int:
        """Pixels per latent, along each side."""
        return 2 ** (len(self.decoder_blocks) - 1)


# The configuration of every published one, with the defaults of diffusers' class.
PUBLISHED = TinyVAEConfig(
    in_channels=3,
    latent_channels=4,
    decoder_width=64,
    decoder_blocks=(3, 3, 3, 1),
    encoder_width=64,
    encoder_blocks=(1, 3, 3, 3),
    scaling_factor=1.0,
)


def read_tiny_vae(path: Path) -> TinyVAEConfig:
    """Read a tiny VAE's `config.json`.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    decoder_width, decoder_blocks = _half(keys, "decoder", PUBLISHED.decoder_blocks)
    encoder_width, encoder_blocks = _half(keys, "encoder", PUBLISHED.encoder_blocks)
    if len(encoder_blocks) != len(decoder_blocks):
        right = f"{len(decoder_blocks)} integers, as many as in num_decoder_blocks"
        raise keys.error("num_encoder_blocks", [*encoder_blocks], right)
    config = TinyVAEConfig(
        in_channels=keys.one_of("in_channels", (3,)),
        latent_channels=keys.size("latent_channels", 4),
        decoder_width=decoder_width,
        decoder_blocks=decoder_blocks,
        encoder_width=encoder_width,
        encoder_blocks=encoder_blocks,
        scaling_factor=keys.positive("scaling_factor", 1.0),
    )
    keys.one_of("out_channels", (3,))
    keys.one_of("act_fn", ("relu",))
    keys.one_of("upsample_fn", ("nearest",))
    keys.one_of("upsampling_scaling_factor", (2,))
    keys.one_of("shift_factor", (0.0, 0, None))
    # force_upcast is advice about float16. The magnitude and the shift are for latents in bytes.
    # diffusers writes block_out_channels beside decoder_block_out_channels.
    keys.drop("force_upcast", "latent_magnitude", "latent_shift", "block_out_channels")
    keys.finish()
    return config


def _half(keys: StrictJson, name: str, default: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the width of a half, and the number of blocks in each of its stages."""
    blocks = keys.sizes(f"num_{name}_blocks", [*default])
    key = f"{name}_block_out_channels"
    widths = keys.sizes(key, [64] * len(default))
    if widths != widths[:1] * len(blocks):
        # diffusers' class fails on other widths, because no layer changes them.
        raise keys.error(key, [*widths], f"{len(blocks)} equal integers, one for each stage")
    return widths[0], blocks
