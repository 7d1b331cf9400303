"""The parts that families with CLIP text encoders, a UNet and a VAE have in common."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from pipeline.errors import CheckpointError
from pipeline.families.family import Architecture, Computation, Config, Control, Network, StepCache
from pipeline.families.halves import joined, split
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.controlnet import ControlNet
from pipeline.models.controlnet_config import read_controlnet
from pipeline.models.shapes import controlnet_of, tiny_vae_of, vae_of
from pipeline.models.tiny_vae import TinyVAE
from pipeline.models.unet import Context, UNet, masked_input
from pipeline.models.unet_config import UNetConfig
from pipeline.models.vae import VAE
from pipeline.models.vae_config import VAEConfig, read_tiny_vae, read_vae

CONTROL = "control"  # the name of a network that guides the UNet
# Networks by name.
Networks = Mapping[str, Any]
# The hidden states `[H, B, L, D]` of prompts, and their pooled embeddings `[H, B, P]` or None.
Embeds = tuple[Array, Array | None]


def check_unet_size(file: Path, key: str, value: int, right: int, why: str) -> None:
    """Raise CheckpointError if a size of the UNet does not fit another network."""
    if value != right:
        raise CheckpointError(f"{file}: {key} = {value} does not fit; expected {right}, {why}")


def check(file: Path, config: Config) -> None:
    """Raise CheckpointError if the UNet does not fit the VAE or the text encoders."""
    unet, channels = config.networks["unet"], config.networks["vae"].latent_channels
    width = sum(encoder.hidden_size for encoder in config.text_encoders.values())
    why = "the VAE's latent_channels", "the text encoders' width"
    if unet.takes_mask:
        channels, why = 2 * channels + 1, (f"2 * {channels} + 1, from {why[0]}", why[1])
    if len({*config.tokens}) > 1:
        names = ", ".join(map(str, config.text_encoders))
        raise CheckpointError(
            f"{file}: the tokenizers of {names} have model_max_length {config.tokens}; expected"
            " one length for all, because the UNet takes their states side by side"
        )
    check_unet_size(file, "in_channels", unet.in_channels, channels, why[0])
    check_unet_size(file, "cross_attention_dim", unet.cross_attention_dim, width, why[1])


def encode_prompts(
    text_encoders: Sequence[CLIPTextEncoder],
    input_ids: Sequence[Array],
    zeroed: Array,
    weights: Sequence[Array] | None = None,
    clip_skip: Array | None = None,
) -> Embeds:
    """Return `prompt_embeds` and `pooled_prompt_embeds`; see `Architecture.encode`.

    Weights change the hidden states alone.

    Returns:
        The hidden states `[H, B, L, D]` of all text encoders side by side, and the pooled
        embeddings `[H, B, P]` of the last one, which are None if it has no projection.
    """
    halves = len(zeroed)
    skips = {} if clip_skip is None else {"clip_skip": joined(clip_skip)}
    outputs = [
        encoder(joined(ids), **skips) for encoder, ids in zip(text_encoders, input_ids, strict=True)
    ]
    hidden = [states for states, _ in outputs]
    if weights is not None:
        hidden = [
            weighted(states, joined(counts)) for states, counts in zip(hidden, weights, strict=True)
        ]
    embeds = split(jnp.concatenate(hidden, axis=-1), halves)
    embeds = jnp.where(zeroed[:, :, None, None], 0, embeds)
    _, pooled = outputs[-1]
    if pooled is None:
        return embeds, None
    return embeds, jnp.where(zeroed[:, :, None], 0, split(pooled, halves))


def weighted(states: Array, weights: Array) -> Array:
    """Return hidden states `[N, L, D]` multiplied by weights `[N, L]` float32.

    Each prompt keeps the mean of its states, as in AUTOMATIC1111's `EmphasisOriginal`:
    https://github.com/AUTOMATIC1111/stable-diffusion-webui/blob/master/modules/sd_emphasis.py
    States whose weights are all 1 stay the same to the bit.
    """
    before = states.astype(jnp.float32)
    after = before * weights[..., None]
    axes = (1, 2)
    after *= before.mean(axes, keepdims=True) / after.mean(axes, keepdims=True)
    unchanged = (weights == 1).all(-1)[:, None, None]
    return jnp.where(unchanged, states, after.astype(states.dtype))


def encode(
    names: Sequence[str],
    networks: Networks,
    input_ids: Sequence[Array],
    zeroed: Array,
    weights: Sequence[Array] | None = None,
    clip_skip: Array | None = None,
) -> Embeds:
    """Encode prompts by the text encoders of these names; see `Architecture.encode`."""
    text_encoders = [networks[name] for name in names]
    return encode_prompts(text_encoders, input_ids, zeroed, weights, clip_skip)


def condition(
    networks: Networks, embeds: Embeds, size: Array, is_negative: Array, guidance: Array
) -> Context:
    """Return the UNet's context for prompts, `[H, B, ...]`; see `Architecture.condition`."""
    hidden, _ = embeds
    halves = len(hidden)
    context = networks["unet"].condition(joined(hidden), guidance=jnp.tile(guidance, halves))
    return jax.tree.map(lambda batch: split(batch, halves), context)


