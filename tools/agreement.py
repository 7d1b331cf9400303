"""This project's networks one by one, for comparison with another implementation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.checkpoints.tensors import open_tensors
from pipeline.checkpoints.weights import OpenTensors, match_weights, shape_rngs
from pipeline.families import read_config
from pipeline.families.family import Config
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.unet import UNet
from pipeline.models.vae import VAE
from pipeline.text.tokenizer import Tokenizers

M = TypeVar("M", bound=nnx.Module)
R = TypeVar("R")


def relative_error(outputs: np.ndarray, reference: np.ndarray) -> float:
    """Return the largest absolute difference over the largest absolute value of `reference`.

    Raises:
        ValueError: if the shapes differ.
    """
    if outputs.shape != reference.shape:
        raise ValueError(f"shapes differ: {outputs.shape} and {reference.shape}")
    difference = np.abs(outputs.astype(np.float64) - reference.astype(np.float64)).max()
    return float(difference / np.abs(reference).max())


@dataclass(frozen=True)
class Networks:
    """A checkpoint's tokenizers and networks, float32, not compiled together."""

    config: Config
    tokenizers: Tokenizers
    text_encoders: tuple[CLIPTextEncoder, ...]
    unet: UNet
    vae: VAE


def load_networks(folder: Path, config: Config | None = None) -> Networks:
    """Load a checkpoint from a local folder; `config` is its configuration, if already read."""
    config = config or read_config(folder)
    encoders = config.text_encoders
    return Networks(
        config=config,
        tokenizers=Tokenizers.load(folder, config.tokenizers),
        text_encoders=tuple(
            load_module(CLIPTextEncoder, part, folder / name) for name, part in encoders.items()
        ),
        unet=load_module(UNet, config.networks["unet"], folder / "unet"),
        vae=load_module(VAE, config.networks["vae"], folder / "vae"),
    )


def load_module(kind: Callable[..., M], config: object, folder: Path) -> M:
    """Load one network in float32 from its component's folder."""
    return load_tensors(kind, config, partial(open_tensors, folder))


def load_tensors(kind: Callable[..., M], config: object, open_files: OpenTensors) -> M:
    """Load one network in float32; `open_files` opens its tensors."""
    network = nnx.eval_shape(lambda: kind(config, dtype=jnp.float32, rngs=shape_rngs()))
    return match_weights(network, open_files).load(jnp.asarray)


def compiled(function: Callable[..., R]) -> Callable[..., R]:
    """Compile a function of a module with `jax.jit`, at every call.

    `nnx.jit` would return a copy of all parameters, which is too much at full size.
    """

    @wraps(function)
    def run(module: nnx.Module, *inputs: jax.Array) -> R:
        graphdef, state = nnx.split(module)
        pure_function = jax.jit(
            lambda state, *inputs: function(nnx.merge(graphdef, state), *inputs)
        )
        return pure_function(state, *inputs)

    return run


@compiled
def text_states(encoder: CLIPTextEncoder, ids: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Return a prompt's hidden states `[B, L, D]` and pooled `[B, P]` or None, for `[B, L]` ids."""
    return encoder(ids)


@compiled
def unet_prediction(
    unet: UNet,
    latents: jax.Array,
    timesteps: jax.Array,
    prompt_embeds: jax.Array,
    pooled_prompt_embeds: jax.Array | None = None,
    add_time_ids: jax.Array | None = None,
    guidance_scale: jax.Array | None = None,
) -> jax.Array:
    """Run one forward pass with all its conditioning; return `[B, h, w, C]`."""
    guidance = None if guidance_scale is None else guidance_scale - 1
    context = unet.condition(prompt_embeds, pooled_prompt_embeds, add_time_ids, guidance)
    return unet(latents, timesteps, context)


@compiled
def vae_moments(vae: VAE, images: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Encode pictures `[B, H, W, 3]` in -1..1; return mean and log variance `[B, h, w, C]`."""
    return vae.encode(images)


@compiled
def vae_decoded(vae: VAE, z: jax.Array) -> jax.Array:
    """Decode the VAE's own latents `[B, h, w, C]`; return pictures `[B, H, W, 3]`."""
    return vae.decode(z)
