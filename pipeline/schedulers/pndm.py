"""PNDM, the scheduler of Stable Diffusion 1."""

import numpy as np

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.mixtures import mixtures, noise_part, schedule_at, stride
from pipeline.schedulers.sigmas import spaced_timesteps
from pipeline.schedulers.table import Schedule, make_table

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


def pndm(config: SchedulerConfig, steps: int, first: int = 0) -> Schedule:
    """Make a schedule of PNDM.

    Liu et al. 2022, "Pseudo numerical methods for diffusion models on manifolds", equations 9 and
    12. The improved Euler method starts the run instead of Runge-Kutta: if there is more than one
    step, the first step takes two evaluations, the second of them at the step's end. As in
    diffusers, these are the evaluations `first` and `first + 1` of the whole run, whatever their
    timesteps are.
    """
    timesteps = np.round(spaced_timesteps(config, steps)).astype(int)
    if steps > 1:
        timesteps = np.insert(timesteps, 1, timesteps[1])
    starts, ends = timesteps.copy(), timesteps - stride(config, steps)
    again = slice(first + 1, first + 2)
    starts[again] += stride(config, steps)
    ends[again] = timesteps[again]
    now, after = mixtures(config, starts, ends)
    # The weighted sum contains the same signal and noise, in the shares `after`.
    latents = after.signal / now.signal
    values = after.noise - latents * now.noise
    # The combined prediction is converted to noise with the latents at the start of the step.
    noise_latents, noise_prediction = noise_part(config, now)
    latents = latents + values * noise_latents
    rows = np.clip(np.arange(len(timesteps)) - first, 0, len(PNDM_WEIGHTS) - 1)
    weights = (values * noise_prediction)[:, None] * PNDM_WEIGHTS[rows]
    # The second evaluation restarts from the first latents, (x' - values * v) / latents.
    latents[again] /= latents[first]
    weights[again, 1] -= latents[again] * weights[first, 0]
    table = make_table(
        timesteps, value_latents=0, value_prediction=1, latents=latents, values=weights.T
    )
    mixture, _ = mixtures(config, timesteps, ends)
    evaluations = len(timesteps)
    stops = [stop for stop in range(1, evaluations + 1) if stop != first + 1 or stop == evaluations]
    return schedule_at(config, mixture, table, stops=stops)
