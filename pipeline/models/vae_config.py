"""Configuration of the VAE, from a checkpoint's JSON."""

from dataclasses import dataclass
from pathlib import Path

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
    # force_upcast is advice about float16, which is never used here.
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
