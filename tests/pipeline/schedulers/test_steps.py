"""Agreement with diffusers' schedulers, evaluation by evaluation, over all their options."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.runtime.sampler import step_noise
from pipeline.schedulers.config import SCHEDULERS
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.sigmas import alphas_cumprod, train_sigmas
from pipeline.schedulers.stepping import add_noise, step
from pipeline.schedulers.table import REMEMBERED, State
from tests.scheduler_cases import SDXL, cases, config_of, part_of, with_zero_snr
from tools.agreement import relative_error

STEP_BOUND = 1e-5  # relative, of the latents
# Latents of a schedule with zero terminal SNR begin 4096 times as large as they end, and both
# sides round them.
ZERO_SNR_BOUND = 1e-4
ZERO_SNR = replace(with_zero_snr(SDXL), steps_offset=0)

with np.load(Path(__file__).parents[2] / "golden/schedulers.npz", allow_pickle=False) as arrays:
    GOLDEN = dict(arrays)
CASES = [key for key in GOLDEN if key.endswith("}")]


def test_every_case_is_in_the_golden_file() -> None:
    assert list(map(json.dumps, cases())) == CASES


@pytest.mark.parametrize("key", CASES)
def test_every_evaluation_is_as_in_diffusers(key: str) -> None:
    case = json.loads(key)
    config, predictions, expected = config_of(case), GOLDEN["predictions"], GOLDEN[key]
    bound = ZERO_SNR_BOUND if config.betas.zero_snr else STEP_BOUND
    schedule = make_schedule(config, case["steps"], **part_of(case))
    np.testing.assert_allclose(schedule.timesteps, GOLDEN[f"{key} timesteps"], atol=1e-3)
    latents = jnp.asarray(GOLDEN["latents"]) * np.float32(schedule.init_noise_sigma)
    if f"{key} noised" in GOLDEN:
        x0, noise = (jnp.asarray(GOLDEN[name]) for name in ("x0", "latents"))
        latents = add_noise(x0, noise, jnp.asarray(schedule.noised[0]))
    state = State(latents, jnp.zeros((REMEMBERED, *latents.shape)))
    assert relative_error(np.asarray(latents), expected[0]) <= bound
    assert schedule.stops[-1] == len(schedule.timesteps) == len(expected) - 1
    for i, after in enumerate(expected[1:]):
        row = jax.tree.map(lambda column, i=i: jnp.asarray(column[i]), schedule.table)
        noise = step_noise(jnp.arange(len(latents), dtype=jnp.uint32), i, latents.shape[1:])
        state = step(jnp.asarray(predictions[i]), state, row, noise)
        assert relative_error(np.asarray(state.latents), after) <= bound


@pytest.mark.parametrize("key", [key for key in CASES if f"{key} noised" in GOLDEN])
def test_the_noised_picture_is_that_of_diffusers(key: str) -> None:
    case = json.loads(key)
    schedule = make_schedule(config_of(case), case["steps"], **part_of(case))
    expected = GOLDEN[f"{key} noised"]
    assert len(schedule.noised) == len(expected) + 1
    np.testing.assert_array_equal(schedule.noised[-1], [1, 0])
    # diffusers gives the middle of a step of this scheduler the noise of the step's end.
    each = SCHEDULERS[case["name"]].evaluations
    for (signal, deviation), right in zip(schedule.noised[:-1:each], expected[::each], strict=True):
        noised = signal * GOLDEN["x0"] + deviation * GOLDEN["latents"]
        assert relative_error(noised, right) <= STEP_BOUND


def test_alphas_are_those_of_diffusers() -> None:
    # The last ones are small differences, which magnify the rounding of the betas.
    np.testing.assert_allclose(
        alphas_cumprod(ZERO_SNR), GOLDEN["zero_snr_alphas_cumprod"], rtol=5e-5
    )


def test_no_signal_is_left_at_the_last_timestep() -> None:
    before = alphas_cumprod(with_zero_snr(ZERO_SNR, False)).astype(np.float64)
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
