"""Sigmas and coefficients of a run; agreement with diffusers is in test_steps."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.schedulers.config import (
    MAX_INFERENCE_STEPS,
    SCHEDULERS,
    SIGMA_KEYS,
    SchedulerConfig,
    count_evaluations,
)
from pipeline.schedulers.dpm_solver import solver_sigmas
from pipeline.schedulers.euler import euler_sigmas, lms_weights
from pipeline.schedulers.methods import METHODS, make_schedule
from pipeline.schedulers.pndm import PNDM_WEIGHTS
from pipeline.schedulers.sigmas import alphas_cumprod, train_sigmas
from pipeline.schedulers.stepping import add_noise, blend, scale_model_input, step
from pipeline.schedulers.table import REMEMBERED, Kept, State
from tests.scheduler_cases import SDXL, with_zero_snr

STEPS = range(1, MAX_INFERENCE_STEPS + 1)
SPACINGS = ["leading", "trailing", "linspace"]
# Schedulers that add noise without being asked to.
NOISY = ("euler-ancestral", "ddpm", "dpmsolver++-2m-sde", "dpmsolver++-sde", "lcm")


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("sigma_schedule", ["default", *SIGMA_KEYS.values()])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("sigmas_of", [euler_sigmas, solver_sigmas])
def test_every_step_count_gives_falling_noise(
    sigmas_of, spacing: str, sigma_schedule: str, zero_snr: bool
) -> None:
    spaced = replace(SDXL, timestep_spacing=spacing, sigma_schedule=sigma_schedule)
    config = with_zero_snr(spaced, zero_snr)
    for steps in STEPS:
        timesteps, sigmas = sigmas_of(config, steps)
        assert timesteps.shape == (steps,)
        assert sigmas.shape == (steps + 1,)
        assert sigmas[-1] == 0
        assert (np.diff(sigmas) < 0).all()
        # Timesteps of sigmas that are not spaced by them may repeat once they are rounded.
        assert (np.diff(timesteps) <= -(sigma_schedule == "default")).all()
        assert timesteps.min() >= 0
        assert timesteps.max() <= 999


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_step_count_gives_a_table(name: str, spacing: str, zero_snr: bool) -> None:
    config = replace(SDXL, name=name, timestep_spacing=spacing)
    if zero_snr and SCHEDULERS[name].zero_snr:
        config = replace(with_zero_snr(config), prediction_type="v_prediction")
    for steps in STEPS:
        schedule = make_schedule(config, steps)
        evaluations = count_evaluations(name, steps)
        assert [column.shape[:1] for column in schedule.table] == [(evaluations,)] * 7
        assert schedule.table.values.shape[1:] == (1 + REMEMBERED,)
        assert len(schedule.stops) == steps
        assert schedule.stops[-1] == evaluations
        assert (np.diff([0, *schedule.stops]) >= 1).all()
        for column in schedule.table:
            assert column.dtype == np.float32
            assert np.isfinite(column).all()
        assert np.isfinite(schedule.pred_x0).all()
        assert (schedule.timesteps >= 0).all()
        # No step uses a prediction that has not been made yet.
        assert not any(row[i + 1 :].any() for i, row in enumerate(schedule.table.values))
        assert (schedule.table.noise > 1e-6).any() == (name in NOISY and steps > 1)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_pred_x0_is_exact_for_an_exact_network(name: str, prediction: str) -> None:
    config = replace(SDXL, name=name, prediction_type=prediction)
    schedule = make_schedule(config, 25)
    table = schedule.table
    x0, noise = 0.7, -1.3
    # Between timesteps, the scale of the input is the share of x0.
    whole = alphas_cumprod(config)[schedule.timesteps.astype(int)].astype(np.float64)
    shares = np.where(table.input_scale == 1, whole, table.input_scale.astype(np.float64) ** 2)
    of_x0, of_noise = np.sqrt(shares), np.sqrt(1 - shares)
    latents = (of_x0 * x0 + of_noise * noise) / table.input_scale
    predicted = {"epsilon": noise, "v_prediction": of_x0 * noise - of_noise * x0}
    value = table.value_latents * latents + table.value_prediction * predicted[prediction]
    expected = schedule.pred_x0[:, 0] * latents + schedule.pred_x0[:, 1] * value
    np.testing.assert_allclose(expected, x0, atol=1e-4)


def test_sdxl_in_25_steps() -> None:
    schedule = make_schedule(SDXL, 25)
    assert schedule.timesteps.tolist() == [961 - 40 * i for i in range(25)]
    sigmas = euler_sigmas(SDXL, 25)[1]
    assert schedule.init_noise_sigma == pytest.approx((sigmas[0] ** 2 + 1) ** 0.5)


def test_stable_diffusion_1_in_25_steps() -> None:
    schedule = make_schedule(replace(SDXL, name="pndm", set_alpha_to_one=False), 25)
    assert schedule.timesteps.tolist() == [961, 921, *(921 - 40 * i for i in range(24))]
    assert schedule.init_noise_sigma == 1


def test_spacings() -> None:
    first_and_last = {
        spacing: make_schedule(replace(SDXL, timestep_spacing=spacing), 10).timesteps[[0, -1]]
        for spacing in SPACINGS
    }
    assert first_and_last["leading"].tolist() == [901, 1]
    assert first_and_last["trailing"].tolist() == [999, 99]
    assert first_and_last["linspace"].tolist() == [999, 0]


def test_only_leading_starts_from_the_variance_preserving_level() -> None:
    config = replace(SDXL, timestep_spacing="trailing")
    assert make_schedule(config, 10).init_noise_sigma == pytest.approx(
        euler_sigmas(config, 10)[1][0]
    )


def test_beta_schedules_differ() -> None:
    linear = train_sigmas(replace(SDXL, training=replace(SDXL.betas, schedule="linear")))
    scaled = train_sigmas(SDXL)
    assert linear[0] == pytest.approx(scaled[0], rel=1e-3)
    assert linear[500] > 1.1 * scaled[500]
    assert (np.diff(linear) > 0).all()


def test_scaled_input_has_unit_variance() -> None:
    rng = np.random.default_rng(0)
    schedule = make_schedule(SDXL, 10)
    sigma = euler_sigmas(SDXL, 10)[1][0]
    noisy = rng.normal(size=10_000) + sigma * rng.normal(size=10_000)
    row = jax.tree.map(lambda column: column[0], schedule.table)
    assert float(scale_model_input(jnp.float32(noisy), row).std()) == pytest.approx(1, abs=0.02)


def shares(config: SchedulerConfig, timestep: float) -> tuple[float, float]:
    """Return the shares of x0 and noise in the network's input at a fractional timestep."""
    training = train_sigmas(config)
    sigma = np.interp(timestep, np.arange(len(training)), training)
    x0 = (sigma**2 + 1) ** -0.5
    return x0, sigma * x0


