"""Sigmas at the timesteps of training and at the steps of a run, computed on the host.

Training mixes x0 and noise as sqrt(alphas_cumprod) * x0 + sqrt(1 - alphas_cumprod) *
noise (Ho et al. 2020). `sigma` is the factor of the noise when the factor of x0 is 1.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pipeline.schedulers.config import ALIGNED, SchedulerConfig

KARRAS_RHO = 7.0
BETA = 0.6
# The last of `alphas_cumprod` where sigmas are computed from a schedule with zero terminal SNR, so
# that they are finite: the smallest positive number of float16, as in diffusers.
LEAST_ALPHA = 2.0**-24


def alphas_cumprod(config: SchedulerConfig) -> np.ndarray:
    """Return the share of x0 in the variance at every training timestep.

    The result is `[T]` float32, falling. It is rounded to float32 where diffusers rounds it: the
    lowest sigmas come from 1 - alpha, which keeps only a few digits, and networks are trained
    and run with these rounded values.
    """
    start, end, count = config.betas.start, config.betas.end, config.num_train_timesteps
    if config.betas.schedule == "linear":
        betas = np.linspace(start, end, count, dtype=np.float32)
    else:  # scaled_linear: linear in the square root
        betas = np.linspace(start**0.5, end**0.5, count, dtype=np.float32) ** 2
    if config.betas.zero_snr:
        betas = _zero_terminal_snr(betas)
    return _cumprod(1 - betas)


def _zero_terminal_snr(betas: np.ndarray) -> np.ndarray:
    """Return betas after which no signal is left: algorithm 1 of Lin et al. 2023.

    "Common diffusion noise schedules and sample steps are flawed". The square root of
    alphas_cumprod is shifted so that it ends at 0, then scaled so that it starts where it did.
    """
    roots = np.sqrt(_cumprod(1 - betas))
    first, last = roots[0], roots[-1]
    alphas = ((roots - last) * (first / (first - last))) ** 2
    return 1 - np.append(alphas[:1], alphas[1:] / alphas[:-1])


def _cumprod(alphas: np.ndarray) -> np.ndarray:
    return np.cumprod(alphas, dtype=np.float64).astype(np.float32)


def train_sigmas(config: SchedulerConfig) -> np.ndarray:
    """Return the noise level at every training timestep, `[T]` float32, rising."""
    alphas = alphas_cumprod(config)
    if config.betas.zero_snr:
        alphas[-1] = LEAST_ALPHA
    return np.sqrt((1 - alphas) / alphas)


def spaced_timesteps(config: SchedulerConfig, steps: int) -> np.ndarray:
    """Return the timesteps of a run, `[steps]`, falling; those of "linspace" are not rounded.

    Table 2 of Lin et al. 2023, "Common diffusion noise schedules ... are flawed".
    """
    if config.timesteps is not None:
        return np.array(config.timesteps)
    count = config.num_train_timesteps
    if config.timestep_spacing == "linspace":
        return np.linspace(0, count - 1, steps)[::-1]
    if config.timestep_spacing == "leading":
        return (np.arange(steps) * (count // steps))[::-1] + config.steps_offset
    # np.arange with a fractional stride can give one value too many.
    return np.round(np.arange(count, 0, -count / steps))[:steps] - 1


def karras_sigmas(high: float, low: float, steps: int) -> np.ndarray:
    """Return sigmas `[steps]` from `high` to `low`: equation 5 of Karras et al. 2022."""
    ramp = np.linspace(0, 1, steps)
    first, last = high ** (1 / KARRAS_RHO), low ** (1 / KARRAS_RHO)
    return (first + ramp * (last - first)) ** KARRAS_RHO


def exponential_sigmas(high: float, low: float, steps: int) -> np.ndarray:
    """Return sigmas `[steps]` from `high` to `low`, evenly spaced in their logarithm."""
    return np.exp(np.linspace(np.log(high), np.log(low), steps))


def beta_sigmas(high: float, low: float, steps: int) -> np.ndarray:
    """Return sigmas `[steps]` from `high` to `low`, at the quantiles of a beta distribution.

    Lee et al. 2024, "Beta sampling is all you need".
    """
    from scipy.special import betaincinv  # here: it takes 0.1 s of a start

    quantiles = betaincinv(BETA, BETA, 1 - np.linspace(0, 1, steps))
    return low + quantiles * (high - low)


SIGMA_SCHEDULES: Mapping[str, Callable[[float, float, int], np.ndarray]] = {
    "karras": karras_sigmas,
    "exponential": exponential_sigmas,
    "beta": beta_sigmas,
}


def spaced_sigmas(config: SchedulerConfig, high: float, low: float, steps: int) -> np.ndarray:
    """Return the sigmas of `config.sigma_schedule`, `[steps]`, falling, without the 0 at the end.

    Sigmas that were optimised have limits of their own, in place of `high` and `low`.
    """
    if config.sigma_schedule == ALIGNED:
        return aligned_sigmas(config.aligned_sigmas or (), steps)
    return SIGMA_SCHEDULES[config.sigma_schedule](high, low, steps)


def aligned_sigmas(optimised: Sequence[float], steps: int) -> np.ndarray:
    """Return sigmas `[steps]` for any number of steps, from those optimised for one number.

    Sabour et al. 2024, "Align your steps": their logarithms are interpolated linearly, and the last
    one is replaced by the 0 at the end of a run.
    """
    places = np.linspace(0, len(optimised) - 1, steps + 1)[:-1]
    return np.exp(np.interp(places, np.arange(len(optimised)), np.log(optimised)))


def timesteps_of(sigmas: np.ndarray, config: SchedulerConfig) -> np.ndarray:
    """Return the timesteps that have these sigmas, interpolated between whole timesteps."""
    training = train_sigmas(config)
    return np.interp(np.log(sigmas), np.log(training), np.arange(len(training), dtype=np.float64))
