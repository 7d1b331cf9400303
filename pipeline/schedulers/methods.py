"""Schedulers: methods that take the latents from noise to picture.

All of them are linear multistep methods. Evaluation i of the network, at latents x, gives a
prediction e, from which the method computes

    value   v_i = value_latents * x + value_prediction * e
    next    x'  = latents * x + sum over k of values[k] * v_(i-k) + noise * (standard normal noise)

The schedulers differ only in the coefficients, which follow from the sigmas. So each
scheduler is one function that makes a `Table` of coefficients, on the host in float64. The device
runs every table with the same few lines in float32, by index, and its program is compiled without
knowing the scheduler.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.sigmas import (
    alphas_cumprod,
    karras_sigmas,
    spaced_timesteps,
    timesteps_of,
    train_sigmas,
)

REMEMBERED = 4  # number of values kept from earlier evaluations, as many as PNDM needs


A = TypeVar("A", np.ndarray, Array)


class Table(NamedTuple, Generic[A]):
    """Coefficients of a run, float32, with one row for each evaluation of the network.

    The network gets `timesteps`, and the latents times `input_scale`. `values` is
    `[N, 1 + REMEMBERED]`, the latest value first; the other fields are `[N]`. One row is a `Table`
    too, without the axis N.
    """

    timesteps: A
    input_scale: A
    value_latents: A
    value_prediction: A
    latents: A
    values: A
    noise: A


class State(NamedTuple):
    """Arrays that one evaluation hands to the next, float32.

    `latents`: `[B, h, w, C]`.
    `history`: the values of earlier evaluations, `[REMEMBERED, B, h, w, C]`, latest first.
    """

    latents: Array
    history: Array


@dataclass(frozen=True)
class Schedule:
    """Schedule of a run with `num_inference_steps`.

    `init_noise_sigma`: the standard deviation of the latents that the first step expects.
    `pred_x0`: `[N, 2]`, for each evaluation the coefficients of the latents before it and of its
    value, whose weighted sum is the network's prediction of the noise-free latents (pred_x0).
    """

    table: Table[np.ndarray]
    init_noise_sigma: float
    num_inference_steps: int
    pred_x0: np.ndarray

    @property
    def timesteps(self) -> np.ndarray:
        """Timesteps of every evaluation of the network, `[N]` float32, noisiest first."""
        return self.table.timesteps

    @property
    def stops(self) -> range:
        """For every step, the number of evaluations after which it is done.

        There are as many evaluations as steps, unless the first step takes more than one.
        """
        evaluations = len(self.timesteps)
        return range(evaluations - self.num_inference_steps + 1, evaluations + 1)


# --- on the device


def scale_model_input(latents: Array, row: Table[Array]) -> Array:
    """Scale latents to unit variance, which the UNet expects."""
    return latents * row.input_scale


def step(prediction: Array, state: State, row: Table[Array], noise: Array) -> State:
    """Return the state after one evaluation of the network.

    Args:
        prediction: the network's output, noise or v as the scheduler's `prediction_type` says, in
            the latents' shape.
        state: the state before the evaluation.
        row: the evaluation's row of the table.
        noise: standard normal noise, in the latents' shape.
    """
    latents, history = state
    value = row.value_latents * latents + row.value_prediction * prediction
    values = jnp.concatenate([value[None], history])
    # This is not a matrix product, because some devices would round it to bfloat16.
    combined = (row.values.reshape(-1, 1, 1, 1, 1) * values).sum(axis=0)
    return State(
        latents=row.latents * latents + combined + row.noise * noise,
        history=values[:REMEMBERED],
    )


# --- on the host


def make_schedule(config: SchedulerConfig, num_inference_steps: int) -> Schedule:
    """Make the schedule of a run, the same as that of diffusers' scheduler `config.name`."""
    return METHODS[config.name](config, num_inference_steps)