# PNDM's steps are between the timesteps that the network receives in one case alone. TCD ends with
# the noise of the first training timestep, and LCM's picture has a little of it.
FOLLOWED = [
    case
    for case in product(SCHEDULERS, SPACINGS, ["epsilon", "v_prediction"])
    if case[0] not in ("pndm", "lcm", "tcd") or case == ("pndm", "leading", "epsilon")
]


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize(("name", "spacing", "prediction_type"), FOLLOWED)
def test_a_perfect_network_gives_x0(
    name: str, spacing: str, prediction_type: str, steps: int
) -> None:
    """A network that predicts everything but x0 as noise leads to x0."""
    config = replace(SDXL, name=name, timestep_spacing=spacing, prediction_type=prediction_type)
    rng = np.random.default_rng(0)
    x0, start, *added = rng.normal(size=(2 + 2 * steps, 1, 2, 2, 3)).astype(np.float32)
    schedule = make_schedule(config, steps)
    alpha, sigma = shares(config, float(schedule.timesteps[0]))
    latents = (alpha * x0 + sigma * start) / schedule.table.input_scale[0]
    state = State(jnp.float32(latents), jnp.zeros((REMEMBERED, *x0.shape)))
    for i, timestep in enumerate(schedule.timesteps):
        row = jax.tree.map(lambda column, i=i: jnp.asarray(column[i]), schedule.table)
        alpha, sigma = shares(config, float(timestep))
        seen = scale_model_input(state.latents, row)
        noise = (seen - alpha * x0) / sigma
        v = alpha * noise - sigma * x0
        prediction = noise if prediction_type == "epsilon" else v
        state = step(jnp.float32(prediction), state, row, jnp.float32(added[i]))
    np.testing.assert_allclose(state.latents, x0, atol=2e-3)


@pytest.mark.parametrize("name", ["ddim", "pndm"])
def test_the_last_step_may_keep_the_first_timesteps_noise(name: str) -> None:
    config = replace(SDXL, name=name, set_alpha_to_one=False)
    last = make_schedule(config, 10).table.latents[-1]
    other = make_schedule(replace(config, set_alpha_to_one=True), 10).table.latents[-1]
    assert last == pytest.approx(other * alphas_cumprod(config)[0] ** 0.5, rel=1e-6)


def test_every_scheduler_has_a_method() -> None:
    assert METHODS.keys() == SCHEDULERS.keys()


