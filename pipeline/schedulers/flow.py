"""Euler's method for models of flow matching.

Latents are (1 - s) * x0 + s * noise. The network predicts noise - x0, which is the latents'
derivative by s.
"""

import numpy as np

from pipeline.schedulers.config import Flow, SchedulerConfig
from pipeline.schedulers.mixtures import Mixture, schedule_at
from pipeline.schedulers.table import Schedule, make_table


def flow_euler(config: SchedulerConfig, flow: Flow, steps: int) -> Schedule:
    """Make a schedule of Euler's method for a flow."""
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
