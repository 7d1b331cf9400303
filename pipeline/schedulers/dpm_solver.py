"""DPM-Solver++ (Lu et al. 2022), as an ODE's solver and with noise.

The value of an evaluation is its prediction of x0, unless a function says otherwise.
"""

import numpy as np

from pipeline.schedulers.config import ALIGNED, DEFAULT_SIGMAS, SchedulerConfig
from pipeline.schedulers.euler import euler_sigmas, euler_start
from pipeline.schedulers.mixtures import (
    schedule_at,
    schedule_of_x0,
    variance_preserving,
    x0_part,
)
from pipeline.schedulers.sigmas import (
    spaced_sigmas,
    spaced_timesteps,
    timesteps_of,
    train_sigmas,
)
from pipeline.schedulers.table import Schedule, make_table


def multistep(config: SchedulerConfig, steps: int, first: int = 0) -> Schedule:
    """Make a schedule of DPM-Solver++ (2M): "DPM-Solver++", algorithm 2.

    The steps up to `first` are of first order, and so is the last step, because it ends without
    noise.
    """
    timesteps, sigmas = solver_sigmas(config, steps)
    now, after = variance_preserving(sigmas[:-1]), variance_preserving(sigmas[1:])
    latents = after.noise / now.noise
    values = _second_order(sigmas, after.signal - latents * now.signal, first)
    return schedule_of_x0(config, timesteps, now, latents, values)


def multistep_sde(config: SchedulerConfig, steps: int, first: int = 0) -> Schedule:
    """Make a schedule of SDE-DPM-Solver++ (2M): "DPM-Solver++", algorithm 3 of the appendix.

    Each step adds the noise that its shorter way towards x0 leaves room for. Orders are those of
    `multistep`.
    """
    timesteps, sigmas = solver_sigmas(config, steps)
    now, after = variance_preserving(sigmas[:-1]), variance_preserving(sigmas[1:])
    left = sigmas[1:] / sigmas[:-1]  # exp(-h)
    latents = after.noise / now.noise * left
    values = _second_order(sigmas, after.signal * (1 - left**2), first)
    noise = after.noise * np.sqrt(1 - left**2)
    return schedule_of_x0(config, timesteps, now, latents, values, noise)


def _second_order(sigmas: np.ndarray, denoised: np.ndarray, first: int) -> list[np.ndarray]:
    """Return the coefficients of the last two predictions of x0.

    `denoised` are those of the last one in steps of first order.
    """
    half = np.zeros_like(denoised)  # 1 / (2 r)
    lengths = np.log(sigmas[:-2] / sigmas[1:-1])  # h of all steps but the last
    half[1:-1] = lengths[1:] / (2 * lengths[:-1])
    half[: first + 1] = 0
    return [denoised * (1 + half), -denoised * half]


def single_step_sde(config: SchedulerConfig, steps: int) -> Schedule:
    """Make a schedule of DPM-Solver++ (SDE) as k-diffusion has it, with two evaluations a step.

    The first evaluation goes to the middle of the step (in log sigma), the second one from the
    start to the end of the step. Both are ancestral steps, and the noise of the second contains
    that of the first: both are increments of one Brownian motion over sigma. The last step ends
    without noise, and is one of Euler's. Form: https://github.com/crowsonkb/k-diffusion.

    The latents are x0 plus sigma * noise. The first evaluation's value is chosen such that the
    second can restart from the latents at the start of the step, and keep the noise of the first.
    """
    timesteps, sigmas = euler_sigmas(config, steps)
    start, end = sigmas[:-2], sigmas[1:-1]
    middle = np.sqrt(start * end)
    half, half_noise = _ancestral(start, middle)
    whole, whole_noise = _ancestral(start, end)
    # The shares of the second noise that are over the first and over the second half of the step.
    first = whole_noise * np.sqrt((start - middle) / (start - end))
    second = whole_noise * np.sqrt((middle - end) / (start - end))
    again = first / half_noise

    count = 2 * steps - 1
    noise_levels = np.empty(count)
    noise_levels[0::2], noise_levels[1::2] = sigmas[:-1], middle
    times = np.empty(count)
    times[0::2], times[1::2] = timesteps, timesteps_of(middle, config)
    mixture = variance_preserving(noise_levels)
    of_latents, of_prediction = x0_part(config, mixture)
    value_latents, value_prediction = of_latents * mixture.signal, of_prediction
    value_latents[0:-1:2] = whole - again * half - again * (1 - half) * value_latents[0:-1:2]
    value_prediction[0:-1:2] *= -again * (1 - half)
    latents, latest, earlier, noise = np.zeros((4, count))
    latents[0:-1:2], latest[0:-1:2], noise[0:-1:2] = whole / again, -1 / again, half_noise
    latents[1::2], latest[1::2], earlier[1::2], noise[1::2] = again, 1 - whole, 1, second
    latest[-1] = 1  # the last step ends at x0
    table = make_table(
        times,
        input_scale=mixture.signal,
        value_latents=value_latents,
        value_prediction=value_prediction,
        latents=latents,
        values=[latest, earlier],
        noise=noise,
    )
    stops = [*range(2, 2 * steps, 2), count]
    return schedule_at(config, mixture, table, euler_start(config, sigmas), stops)


def _ancestral(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of the latents after ancestral steps, and the noise that each step adds.

    The rest of the latents is x0. `start` and `end` are sigmas.
    """
    noise = np.minimum(end, end * np.sqrt(1 - (end / start) ** 2))
    return np.sqrt(end**2 - noise**2) / start, noise


def solver_sigmas(config: SchedulerConfig, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return timesteps `[steps]` and sigmas `[steps + 1]`, the last of which is 0.

    All timesteps are whole numbers.
    """
    training = train_sigmas(config)
    if config.sigma_schedule != DEFAULT_SIGMAS:
        sigmas = spaced_sigmas(config, float(training[-1]), float(training[0]), steps)
        timesteps = timesteps_of(sigmas, config)
        # diffusers rounds the timesteps of Karras' sigmas, and cuts off the decimals of the others.
        rounded = config.sigma_schedule in ("karras", ALIGNED)
        timesteps = np.round(timesteps) if rounded else timesteps // 1
        return timesteps, np.append(sigmas, 0.0)
    if config.timesteps is not None or config.timestep_spacing == "trailing":
        timesteps = spaced_timesteps(config, steps)
    else:  # the end of the last step is spaced too, then left out
        timesteps = spaced_timesteps(config, steps + 1)[:-1]
    timesteps = np.round(timesteps).astype(int)
    return timesteps, np.append(training[timesteps].astype(np.float64), 0.0)
