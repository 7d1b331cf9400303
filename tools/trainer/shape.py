"""The miniature's configuration, where it differs from that of today's."""

from tools.miniature.shape import SCHEDULER as OLD_SCHEDULER
from tools.miniature.shape import UNET as OLD_UNET
from tools.miniature.shape import VAE as OLD_VAE

LATENT_CHANNELS = 4
LATENT_SIZE = 32

UNET = OLD_UNET | {
    "attention_head_dim": [1, 2, 4, 6],
    "block_out_channels": [32, 64, 128, 240],
    "down_block_types": ["DownBlock2D"] * 2 + ["CrossAttnDownBlock2D"] * 2,
    "in_channels": LATENT_CHANNELS,
    "out_channels": LATENT_CHANNELS,
    "resnet_time_scale_shift": "scale_shift",
    "sample_size": LATENT_SIZE,
    "time_embedding_dim": 384,
    "transformer_layers_per_block": [1, 1, 1, 1],
    "up_block_types": ["CrossAttnUpBlock2D"] * 2 + ["UpBlock2D"] * 2,
}
VAE = OLD_VAE | {
    "block_out_channels": [8, 24, 48, 96],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "latent_channels": LATENT_CHANNELS,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}
SCHEDULER = OLD_SCHEDULER | {"prediction_type": "v_prediction", "timestep_spacing": "trailing"}
