"""Euler's methods, Heun's and the linear multistep method, in the coordinates of k-diffusion.

Latents are x0 plus sigma * noise, and the value of an evaluation is the derivative of the latents
by sigma, which is the noise.
"""

import numpy as np

from pipeline.schedulers.config import DEFAULT_SIGMAS, Flow, SchedulerConfig
from pipeline.schedulers.mixtures import Mixture, noise_part, schedule_at, variance_preserving
from pipeline.schedulers.sigmas import (
    spaced_sigmas,
    spaced_timesteps,
    timesteps_of,
    train_sigmas,
)
from pipeline.schedulers.table import Schedule, make_table

LMS_ORDER = 4
# Points and weights of the rule of Gauss and Legendre, exact for the polynomials of that order.
_POINTS, _SHARES = np.polynomial.legendre.leggauss(LMS_ORDER)


def euler(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of Euler's method for the diffusion ODE.

    Karras et al. 2022, algorithm 1 with no churn.
    """
    if isinstance(config.training, Flow):
        return flow_euler(config, config.training, steps)
    timesteps, sigmas = euler_sigmas(config, steps)
    return _schedule(config, timesteps, sigmas[:-1], [sigmas[1:] - sigmas[:-1]])


def flow_euler(config: SchedulerConfig, flow: Flow, steps: int) -> Schedule:
    """Make a schedule of Euler's method for models of flow matching.

    Latents are (1 - s) * x0 + s * noise. The network predicts noise - x0, which is the latents'
    derivative by s.
    """
    shares = noise_shares(flow.shift, config.num_train_timesteps, steps)
    table = make_table(
        shares[:-1] * config.num_train_timesteps,
        value_latents=0,
        value_prediction=1,
        latents=1,
        values=[np.diff(shares)],
    )
    return schedule_at(config, Mixture(1 - shares[:-1], shares[:-1]), table)


def noise_shares(shift: float, trained: int, steps: int) -> np.ndarray:
    """Return the share of noise before each step and after the last one, `[steps + 1]`, falling.

    diffusers shifts the smallest share of a run twice, and so does this.
    """

    def shifted(shares: np.ndarray) -> np.ndarray:
        return shift * shares / (1 + (shift - 1) * shares)

    first, last = shifted(np.array([1, 1 / trained]))
    return np.append(shifted(np.linspace(first, last, steps)), 0.0)


def euler_ancestral(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of Euler's method with ancestral sampling.

    Each step goes to a noise level below the next one, then adds noise to reach the next one. The
    lower level is such that the step has the variance of the DDPM posterior (Ho et al. 2020,
    equation 7). Name and form are from https://github.com/crowsonkb/k-diffusion.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    now, after = sigmas[:-1], sigmas[1:]
    up = after * np.sqrt(1 - (after / now) ** 2)
    down = np.sqrt(after**2 - up**2)
    return _schedule(config, timesteps, now, [down - now], noise=up)


def heun(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of Heun's method: Karras et al. 2022, algorithm 1 with no churn.

    A step takes two evaluations, the second at its end, and averages them. The last step ends
    without noise, where the network cannot be evaluated, so it is one of Euler's.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    lengths = sigmas[1:] - sigmas[:-1]
    latest, earlier = np.zeros((2, 2 * steps - 1))
    latest[0::2] = lengths
    latest[1::2] = lengths[:-1] / 2
    earlier[1::2] = -lengths[:-1] / 2
    where = (np.arange(2 * steps - 1) + 1) // 2
    stops = [*range(2, 2 * steps, 2), 2 * steps - 1]
    return _schedule(config, timesteps[where], sigmas[where], [latest, earlier], stops=stops)


def lms(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of the linear multistep method of order four (Adams-Bashforth).

    Name and form are from https://github.com/crowsonkb/k-diffusion.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    weights = np.zeros((LMS_ORDER, steps))
    for i in range(steps):
        order = min(i + 1, LMS_ORDER)
        weights[:order, i] = lms_weights(sigmas[i - order + 1 : i + 1][::-1], sigmas[i + 1])
    return _schedule(config, timesteps, sigmas[:-1], [*weights])


def lms_weights(sigmas: np.ndarray, end: float) -> np.ndarray:
    """Return the weights of derivatives in the step from the first of their sigmas to `end`.

    They are the integrals of the Lagrange polynomials through `sigmas`, latest first.
    """
    half = (end - sigmas[0]) / 2
    points = sigmas[0] + half * (_POINTS + 1)
    itself = np.eye(len(sigmas), dtype=bool)[..., None]
    apart = (sigmas[:, None] - sigmas)[..., None]
    factors = np.where(itself, 1, (points - sigmas[:, None]) / np.where(itself, 1, apart))
    return half * factors.prod(axis=1) @ _SHARES


def euler_sigmas(config: SchedulerConfig, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timesteps `[steps]` and sigmas `[steps + 1]`, the last of which is 0."""
    training = train_sigmas(config)
    timesteps = spaced_timesteps(config, steps).astype(np.float32)
    sigmas = np.interp(timesteps, np.arange(len(training)), training)
    if config.sigma_schedule != DEFAULT_SIGMAS:
        sigmas = spaced_sigmas(config, sigmas[0], sigmas[-1], steps)
        timesteps = timesteps_of(sigmas, config)
    return timesteps, np.append(sigmas, 0.0)


def euler_start(config: SchedulerConfig, sigmas: np.ndarray) -> float:
    """Return the standard deviation of the latents at the start of a run."""
    variance_preserving = config.timestep_spacing == "leading"
    return float(np.sqrt(sigmas[0] ** 2 + 1) if variance_preserving else sigmas[0])


def _schedule(
    config: SchedulerConfig,
    timesteps: np.ndarray,
    sigmas: np.ndarray,
    values: list[np.ndarray],
    noise: np.ndarray | float = 0,
    stops: list[int] | None = None,
) -> Schedule:
    """Make a schedule whose values are derivatives, from evaluations at `sigmas`."""
    mixture = variance_preserving(sigmas)
    value_latents, value_prediction = noise_part(config, mixture)
    table = make_table(
        timesteps,
        input_scale=mixture.signal,
        value_latents=value_latents * mixture.signal,
        value_prediction=value_prediction,
        latents=1,
        values=values,
        noise=noise,
    )
    return schedule_at(config, mixture, table, euler_start(config, sigmas), stops)
