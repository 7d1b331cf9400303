"""Shares of signal and noise in latents, and what a network's prediction says about both."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.sigmas import alphas_cumprod
from pipeline.schedulers.table import Schedule, Table, make_table


class Mixture(NamedTuple):
    """Shares of signal and noise in latents of unit variance, at each evaluation `[N]`.

    The signal is the noise-free latents (x0).
    """

    signal: np.ndarray
    noise: np.ndarray


def variance_preserving(sigmas: np.ndarray) -> Mixture:
    """Return the mixtures of latents that are divided by their standard deviation."""
    signal = 1 / np.sqrt(sigmas**2 + 1)
    return Mixture(signal, sigmas * signal)


def mixtures(
    config: SchedulerConfig, starts: np.ndarray, ends: np.ndarray
) -> tuple[Mixture, Mixture]:
    """Return the mixtures at whole timesteps; an end below 0 is the end of the run."""
    alphas = alphas_cumprod(config).astype(np.float64)
    last = 1.0 if config.set_alpha_to_one else alphas[0]
    shares = alphas[starts], np.where(ends >= 0, alphas[ends], last)
    now, after = (Mixture(np.sqrt(share), np.sqrt(1 - share)) for share in shares)
    return now, after


def stride(config: SchedulerConfig, steps: int) -> int:
    """Return the number of training timesteps between two steps."""
    return config.num_train_timesteps // steps


def noise_part(config: SchedulerConfig, now: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of latents and prediction that give the noise.

    For v (Salimans and Ho 2022): v = now.signal * noise - now.noise * x0. For flow matching, where
    both shares have the sum 1: the prediction is noise - x0.
    """
    match config.prediction_type:
        case "epsilon":
            return np.zeros_like(now.noise), np.ones_like(now.noise)
        case "sample":
            return 1 / now.noise, -now.signal / now.noise
        case "flow_prediction":
            return np.ones_like(now.noise), now.signal
        case _:
            return now.noise, now.signal


def x0_part(config: SchedulerConfig, now: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of latents and prediction that give x0."""
    match config.prediction_type:
        case "epsilon":
            return 1 / now.signal, -now.noise / now.signal
        case "sample":
            return np.zeros_like(now.signal), np.ones_like(now.signal)
        case "flow_prediction":
            return np.ones_like(now.signal), -now.noise
        case _:
            return now.signal, -now.noise


def mixed(
    config: SchedulerConfig, now: Mixture, signal: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients of latents and prediction that give `signal` x0 + `noise` noise."""
    latents, prediction = (
        signal * of_x0 + noise * of_noise
        for of_x0, of_noise in zip(x0_part(config, now), noise_part(config, now), strict=True)
    )
    return latents, prediction


def pred_x0(config: SchedulerConfig, now: Mixture, table: Table[np.ndarray]) -> np.ndarray:
    """Return `Schedule.pred_x0` for evaluations at the mixtures `now`."""
    of_latents, of_prediction = x0_part(config, now)
    of_value = of_prediction / table.value_prediction
    of_latents = of_latents * table.input_scale - of_value * table.value_latents
    return np.stack([of_latents, of_value], axis=1).astype(np.float32)


def noised(now: Mixture, table: Table[np.ndarray]) -> np.ndarray:
    """Return `Schedule.noised` for evaluations at the mixtures `now`, in a run that ends at x0."""
    rows = np.stack([now.signal, now.noise], axis=1) / table.input_scale[:, None]
    return np.concatenate([rows, [[1, 0]]]).astype(np.float32)


def schedule_at(
    config: SchedulerConfig,
    now: Mixture,
    table: Table[np.ndarray],
    init_noise_sigma: float = 1.0,
    stops: Sequence[int] | None = None,
) -> Schedule:
    """Make a schedule of a table whose evaluations are at the mixtures `now`.

    Each step is one evaluation unless `stops` says otherwise.
    """
    ends = range(1, len(table.timesteps) + 1) if stops is None else stops
    return Schedule(table, init_noise_sigma, ends, pred_x0(config, now, table), noised(now, table))


def schedule_of_predictions(
    config: SchedulerConfig,
    timesteps: np.ndarray,
    now: Mixture,
    latents: np.ndarray,
    values: np.ndarray,
    noise: np.ndarray,
) -> Schedule:
    """Make a schedule whose values are the predictions, with one evaluation a step.

    No coefficient divides by the signal, so that it may be 0.
    """
    table = make_table(
        timesteps,
        value_latents=0,
        value_prediction=1,
        latents=latents,
        values=[values],
        noise=noise,
    )
    return schedule_at(config, now, table)


def schedule_of_x0(
    config: SchedulerConfig,
    timesteps: np.ndarray,
    now: Mixture,
    latents: np.ndarray,
    values: list[np.ndarray],
    noise: np.ndarray | float = 0,
) -> Schedule:
    """Make a schedule whose values are the predicted x0, with one evaluation a step."""
    value_latents, value_prediction = x0_part(config, now)
    table = make_table(
        timesteps,
        value_latents=value_latents,
        value_prediction=value_prediction,
        latents=latents,
        values=values,
        noise=noise,
    )
    return schedule_at(config, now, table)
