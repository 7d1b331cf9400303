"""Euler's method for the diffusion ODE (Karras et al. 2022, algorithm 1 with no churn).

Everything is float32. The schedule is made on the host, once per request; the two functions below
it are what one step does on the device, by index, never by matching float timesteps.
"""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from pipeline.config import SchedulerConfig

KARRAS_RHO = 7.0


@dataclass(frozen=True)
class Schedule:
    """timesteps `[T]` and sigmas `[T + 1]` (the last is 0), float32, noisiest first.

    `init_noise_sigma` is the standard deviation of the latents that the first step expects.
    """

    timesteps: np.ndarray
    sigmas: np.ndarray
    init_noise_sigma: float


def make_schedule(config: SchedulerConfig, num_inference_steps: int) -> Schedule:
    """The noise levels of a run, as diffusers' EulerDiscreteScheduler.set_timesteps has them."""
    levels = train_sigmas(config)
    timesteps = _spaced_timesteps(config, num_inference_steps)
    sigmas = np.interp(timesteps, np.arange(len(levels)), levels)
    if config.use_karras_sigmas:
        sigmas = _karras_sigmas(sigmas, num_inference_steps)
        timesteps = np.interp(
            np.log(sigmas), np.log(levels), np.arange(len(levels), dtype=np.float64)
        )
    largest = float(sigmas.max())
    variance_preserving = config.timestep_spacing == "leading"
    return Schedule(
        timesteps=timesteps.astype(np.float32),
        sigmas=np.append(sigmas, 0.0).astype(np.float32),
        init_noise_sigma=(largest**2 + 1) ** 0.5 if variance_preserving else largest,
    )


def train_sigmas(config: SchedulerConfig) -> np.ndarray:
    """Noise level at every training timestep, `[num_train_timesteps]` float32, rising.

    Rounded to float32 where diffusers rounds: the levels near 0 come from 1 - alpha, which keeps
    only a few of its digits, and networks are trained and run with those.
    """
    start, end, count = config.beta_start, config.beta_end, config.num_train_timesteps
    if config.beta_schedule == "linear":
        betas = np.linspace(start, end, count, dtype=np.float32)
    else:  # scaled_linear: linear in the square root
        betas = np.linspace(start**0.5, end**0.5, count, dtype=np.float32) ** 2
    alphas_cumprod = np.cumprod(1 - betas, dtype=np.float64).astype(np.float32)
    return np.sqrt((1 - alphas_cumprod) / alphas_cumprod)


def _spaced_timesteps(config: SchedulerConfig, steps: int) -> np.ndarray:
    """Table 2 of Lin et al. 2023, "Common diffusion noise schedules ... are flawed"."""
    count = config.num_train_timesteps
    if config.timestep_spacing == "linspace":
        return np.linspace(0, count - 1, steps, dtype=np.float32)[::-1]
    if config.timestep_spacing == "leading":
        return (np.arange(steps) * (count // steps))[::-1] + config.steps_offset
    # np.arange with a fractional stride can give one value too many.
    return np.round(np.arange(count, 0, -count / steps))[:steps] - 1


def _karras_sigmas(sigmas: np.ndarray, steps: int) -> np.ndarray:
    """Equation 5 of Karras et al. 2022, between the largest and smallest of `sigmas`."""
    ramp = np.linspace(0, 1, steps)
    low, high = sigmas[-1] ** (1 / KARRAS_RHO), sigmas[0] ** (1 / KARRAS_RHO)
    return (high + ramp * (low - high)) ** KARRAS_RHO


def scale_model_input(latents: Array, sigma: Array) -> Array:
    """Latents of standard deviation sqrt(sigma^2 + 1) to unit variance, which the UNet expects."""
    return latents / jnp.sqrt(sigma**2 + 1)


def step(
    prediction: Array, latents: Array, sigma: Array, next_sigma: Array, prediction_type: str
) -> Array:
    """One Euler step from noise level `sigma` to `next_sigma`, all float32.

    `prediction` is the noise ("epsilon") or v (Salimans and Ho 2022), of the latents' shape.
    """
    if prediction_type == "epsilon":
        derivative = prediction
    else:
        denoised = latents / (sigma**2 + 1) - prediction * sigma / jnp.sqrt(sigma**2 + 1)
        derivative = (latents - denoised) / sigma
    return latents + derivative * (next_sigma - sigma)
