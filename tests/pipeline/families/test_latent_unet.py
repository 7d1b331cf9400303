"""Conditioning on prompts and size, and the scale of latents."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.checkpoints.weights import shape_rngs
from pipeline.families import latent_unet, sdxl
from pipeline.models.clip import CLIPTextEncoder
from pipeline.models.clip_config import TextEncoderConfig
from pipeline.models.unet import Context
from tests.checkpoints import random_module
from tests.networks import INPUT_IDS, TEXT_CONFIG, VAE_CONFIG, vae

IMAGES = 2
SIZE = jnp.array([24.0, 32.0])  # height and width
HALVES = jnp.array([True, False])  # whether each is the negative prompts'
Embeds = tuple[jax.Array, jax.Array | None]


def encode(negative: np.ndarray, zero: list[bool]) -> Embeds:
    both = np.stack([negative, INPUT_IDS])[:, :, None].repeat(2, axis=2)  # [2, B, 2, L]
    encoders = text_encoder(replace(TEXT_CONFIG, projection_dim=None)), text_encoder(TEXT_CONFIG)
    return _encode(encoders, by_encoder(both), jnp.array([zero, [False, False]]))


def by_encoder(both: np.ndarray) -> list[jax.Array]:
    """Return an array `[2, B, E, L]` for each text encoder."""
    return [*jnp.moveaxis(jnp.asarray(both), 2, 0)]


_encode = nnx.jit(latent_unet.encode_prompts)


@cache
def text_encoder(config: TextEncoderConfig) -> CLIPTextEncoder:
    return random_module(lambda: CLIPTextEncoder(config, dtype=jnp.float32, rngs=shape_rngs()))


def test_two_text_encoders_give_prompt_embeds_and_pooled_ones() -> None:
    prompt_embeds, pooled = encode(INPUT_IDS[::-1], [False, False])
    assert prompt_embeds.shape == (2, IMAGES, 6, 16)
    assert pooled is not None
    assert pooled.shape == (2, IMAGES, 5)
    # Negative prompts come first; here they are the prompts in reverse order.
    for embeds in map(np.asarray, (prompt_embeds, pooled)):
        np.testing.assert_allclose(embeds[0], embeds[1, ::-1], atol=1e-6)
        assert np.abs(np.subtract(*embeds[1])).max() > 1e-3


def test_blank_negative_prompts_are_zero_for_their_own_picture() -> None:
    whole, dropped = encode(INPUT_IDS, [False, False]), encode(INPUT_IDS, [True, False])
    for before, after in zip(whole, dropped, strict=True):
        before, after = np.asarray(before), np.asarray(after)
        assert not after[0, 0].any()
        np.testing.assert_array_equal(after[0, 1], before[0, 1])
        np.testing.assert_array_equal(after[1], before[1])
        assert before[0, 0].any()


def weigh(weights: np.ndarray) -> Embeds:
    both = by_encoder(np.stack([INPUT_IDS[::-1], INPUT_IDS])[:, :, None].repeat(2, axis=2))
    encoders = text_encoder(replace(TEXT_CONFIG, projection_dim=None)), text_encoder(TEXT_CONFIG)
    return _encode(encoders, both, jnp.zeros((2, IMAGES), bool), by_encoder(weights))


def test_weights_multiply_hidden_states_and_keep_their_mean() -> None:
    weights = np.ones((2, IMAGES, 2, 6), np.float32)
    weights[1, 0, :, 2] = 1.5
    weights[1, 0, 1, 4] = -0.5
    plain, pooled = map(np.asarray, encode(INPUT_IDS[::-1], [False, False]))
    found, found_pooled = map(np.asarray, weigh(weights))
    np.testing.assert_array_equal(found_pooled, pooled)
    for i, columns in enumerate((slice(8), slice(8, None))):
        states = plain[1, 0, :, columns]
        expected = states * weights[1, 0, i, :, None]
        expected *= states.mean() / expected.mean()
        np.testing.assert_allclose(found[1, 0, :, columns], expected, rtol=1e-5, atol=1e-6)
    # The other prompts have no weights, and stay the same to the bit.
    np.testing.assert_array_equal(found[0], plain[0])
    np.testing.assert_array_equal(found[1, 1], plain[1, 1])


def test_one_text_encoder_gives_prompt_embeds_alone() -> None:
    config = replace(TEXT_CONFIG, projection_dim=None, penultimate=False)
    ids = jnp.asarray(np.stack([INPUT_IDS[::-1], INPUT_IDS]))  # [2, B, L]
    prompt_embeds, pooled = _encode(
        (text_encoder(config),), [ids], jnp.array([[False, True], [False, False]])
    )
    assert prompt_embeds.shape == (2, IMAGES, 6, 8)
    assert prompt_embeds[0, 0].any()
    assert not prompt_embeds[0, 1].any()
    assert pooled is None


def test_sizes_of_a_whole_picture() -> None:
    assert sdxl.time_ids(SIZE, HALVES).tolist() == [[24, 32, 0, 0, 24, 32]] * 2


def test_the_refiner_keeps_away_from_a_low_score() -> None:
    time_ids = sdxl.refiner_time_ids(SIZE, HALVES).tolist()
    assert time_ids == [[24, 32, 0, 0, 2.5], [24, 32, 0, 0, 6.0]]


def test_a_mask_is_the_same_in_both_halves() -> None:
    rng = np.random.default_rng(0)
    context = Context((jnp.zeros((2, IMAGES, 6, 8)),), None)
    mask = jnp.asarray(rng.integers(0, 2, (IMAGES, 4, 4, 1)), jnp.float32)
    latents = jnp.asarray(rng.normal(size=(IMAGES, 4, 4, 3)), jnp.float32)
    found = latent_unet.with_mask(context, mask, latents).masked
    assert found is not None
    assert found.shape == (2, IMAGES, 4, 4, 4)
    for half in found:
        np.testing.assert_array_equal(half[..., :1], mask)  # diffusers puts the mask first
        np.testing.assert_array_equal(half[..., 1:], latents)


def test_encoded_pictures_have_the_scale_of_latents() -> None:
    shifted = replace(VAE_CONFIG, latents_mean=(1.0, -1.0), latents_std=(3.0, 0.5))
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.uniform(size=(2, 8, 8, 3)), jnp.float32)
    for config in (VAE_CONFIG, shifted):
        network = vae(config)
        latents = latent_unet.encode_image({"vae": network}, images)
        mean, _ = network.encode(2 * images - 1)
        assert latents.shape == (2, 4, 4, 2)
        np.testing.assert_allclose(latent_unet.unscale(config, latents), mean, atol=1e-5)
    assert np.abs(latents - VAE_CONFIG.scaling_factor * mean).max() > 0.1


def test_unscale() -> None:
    z = jnp.ones((1, 2, 2, 2))
    np.testing.assert_allclose(latent_unet.unscale(VAE_CONFIG, z), 2)
    shifted = replace(VAE_CONFIG, latents_mean=(1.0, -1.0), latents_std=(3.0, 0.5))
    right = np.broadcast_to([2 * 3 + 1, 2 * 0.5 - 1], (1, 2, 2, 2))
    np.testing.assert_allclose(latent_unet.unscale(shifted, z), right)
