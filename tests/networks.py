"""Small networks, and their configurations."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from pipeline.checkpoints import weights
from pipeline.checkpoints.tensors import open_tensors
from pipeline.checkpoints.weights import shape_rngs
from pipeline.families import read_config
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.clip_config import TextEncoderConfig
from pipeline.models.unet import UNet
from pipeline.models.vae import VAE
from pipeline.models.vae_config import VAEConfig
from tests.checkpoints import random_module

END = 9
TEXT_CONFIG = TextEncoderConfig(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=6,
    hidden_act="gelu",
    layer_norm_eps=1e-5,
    eos_token_id=END,
    projection_dim=5,
    penultimate=True,
)
INPUT_IDS = np.array([[0, 3, 4, END, 1, 1], [0, END, 1, 1, 1, 1]], np.int32)


VAE_CONFIG = VAEConfig(
    in_channels=3,
    latent_channels=2,
    block_out_channels=(4, 8),
    layers_per_block=1,
    norm_num_groups=2,
    scaling_factor=0.5,
    latents_mean=None,
    latents_std=None,
    use_quant_conv=True,
    use_post_quant_conv=True,
    mid_block_add_attention=True,
)


@cache
def vae(config: VAEConfig) -> VAE:
    return random_module(lambda: VAE(config, dtype=jnp.float32, rngs=shape_rngs()))


MODULES: dict[str, Callable[..., nnx.Module]] = {
    "text_encoder": CLIPTextEncoder,
    "text_encoder_2": CLIPTextEncoder,
    "unet": UNet,
    "vae": VAE,
}


def find(
    checkpoint: Path, component: str, dtype: DTypeLike = jnp.float32
) -> weights.PendingWeights[nnx.Module]:
    config = read_config(checkpoint).networks[component]
    make = partial(MODULES[component], config, dtype=dtype, rngs=weights.shape_rngs())
    return weights.match_weights(
        nnx.eval_shape(make), partial(open_tensors, checkpoint / component)
    )


def load_weights(checkpoint: Path, component: str) -> nnx.Module:
    return find(checkpoint, component).load(jnp.asarray)


def same_weights(one: nnx.Module, other: nnx.Module) -> bool:
    ours, theirs = weights.to_checkpoint(one), weights.to_checkpoint(other)
    return ours.keys() == theirs.keys() and all(
        np.array_equal(tensor, theirs[name]) for name, tensor in ours.items()
    )