def euler(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of Euler's method for the diffusion ODE.

    Karras et al. 2022, algorithm 1 with no churn.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    table = _euler_table(config, timesteps, sigmas[:-1], sigmas[1:])
    pred_x0 = _pred_x0(config, _variance_preserving(sigmas[:-1]), table)
    return Schedule(table, _euler_start(config, sigmas), steps, pred_x0)


def euler_ancestral(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of Euler's method with ancestral sampling.

    Each step goes to a noise level below the next one, then adds noise to reach the next one. The
    lower level is such that the step has the variance of the DDPM posterior (Ho et al. 2020,
    equation 7). Name and form are from https://github.com/crowsonkb/k-diffusion.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    now, after = sigmas[:-1], sigmas[1:]
    up = after * np.sqrt(1 - (after / now) ** 2)
    table = _euler_table(config, timesteps, now, np.sqrt(after**2 - up**2), noise=up)
    pred_x0 = _pred_x0(config, _variance_preserving(now), table)
    return Schedule(table, _euler_start(config, sigmas), steps, pred_x0)


def ddim(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of DDIM without added noise.

    Song et al. 2021, "Denoising diffusion implicit models", equation 12.
    """
    timesteps = np.round(spaced_timesteps(config, steps)).astype(int)
    now, after = _mixtures(config, timesteps, timesteps - _stride(config, steps))
    # The value is the prediction itself, so that no coefficient divides by a signal of 0.
    latents, values = (
        after.signal * of_x0 + after.noise * of_noise
        for of_x0, of_noise in zip(_x0_part(config, now), _noise_part(config, now), strict=True)
    )
    table = _table(timesteps, value_latents=0, value_prediction=1, latents=latents, values=[values])
    return Schedule(table, 1.0, steps, _pred_x0(config, now, table))


# Weights of the predictions, latest first, at each of the first evaluations of a run; the last row
# is for all later evaluations (Adams-Bashforth). The second evaluation repeats the first step, so
# later evaluations give its prediction no weight.
PNDM_WEIGHTS = np.array(
    [
        [1, 0, 0, 0, 0],
        [1 / 2, 1 / 2, 0, 0, 0],
        [3 / 2, 0, -1 / 2, 0, 0],
        [23 / 12, -16 / 12, 0, 5 / 12, 0],
        [55 / 24, -59 / 24, 37 / 24, 0, -9 / 24],
        [55 / 24, -59 / 24, 37 / 24, -9 / 24, 0],
    ]
)


def pndm(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of PNDM.

    Liu et al. 2022, "Pseudo numerical methods for diffusion models on manifolds", equations 9 and
    12. The improved Euler method starts the run instead of Runge-Kutta: if there is more than one
    step, the first step takes two evaluations, the second of them at the step's end.
    """
    timesteps = np.round(spaced_timesteps(config, steps)).astype(int)
    if steps > 1:
        timesteps = np.insert(timesteps, 1, timesteps[1])
    starts, ends = timesteps.copy(), timesteps - _stride(config, steps)
    starts[1:2] += _stride(config, steps)
    ends[1:2] = timesteps[1:2]
    now, after = _mixtures(config, starts, ends)
    latents, values = _transfer(now, after)
    # The combined prediction is converted to noise with the latents at the start of the step.
    noise_latents, noise_prediction = _noise_part(config, now)
    latents = latents + values * noise_latents
    rows = np.minimum(np.arange(len(timesteps)), len(PNDM_WEIGHTS) - 1)
    weights = (values * noise_prediction)[:, None] * PNDM_WEIGHTS[rows]
    if steps > 1:
        # The second evaluation restarts from the first latents, (x' - values * v) / latents.
        latents[1] /= latents[0]
        weights[1, 1] -= latents[1] * weights[0, 0]
    table = _table(
        timesteps, value_latents=0, value_prediction=1, latents=latents, values=weights.T
    )
    at, _ = _mixtures(config, timesteps, ends)
    return Schedule(table, 1.0, steps, _pred_x0(config, at, table))


def dpm_solver_multistep(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of DPM-Solver++ (2M): Lu et al. 2022, "DPM-Solver++", algorithm 2.

    The first step is of first order, and so is the last step, because it ends without noise.
    """
    timesteps, sigmas = dpm_solver_sigmas(config, steps)
    now, after = _variance_preserving(sigmas[:-1]), _variance_preserving(sigmas[1:])
    latents = after.noise / now.noise
    denoised = after.signal - latents * now.signal
    half = np.zeros(steps)  # 1 / (2 r)
    lengths = np.log(sigmas[:-2] / sigmas[1:-1])  # h of all steps but the last
    half[1:-1] = lengths[1:] / (2 * lengths[:-1])
    value_latents, value_prediction = _x0_part(config, now)
    table = _table(
        timesteps,
        value_latents=value_latents,
        value_prediction=value_prediction,
        latents=latents,
        values=[denoised * (1 + half), -denoised * half],
    )
    return Schedule(table, 1.0, steps, _pred_x0(config, now, table))


METHODS: dict[str, Callable[[SchedulerConfig, int], Schedule]] = {
    "euler": euler,
    "euler-ancestral": euler_ancestral,
    "ddim": ddim,
    "pndm": pndm,
    "dpmsolver++": dpm_solver_multistep,
}


def euler_sigmas(config: SchedulerConfig, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timesteps `[steps]` and sigmas `[steps + 1]` of both Euler methods.

    The last sigma is 0.
    """
    training = train_sigmas(config)
    timesteps = spaced_timesteps(config, steps).astype(np.float32)
    sigmas = np.interp(timesteps, np.arange(len(training)), training)
    if config.use_karras_sigmas:
        sigmas = karras_sigmas(sigmas[0], sigmas[-1], steps)
        timesteps = timesteps_of(sigmas, config)
    return timesteps, np.append(sigmas, 0.0)


def dpm_solver_sigmas(config: SchedulerConfig, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timesteps `[steps]` and sigmas `[steps + 1]` of DPM-Solver++.

    All timesteps are whole numbers. The last sigma is 0.
    """
    training = train_sigmas(config)
    if config.use_karras_sigmas:
        sigmas = karras_sigmas(float(training[-1]), float(training[0]), steps)
        return np.round(timesteps_of(sigmas, config)), np.append(sigmas, 0.0)
    if config.timestep_spacing == "trailing":
        timesteps = spaced_timesteps(config, steps)
    else:  # the end of the last step is spaced too, then left out
        timesteps = spaced_timesteps(config, steps + 1)[:-1]
    timesteps = np.round(timesteps).astype(int)
    return timesteps, np.append(training[timesteps].astype(np.float64), 0.0)


class Mixture(NamedTuple):
    """Shares of signal and noise in latents of unit variance, at each evaluation `[N]`.

    The signal is the noise-free latents (x0).
    """

    signal: np.ndarray
    noise: np.ndarray


def _variance_preserving(sigmas: np.ndarray) -> Mixture:
    signal = 1 / np.sqrt(sigmas**2 + 1)
    return Mixture(signal, sigmas * signal)


def _mixtures(
    config: SchedulerConfig, starts: np.ndarray, ends: np.ndarray
) -> tuple[Mixture, Mixture]:
    """Return the mixtures at whole timesteps; an end below 0 is the end of the run."""
    alphas = alphas_cumprod(config).astype(np.float64)
    last = 1.0 if config.set_alpha_to_one else alphas[0]
    shares = alphas[starts], np.where(ends >= 0, alphas[ends], last)
    now, after = (Mixture(np.sqrt(share), np.sqrt(1 - share)) for share in shares)
    return now, after


def _stride(config: SchedulerConfig, steps: int) -> int:
    return config.num_train_timesteps // steps


def _transfer(now: Mixture, after: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of the latents and of their noise for a change of the mixture.

    The weighted sum contains the same signal and noise, in the shares `after`.
    """
    latents = after.signal / now.signal
    return latents, after.noise - latents * now.noise


def _noise_part(config: SchedulerConfig, now: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of latents and prediction that give the noise.

    For v (Salimans and Ho 2022): v = now.signal * noise - now.noise * x0.
    """
    if config.prediction_type == "epsilon":
        return np.zeros_like(now.noise), np.ones_like(now.noise)
    return now.noise, now.signal


def _x0_part(config: SchedulerConfig, now: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of latents and prediction that give x0."""
    if config.prediction_type == "epsilon":
        return 1 / now.signal, -now.noise / now.signal
    return now.signal, -now.noise


def _pred_x0(config: SchedulerConfig, now: Mixture, table: Table[np.ndarray]) -> np.ndarray:
    """Return `Schedule.pred_x0` for evaluations at the mixtures `now`."""
    of_latents, of_prediction = _x0_part(config, now)
    of_value = of_prediction / table.value_prediction
    of_latents = of_latents * table.input_scale - of_value * table.value_latents
    return np.stack([of_latents, of_value], axis=1).astype(np.float32)


def _euler_table(
    config: SchedulerConfig,
    timesteps: np.ndarray,
    now: np.ndarray,
    after: np.ndarray,
    noise: np.ndarray | float = 0,
) -> Table[np.ndarray]:
    """Make the table of Euler steps from the sigmas `now` to `after`.

    Latents are x0 plus sigma * noise. `noise` is the standard deviation of the noise that
    each step adds at its end.
    """
    mixture = _variance_preserving(now)
    value_latents, value_prediction = _noise_part(config, mixture)
    return _table(
        timesteps,
        input_scale=mixture.signal,
        value_latents=value_latents * mixture.signal,
        value_prediction=value_prediction,
        latents=1,
        values=[after - now],
        noise=noise,
    )


def _euler_start(config: SchedulerConfig, sigmas: np.ndarray) -> float:
    variance_preserving = config.timestep_spacing == "leading"
    return float(np.sqrt(sigmas[0] ** 2 + 1) if variance_preserving else sigmas[0])


def _table(
    timesteps: np.ndarray,
    *,
    value_latents: np.ndarray | float,
    value_prediction: np.ndarray | float,
    latents: np.ndarray | float,
    values: list[np.ndarray] | np.ndarray,
    input_scale: np.ndarray | float = 1,
    noise: np.ndarray | float = 0,
) -> Table[np.ndarray]:
    """Make a table from columns; one number stands for all rows.

    `values` are at most `1 + REMEMBERED` columns, the latest value's first; the rest is 0.
    """
    count = len(timesteps)
    looking_back = np.zeros((count, 1 + REMEMBERED))
    looking_back[:, : len(values)] = np.transpose(values)

    def column(value: np.ndarray | float) -> np.ndarray:
        return np.broadcast_to(value, count).astype(np.float32)

    return Table(
        timesteps=column(timesteps),
        input_scale=column(input_scale),
        value_latents=column(value_latents),
        value_prediction=column(value_prediction),
        latents=column(latents),
        values=looking_back.astype(np.float32),
        noise=column(noise),
    )