def with_chunks(context: Context, room: int, chunks: Array) -> Context:
    """Add the chunks' axis to keys and values `[H, B, L, ...]`; see `Architecture.with_chunks`."""
    keys_values = tuple(jnp.repeat(x[:, :, None], room, axis=2) for x in context.keys_values)
    return context._replace(keys_values=keys_values, chunks=chunks)


def predict(networks: Networks, latents: Array, timesteps: Array, context: Context) -> Array:
    """Run the UNet; see `Architecture.predict`."""
    return networks["unet"](latents, timesteps, context)


def predict_cached(
    networks: Networks,
    latents: Array,
    timesteps: Array,
    context: Context,
    deep: Array,
    shallow: Array,
) -> tuple[Array, Array]:
    """Run the UNet, or where possible its shallow part alone; see `StepCache`."""
    unet: UNet = networks["unet"]

    def renewed() -> Array:
        new_features = unet.deep(latents, timesteps, context)
        return jnp.where(shallow[:, None, None, None], deep, new_features)

    features = jax.lax.cond(shallow.all(), lambda: deep, renewed)
    return unet.shallow(latents, timesteps, context, features), features


def hint(networks: Networks, images: Array, kinds: Array, weights: Array) -> Array:
    """Read pictures to follow; see `Control.hint`."""
    return networks[CONTROL].hint(images, kinds, weights)


def control_condition(
    condition: Callable[..., Context], networks: Networks, embeds: Embeds, *inputs: Array
) -> Context:
    """Return a ControlNet's context for prompts, which the UNet's `condition` makes."""
    *numbers, types = inputs
    network, halves = networks[CONTROL], len(embeds[0])
    types = types[:, : max(network.config.control_types, 1)]  # other networks take none
    all_types = joined(jnp.broadcast_to(types, (halves, *types.shape)))
    unet = SimpleNamespace(condition=partial(network.condition, control_types=all_types))
    return condition({"unet": unet}, embeds, *numbers)


def control_predict(
    networks: Networks, latents: Array, timesteps: Array, context: Context, hints: Array
) -> tuple[Array, ...]:
    """Run a ControlNet; see `Control.predict`."""
    return networks[CONTROL](latents, timesteps, context, hints)


def residual_shapes(config: Config, height: int, width: int) -> tuple[tuple[int, int, int], ...]:
    """Return the shapes `(h, w, C)` of the UNet's skips and of its middle block's output."""
    rows, columns, _ = latents_shape(config, height, width)
    unet: UNetConfig = config.networks["unet"]
    levels = [0]
    for level, layers in enumerate(unet.layers_per_block):
        levels += [*[level] * layers, level + 1]
    # The last block does not downsample.
    pairs = zip(levels[:-1], unet.skip_channels, strict=True)
    shapes = [(rows >> level, columns >> level, channels) for level, channels in pairs]
    return (*shapes, shapes[-1])


def with_residuals(context: Context, residuals: tuple[Array, ...]) -> Context:
    """Add residuals to a context; see `Control.with_residuals`."""
    return context._replace(residuals=residuals)


def deep_shape(config: Config, height: int, width: int) -> tuple[int, int, int]:
    """Return the shape `(h, w, C)` of the UNet's deep features."""
    rows, columns, _ = latents_shape(config, height, width)
    return rows, columns, config.networks["unet"].block_out_channels[0]


