"""UniPC (Zhao et al. 2023, "UniPC: a unified predictor-corrector framework"), of second order.

The value of an evaluation is its prediction of x0.
"""

import numpy as np

from pipeline.schedulers.config import SchedulerConfig
from pipeline.schedulers.dpm_solver import solver_sigmas
from pipeline.schedulers.mixtures import Mixture, schedule_of_x0, variance_preserving
from pipeline.schedulers.table import Schedule

REACH = 3  # values that a step uses: two of its predictor, one more of its corrector


def unipc(config: SchedulerConfig, steps: int, first: int = 0) -> Schedule:
    """Make a schedule of UniPC-2 with B(h) = exp(h) - 1 ("bh2"), which predicts x0.

    An evaluation first corrects the latents that were predicted for it, then predicts the next.
    Both changes are weighted sums of values, so one row of the table does both. The steps up to
    `first` and the last one are of first order, and nothing is corrected before step `first`.
    """
    timesteps, sigmas = solver_sigmas(config, steps)
    now = variance_preserving(sigmas[:-1])
    latents, values = np.empty(steps), np.zeros((REACH, steps))
    before: np.ndarray | None = None  # the predictor's weights of the step before
    for i in range(steps):
        order = 1 if i <= first or i == steps - 1 else 2
        latents[i], predictor = _predictor(sigmas, i, order)
        values[:2, i] = predictor
        if before is not None and i > first:
            corrected = _corrector(sigmas, i - 1, 2 if i > first + 1 else 1)
            corrected[1:] -= before
            values[:, i] += latents[i] * corrected
        before = predictor
    return schedule_of_x0(config, timesteps, now, latents, [*values])


def _predictor(sigmas: np.ndarray, i: int, order: int) -> tuple[float, np.ndarray]:
    """Return the coefficients of the latents and of the last two values in step `i`."""
    now, after = _ends(sigmas, i)
    latents = after.noise / now.noise
    shrunk = sigmas[i + 1] / sigmas[i] - 1  # exp(-h) - 1, which is B(h) too
    weights = np.array([-after.signal * shrunk, 0.0])
    if order == 2:
        slope = 1 / (2 * _ratio(sigmas, i))
        weights += -after.signal * shrunk * slope * np.array([-1.0, 1.0])
    return float(latents), weights


def _corrector(sigmas: np.ndarray, i: int, order: int) -> np.ndarray:
    """Return the coefficients of the last three values in the corrected step `i`.

    The first value is the one at the end of the step.
    """
    _, after = _ends(sigmas, i)
    h = np.log(sigmas[i] / sigmas[i + 1])
    shrunk = np.expm1(-h)
    phi = shrunk / -h - 1
    if order == 1:
        first, last = 0.0, 1 / 2
    else:
        ratio = _ratio(sigmas, i)
        powers = np.array([[1.0, 1.0], [ratio, 1.0]])
        sides = np.array([phi, 2 * (phi / -h - 1 / 2)]) / shrunk
        first, last = np.linalg.solve(powers, sides)
        first /= ratio
    return -after.signal * shrunk * np.array([last, 1 - last - first, first])


def _ends(sigmas: np.ndarray, i: int) -> tuple[Mixture, Mixture]:
    return variance_preserving(sigmas[i]), variance_preserving(sigmas[i + 1])


def _ratio(sigmas: np.ndarray, i: int) -> float:
    """Return the length in log sigma of the step before `i`, in lengths of step `i`, negative."""
    return float(np.log(sigmas[i] / sigmas[i - 1]) / np.log(sigmas[i] / sigmas[i + 1]))
