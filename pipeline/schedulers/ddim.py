"""DDPM and DDIM, which step between whole training timesteps."""

import numpy as np

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.mixtures import Mixture, mixed, mixtures, schedule_of_predictions, stride
from pipeline.schedulers.sigmas import spaced_timesteps
from pipeline.schedulers.table import Schedule


def ddim(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of DDIM.

    Song et al. 2021, "Denoising diffusion implicit models", equations 12 and 16: `config.eta` is
    the share of DDPM's noise.
    """
    timesteps = np.round(spaced_timesteps(config, steps)).astype(int)
    now, after = mixtures(config, timesteps, timesteps - stride(config, steps))
    noise = config.eta * _posterior(now, after)
    return _schedule(config, timesteps, now, after, noise)


def ddpm(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of DDPM: Ho et al. 2020, equation 7, with the smaller of its two variances.

    The last step adds no noise.
    """
    timesteps = np.round(spaced_timesteps(config, steps)).astype(int)
    now, after = mixtures(config, timesteps, np.append(timesteps[1:], -1))
    return _schedule(config, timesteps, now, after, _posterior(now, after))


def _posterior(now: Mixture, after: Mixture) -> np.ndarray:
    """Return the standard deviation of the posterior of a step, which DDPM adds as noise."""
    left = 1 - (now.signal / after.signal) ** 2
    return after.noise / now.noise * np.sqrt(np.maximum(left, 0))


def _schedule(
    config: SchedulerConfig,
    timesteps: np.ndarray,
    now: Mixture,
    after: Mixture,
    noise: np.ndarray,
) -> Schedule:
    """Make a schedule of steps that replace a part of the noise by new noise."""
    kept_noise = np.sqrt(np.maximum(after.noise**2 - noise**2, 0))
    latents, values = mixed(config, now, after.signal, kept_noise)
    return schedule_of_predictions(config, timesteps, now, latents, values, noise)