def decode(networks: Networks, latents: Array) -> Array:
    """Decode latents `[B, h, w, C]` to pictures `[B, H, W, 3]`, float32 in 0..1."""
    vae: VAE = networks["vae"]
    return jnp.clip(vae.decode(unscale(vae.config, latents)) / 2 + 0.5, 0, 1)


def tiny_decode(networks: Networks, latents: Array) -> Array:
    """Do what `decode` does, with the tiny VAE."""
    vae: TinyVAE = networks["tiny_vae"]
    return jnp.clip(vae.decode(latents / vae.config.scaling_factor) / 2 + 0.5, 0, 1)


def encode_image(networks: Networks, images: Array) -> Array:
    """Encode pictures `[B, H, W, 3]` in 0..1 to the mean `[B, h, w, C]` of their latents."""
    vae: VAE = networks["vae"]
    mean, _ = vae.encode(2 * images - 1)
    return scale(vae.config, mean)


def with_mask(context: Context, mask: Array, masked_latents: Array) -> Context:
    """Add a mask and a masked picture to a context; see `Architecture.with_mask`."""
    mask_channels = masked_input(mask, masked_latents)
    halves = len(context.keys_values[0])
    return context._replace(masked=jnp.broadcast_to(mask_channels, (halves, *mask_channels.shape)))


def scale(config: VAEConfig, z: Array) -> Array:
    """Convert the VAE's own latents to the diffusion model's, the inverse of `unscale`."""
    if config.latents_mean is not None and config.latents_std is not None:
        z = z - jnp.array(config.latents_mean, jnp.float32)
        z = z / jnp.array(config.latents_std, jnp.float32)
    return z * config.scaling_factor


def unscale(config: VAEConfig, latents: Array) -> Array:
    """Convert the diffusion model's latents (about unit variance) to the VAE's own."""
    z = latents / config.scaling_factor
    if config.latents_mean is not None and config.latents_std is not None:
        z = z * jnp.array(config.latents_std, jnp.float32)
        z = z + jnp.array(config.latents_mean, jnp.float32)
    return z


def latents_shape(config: Config, height: int, width: int) -> tuple[int, int, int]:
    """Return the shape `(h, w, C)` of a picture's latents."""
    factor = config.networks["vae"].scale_factor
    return height // factor, width // factor, config.networks["vae"].latent_channels


def architecture(
    config: Config,
    condition: Callable[..., Context] = condition,
    *,
    needs_image: bool = False,
    max_clip_skip: int = 0,
) -> Architecture:
    """Return what the networks of a checkpoint compute.

    `condition` is the function of `Architecture.condition`.
    """
    unet, names = config.networks["unet"], (*config.text_encoders,)
    factor = config.networks["vae"].scale_factor
    height, width = unet.sample_size
    return Architecture(
        encode=Computation(names, partial(encode, names)),
        condition=Computation(("unet",), condition),
        predict=Computation(("unet",), predict),
        decode=Computation(("vae",), decode),
        encode_image=Computation(("vae",), encode_image),
        latents_shape=partial(latents_shape, config),
        size_multiple=factor * 2 ** (len(unet.block_out_channels) - 1),
        default_size=(height * factor, width * factor),
        needs_image=needs_image,
        max_clip_skip=max_clip_skip,
        embeds_guidance=unet.time_cond_proj_dim is not None,
        tiny_decode=None if config.tiny_vae is None else Computation(("tiny_vae",), tiny_decode),
        step_cache=StepCache(Computation(("unet",), predict_cached), partial(deep_shape, config)),
        with_chunks=with_chunks,
        with_mask=with_mask if unet.takes_mask else None,
        control=Control(
            Computation((CONTROL,), hint),
            Computation((CONTROL,), partial(control_condition, condition)),
            Computation((CONTROL,), control_predict),
            partial(residual_shapes, config),
            with_residuals,
        ),
    )


VAE_NETWORK = Network(
    "vae",
    "AutoencoderKL",
    read_vae,
    VAE,
    # SDXL's published VAE has activations beyond 65504.
    dtypes={"float16": jnp.float32},
    fit=vae_of,
)
TINY_VAE_NETWORK = Network("tiny_vae", "AutoencoderTiny", read_tiny_vae, TinyVAE, fit=tiny_vae_of)
CONTROL_NETWORK = Network(
    CONTROL, "ControlNetModel", read_controlnet, ControlNet, fit=controlnet_of
)
UNET_CLASS = "UNet2DConditionModel"
