"""The pure functions between seeds and pictures."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.families import latent_unet
from pipeline.runtime import sampler
from tests.pipeline.models.test_vae import CONFIG as VAE
from tests.pipeline.models.test_vae import vae


def test_noise_depends_on_its_own_seed_alone() -> None:
    shape = (8, 8, 4)
    drawn = np.asarray(sampler.noise(jnp.array([0, 1, 2**32 - 1], jnp.uint32), shape))
    alone = np.asarray(sampler.noise(jnp.array([2**32 - 1], jnp.uint32), shape))
    assert (drawn.shape, drawn.dtype) == ((3, *shape), np.float32)
    np.testing.assert_array_equal(drawn[2], alone[0])
    assert len({row.tobytes() for row in drawn}) == 3
    many = np.asarray(sampler.noise(jnp.arange(64, dtype=jnp.uint32), shape))
    assert abs(many.mean()) < 0.03
    assert abs(many.std() - 1) < 0.03


def test_variations_lie_between_two_draws() -> None:
    shape = (8, 8, 4)
    seeds, others = jnp.array([3, 3, 5], jnp.uint32), jnp.array([7, 8, 5], jnp.uint32)

    own, whole = (np.asarray(sampler.noise(each, shape)) for each in (seeds, others))

    def draw(strength: float) -> np.ndarray:
        return np.asarray(sampler.vary(jnp.array(own), jnp.array(whole), jnp.float32(strength)))

    np.testing.assert_allclose(draw(0), own, atol=1e-5)
    np.testing.assert_allclose(draw(1), whole, atol=1e-5)
    half = draw(0.5)
    np.testing.assert_allclose(half[2], own[2], atol=1e-5)  # both seeds are the same
    # Half-way noise is equally far from both, and has the same length.
    for one in range(2):
        a, b, middle = (each[one].ravel() for each in (own, whole, half))
        np.testing.assert_allclose(middle @ a / (a @ a), middle @ b / (b @ b), rtol=0.1)
        assert abs(middle.std() - 1) < 0.1
    distances = [np.abs(draw(strength)[0] - own[0]).mean() for strength in (0.1, 0.3, 0.6, 1)]
    assert distances == sorted(distances)


def test_noise_does_not_follow_the_default_generator() -> None:
    def draw() -> np.ndarray:
        return np.asarray(sampler.noise(jnp.array([7], jnp.uint32), (2, 2, 4)))

    usual = draw()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(draw(), usual)


def test_step_noise_depends_on_seed_and_evaluation_alone() -> None:
    shape, seeds = (8, 8, 4), jnp.array([0, 1, 2**32 - 1], jnp.uint32)
    drawn = [np.asarray(sampler.step_noise(seeds, i, shape)) for i in (0, 1, 40)]
    alone = np.asarray(sampler.step_noise(seeds[2:], 1, shape))
    np.testing.assert_array_equal(drawn[1][2], alone[0])
    different = [*drawn, np.asarray(sampler.noise(seeds, shape))]
    assert len({row.tobytes() for rows in different for row in rows}) == 12
    assert abs(np.mean(drawn)) < 0.05
    assert abs(np.std(drawn) - 1) < 0.05


def test_pictures_are_clipped_and_rounded() -> None:
    latents = 20 * jnp.array(np.random.default_rng(0).normal(size=(2, 4, 4, 2)), jnp.float32)

    @jax.jit
    def decode(latents: jax.Array) -> tuple[jax.Array, jax.Array]:
        return sampler.decode(partial(latent_unet.decode, {"vae": vae(VAE)}), latents)

    as_float, as_bytes = decode(latents)
    assert (as_float.shape, as_float.dtype) == ((2, 8, 8, 3), jnp.float32)
    assert (as_bytes.shape, as_bytes.dtype) == ((2, 8, 8, 3), jnp.uint8)
    assert 0 <= as_float.min() < as_float.max() <= 1
    np.testing.assert_array_equal(as_bytes, np.round(np.asarray(as_float) * 255))
