"""Noise levels of a run; agreement with diffusers is in test_golden."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.compiled import MAX_INFERENCE_STEPS
from pipeline.config import SchedulerConfig
from pipeline.scheduler import make_schedule, scale_model_input, step, train_sigmas

SDXL = SchedulerConfig(
    num_train_timesteps=1000,
    beta_start=0.00085,
    beta_end=0.012,
    beta_schedule="scaled_linear",
    prediction_type="epsilon",
    timestep_spacing="leading",
    steps_offset=1,
    use_karras_sigmas=False,
)
STEPS = range(1, MAX_INFERENCE_STEPS + 1)


@pytest.mark.parametrize("karras", [False, True])
@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
def test_every_step_count_gives_falling_noise(spacing: str, karras: bool) -> None:
    config = replace(SDXL, timestep_spacing=spacing, use_karras_sigmas=karras)
    for steps in STEPS:
        schedule = make_schedule(config, steps)
        assert schedule.timesteps.shape == (steps,)
        assert schedule.sigmas.shape == (steps + 1,)
        assert schedule.timesteps.dtype == schedule.sigmas.dtype == np.float32
        assert schedule.sigmas[-1] == 0
        assert (np.diff(schedule.sigmas) < 0).all()
        assert (np.diff(schedule.timesteps) < 0).all()
        assert schedule.timesteps.min() >= 0
        assert schedule.timesteps.max() <= 999


def test_sdxl_in_25_steps() -> None:
    schedule = make_schedule(SDXL, 25)
    assert schedule.timesteps.tolist() == [961 - 40 * i for i in range(25)]
    assert schedule.init_noise_sigma == pytest.approx((schedule.sigmas[0] ** 2 + 1) ** 0.5)


def test_spacings() -> None:
    first_and_last = {
        spacing: make_schedule(replace(SDXL, timestep_spacing=spacing), 10).timesteps[[0, -1]]
        for spacing in ("leading", "trailing", "linspace")
    }
    assert first_and_last["leading"].tolist() == [901, 1]
    assert first_and_last["trailing"].tolist() == [999, 99]
    assert first_and_last["linspace"].tolist() == [999, 0]


def test_only_leading_starts_from_the_variance_preserving_level() -> None:
    schedule = make_schedule(replace(SDXL, timestep_spacing="trailing"), 10)
    assert schedule.init_noise_sigma == pytest.approx(schedule.sigmas[0])


def test_beta_schedules_differ() -> None:
    linear = train_sigmas(replace(SDXL, beta_schedule="linear"))
    scaled = train_sigmas(SDXL)
    assert linear[0] == pytest.approx(scaled[0], rel=1e-3)
    assert linear[500] > 1.1 * scaled[500]
    assert (np.diff(linear) > 0).all()


def test_scaled_input_has_unit_variance() -> None:
    rng = np.random.default_rng(0)
    noisy = rng.normal(size=10_000) + 7 * rng.normal(size=10_000)
    scaled = scale_model_input(jnp.float32(noisy), jnp.float32(7))
    assert float(scaled.std()) == pytest.approx(1, abs=0.02)


def test_both_predictions_step_to_the_clean_picture() -> None:
    """A perfect prediction, and one step to noise level 0, is the picture itself."""
    rng = np.random.default_rng(0)
    clean, noise = jnp.float32(rng.normal(size=(2, 4, 4, 3)))
    sigma = jnp.float32(3)
    latents = clean + sigma * noise
    root = jnp.sqrt(sigma**2 + 1)
    v = (noise - sigma * clean) / root
    for prediction, kind in ((noise, "epsilon"), (v, "v_prediction")):
        result = step(prediction, latents, sigma, jnp.float32(0), kind)
        np.testing.assert_allclose(result, clean, atol=1e-5)


def test_a_step_of_no_length_changes_nothing() -> None:
    latents = jnp.ones((1, 2, 2, 1))
    result = step(7 * latents, latents, jnp.float32(2), jnp.float32(2), "epsilon")
    np.testing.assert_array_equal(result, latents)
