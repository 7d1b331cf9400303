"""Configuration of a ControlNet, from the JSON beside its weights."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.models.unet_config import NEUTRAL, EncoderConfig, check_encoder, read_encoder
from pipeline.strict_json import StrictJson

# The channels of the hint network by default, by class. The union network's own repository names
# the first class, and a number of types.
HINT_CHANNELS = {
    "ControlNetModel": [16, 32, 96, 256],
    "ControlNetUnionModel": [48, 96, 192, 384],
}
TYPES = "num_control_type"  # the key that only union networks have


@dataclass(frozen=True, kw_only=True)
class ControlNetConfig(EncoderConfig):
    """Configuration of ControlNetModel and ControlNetUnionModel.

    `hint_channels` are those of the network that reads the hint, from full resolution down.
    `bgr`: whether it takes the hint's channels in reverse order.
    `global_pool`: whether every residual is its mean over the picture.
    `control_types` is the number of types of hints that a union network tells apart, 0 for others,
    and `fusing_layers` that of its layers which do.
    """

    hint_channels: tuple[int, ...]
    bgr: bool = False
    global_pool: bool = False
    control_types: int = 0
    fusing_layers: int = 1

    @property
    def latent_channels(self) -> int:
        """Channels of the latents."""
        return self.in_channels

    @property
    def scale_factor(self) -> int:
        """How many times smaller than the hint the latents are along each side."""
        return 2 ** (len(self.hint_channels) - 1)


def read_controlnet(path: Path) -> ControlNetConfig:
    """Read a ControlNet's `config.json`.

    Raises:
        CheckpointError: if a setting is not supported; the message names file, key and value.
    """
    keys = StrictJson(path)
    class_name = keys.one_of("_class_name", [*HINT_CHANNELS])
    is_union = TYPES in keys.values or class_name == "ControlNetUnionModel"
    keys.expect({"conditioning_channels": (3,), "time_cond_proj_dim": (None,)})
    addition = is_union or keys.values.get("addition_embed_type") is not None
    encoder, _ = read_encoder(keys, addition=addition)
    width = encoder["block_out_channels"][0]
    if is_union:
        keys.expect({"num_trans_channel": (width,), "num_proj_channel": (width,)})
    config = ControlNetConfig(
        **encoder,
        hint_channels=keys.sizes("conditioning_embedding_out_channels", HINT_CHANNELS[class_name]),
        bgr=keys.one_of("controlnet_conditioning_channel_order", ("rgb", "bgr")) == "bgr",
        global_pool=keys.take("global_pool_conditions", bool, False),
        control_types=keys.size(TYPES, 6) if is_union else 0,
        fusing_layers=keys.size("num_trans_layer", 1) if is_union else 1,
    )
    keys.expect(NEUTRAL)
    # Attention over one token has the same result with any number of heads.
    keys.finish("addition_embed_type_num_heads", *(["num_trans_head"] if is_union else []))
    check_encoder(keys, config)
    return config
