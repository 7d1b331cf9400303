"""Zero terminal SNR: agreement with diffusers' schedulers, step by step, and with the paper."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.runtime.sampler import step_noise
from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.methods import REMEMBERED, State, make_schedule, step
from pipeline.schedulers.sigmas import alphas_cumprod, train_sigmas
from tests.pipeline.schedulers.test_methods import SDXL
from tools.agreement import relative_error

LATENTS_BOUND = 1e-4  # as for golden files
ZERO_SNR = replace(SDXL, rescale_betas_zero_snr=True, steps_offset=0)

with np.load(Path(__file__).parents[2] / "golden/zero_snr.npz", allow_pickle=False) as arrays:
    GOLDEN = dict(arrays)
CASES = [key for key in GOLDEN if key.count("/") == 2]  # scheduler, spacing, prediction type


def config_of(case: str) -> SchedulerConfig:
    name, spacing, prediction_type = case.split("/")
    return replace(ZERO_SNR, name=name, timestep_spacing=spacing, prediction_type=prediction_type)


@pytest.mark.parametrize("case", CASES)
def test_every_step_is_as_in_diffusers(case: str) -> None:
    predictions, expected = GOLDEN["predictions"], GOLDEN[case]
    schedule = make_schedule(config_of(case), len(predictions))
    np.testing.assert_array_equal(schedule.timesteps, GOLDEN[f"{case}/timesteps"])
    latents = jnp.asarray(GOLDEN["latents"]) * np.float32(schedule.init_noise_sigma)
    state = State(latents, jnp.zeros((REMEMBERED, *latents.shape)))
    assert relative_error(np.asarray(latents), expected[0]) <= LATENTS_BOUND
    for i, prediction in enumerate(predictions):
        row = jax.tree.map(lambda column, i=i: jnp.asarray(column[i]), schedule.table)
        noise = step_noise(jnp.arange(len(latents), dtype=jnp.uint32), i, latents.shape[1:])
        state = step(jnp.asarray(prediction), state, row, noise)
        assert relative_error(np.asarray(state.latents), expected[i + 1]) <= LATENTS_BOUND


def test_alphas_are_those_of_diffusers() -> None:
    # The last ones are small differences, which magnify the rounding of the betas.
    np.testing.assert_allclose(alphas_cumprod(ZERO_SNR), GOLDEN["alphas_cumprod"], rtol=5e-5)


def test_no_signal_is_left_at_the_last_timestep() -> None:
    before = alphas_cumprod(replace(ZERO_SNR, rescale_betas_zero_snr=False)).astype(np.float64)
    after = alphas_cumprod(ZERO_SNR)
    assert after[-1] == 0
    assert after[0] == pytest.approx(before[0], rel=1e-6)
    roots = np.sqrt(before)
    shifted = (roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])
    np.testing.assert_allclose(np.sqrt(after), shifted, atol=1e-6)


def test_sigmas_are_finite() -> None:
    sigmas = train_sigmas(ZERO_SNR)
    assert sigmas[-1] == pytest.approx(4096)
    assert (np.diff(sigmas) > 0).all()