def test_weights_of_the_multistep_method_integrate_polynomials() -> None:
    sigmas, end = np.array([3.0, 4.5, 5.0, 9.0]), 1.5
    for degree in range(4):
        exact = (end ** (degree + 1) - sigmas[0] ** (degree + 1)) / (degree + 1)
        assert lms_weights(sigmas, end) @ sigmas**degree == pytest.approx(exact)


def test_weights_of_pndm_are_averages() -> None:
    np.testing.assert_allclose(PNDM_WEIGHTS.sum(axis=1), 1)
    # Later steps do not use the second evaluation.
    assert [PNDM_WEIGHTS[i][i - 1] for i in range(2, 5)] == [0, 0, 0]


def test_a_step_of_no_length_changes_nothing_but_the_history() -> None:
    latents = jnp.ones((1, 2, 2, 1))
    history = jnp.arange(REMEMBERED, dtype=jnp.float32)[:, None, None, None, None] + 5
    table = make_schedule(SDXL, 3).table
    row = jax.tree.map(lambda column: jnp.asarray(column[0]), table)
    row = row._replace(values=jnp.zeros(1 + REMEMBERED))
    state = step(7 * latents, State(latents, history * latents), row, latents)
    np.testing.assert_array_equal(state.latents, latents)
    assert state.history[:, 0, 0, 0, 0].tolist() == [7, 5, 6, 7]


# --- parts of a run


@pytest.mark.parametrize("name", METHODS)
def test_a_part_that_leaves_nothing_out_is_the_whole_run(name: str) -> None:
    config = replace(SDXL, name=name)
    whole = make_schedule(config, 7)
    for given in ({"strength": 1.0}, {"denoising_start": 0.0}, {"denoising_end": 1.0}):
        part = make_schedule(config, 7, **given)
        assert [*part.stops] == [*whole.stops]
        for ours, theirs in zip(part.table, whole.table, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("strength", [0.95, 0.8, 0.5, 0.1])
def test_a_run_from_a_picture_has_as_many_steps_as_its_strength_says(
    name: str, strength: float
) -> None:
    for steps in STEPS:
        if int(steps * strength):
            schedule = make_schedule(replace(SDXL, name=name), steps, strength=strength)
            assert len(schedule.stops) == int(steps * strength)
            assert (np.diff([0, *schedule.stops]) >= 1).all()
            assert schedule.stops[-1] == len(schedule.timesteps) == len(schedule.noised) - 1
            # The first value has no earlier ones to be combined with.
            assert (schedule.table.values[0, 1:] == 0).all() or name == "lms"


def test_two_models_share_all_steps_of_a_run() -> None:
    for share in (0.2, 0.5, 0.8):
        whole = make_schedule(SDXL, 25)
        base = make_schedule(SDXL, 25, denoising_end=share)
        refiner = make_schedule(SDXL, 25, denoising_start=share)
        both = np.concatenate([base.timesteps, refiner.timesteps])
        np.testing.assert_array_equal(both, whole.timesteps)
        # The second model begins at the noise level that the first one leaves.
        np.testing.assert_array_equal(base.noised[-1], refiner.noised[0])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"strength": 0.03}, "strength is 0.03, which leaves none of 25 steps; expected at least"),
        ({"denoising_start": 1.0}, "denoising_start is 1.0, which leaves none of 25 steps; exp"),
        (
            {"denoising_start": 0.5, "denoising_end": 0.4},
            "denoising_start is 0.5 and denoising_end 0.4, which leaves none of 25 steps; expected"
            " a smaller number, or a larger denoising_end",
        ),
    ],
)
@pytest.mark.parametrize("name", ["euler", "pndm"])
def test_a_part_without_steps(name: str, given: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_schedule(replace(SDXL, name=name), 25, **given)


def test_a_blend_keeps_the_picture_outside_the_mask() -> None:
    rng = np.random.default_rng(0)
    latents, x0, noise = rng.normal(size=(3, 2, 4, 4, 3)).astype(np.float32)
    mask = np.zeros((2, 4, 4, 1), np.float32)
    mask[:, :2] = 1
    each = np.array([[0.5, 2], [1, 0]], np.float32)  # one row for each picture
    kept = Kept(*map(jnp.asarray, (x0, noise, mask)))
    blended = np.asarray(blend(jnp.asarray(latents), kept, jnp.asarray(each)))
    np.testing.assert_array_equal(blended[:, :2], latents[:, :2])
    np.testing.assert_allclose(blended[0, 2:], 0.5 * x0[0, 2:] + 2 * noise[0, 2:], rtol=1e-5)
    np.testing.assert_array_equal(blended[1, 2:], x0[1, 2:])
    same = add_noise(*map(jnp.asarray, (x0, noise, each[0])))
    np.testing.assert_allclose(same[0], 0.5 * x0[0] + 2 * noise[0], rtol=1e-5)
