"""The schedulers of models distilled to few steps, which jump to x0 and add noise again.

The value of an evaluation is its prediction.
"""

import numpy as np

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.mixtures import mixed, mixtures, schedule_of_predictions, x0_part
from pipeline.schedulers.table import Schedule

ORIGINAL_STEPS = 50  # of the teacher in the distillation
SIGMA_DATA = 0.5
TIMESTEP_SCALING = 10.0


def lcm(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of latent consistency models: Luo et al. 2023, algorithm 3.

    The last step adds no noise.
    """
    timesteps = distilled_timesteps(config, steps)
    now, after = mixtures(config, timesteps, np.append(timesteps[1:], -1))
    scaled_timesteps = timesteps * TIMESTEP_SCALING
    skip = SIGMA_DATA**2 / (scaled_timesteps**2 + SIGMA_DATA**2)
    out = scaled_timesteps / np.sqrt(scaled_timesteps**2 + SIGMA_DATA**2)
    of_latents, of_prediction = x0_part(config, now)
    signal = np.append(after.signal[:-1], 1)
    noise = np.append(after.noise[:-1], 0)
    latents, values = signal * (out * of_latents + skip), signal * out * of_prediction
    return schedule_of_predictions(config, timesteps, now, latents, values, noise)


def tcd(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of trajectory consistency distillation: Zheng et al. 2024, algorithm 4.

    `config.eta` is the paper's gamma, the share of each jump that noise takes back. The last step
    adds no noise.
    """
    timesteps = distilled_timesteps(config, steps)
    ends = np.append(timesteps[1:], 0)
    now, after = mixtures(config, timesteps, ends)
    target, _ = mixtures(config, np.floor((1 - config.eta) * ends).astype(int), ends)
    latents, values = mixed(config, now, target.signal, target.noise)
    left = np.append((after.signal / target.signal)[:-1], 1)
    noise = np.sqrt(np.maximum(1 - left**2, 0))
    return schedule_of_predictions(config, timesteps, now, left * latents, left * values, noise)


def distilled_timesteps(config: SchedulerConfig, steps: int) -> np.ndarray:
    """Return the timesteps of a run, `[steps]`, falling: some of those of the distillation."""
    if config.timesteps is not None:
        return np.array(config.timesteps)
    trained = np.arange(1, ORIGINAL_STEPS + 1) * (config.num_train_timesteps // ORIGINAL_STEPS) - 1
    return trained[::-1][np.linspace(0, ORIGINAL_STEPS, steps, endpoint=False).astype(int)]
