"""The schedulers by name. Each is a function that makes a schedule."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pipeline.errors import InputError
from pipeline.schedulers import consistency, ddim, dpm_solver, euler, pndm, unipc
from pipeline.schedulers.config import SCHEDULERS, SchedulerConfig, first_evaluation
from pipeline.schedulers.table import Schedule

METHODS: dict[str, Callable[[SchedulerConfig, int], Schedule]] = {
    "euler": euler.euler,
    "euler-ancestral": euler.euler_ancestral,
    "heun": euler.heun,
    "lms": euler.lms,
    "ddim": ddim.ddim,
    "ddpm": ddim.ddpm,
    "pndm": pndm.pndm,
    "dpmsolver++": dpm_solver.multistep,
    "dpmsolver++-2m-sde": dpm_solver.multistep_sde,
    "dpmsolver++-sde": dpm_solver.single_step_sde,
    "unipc": unipc.unipc,
    "lcm": consistency.lcm,
    "tcd": consistency.tcd,
}
# Methods that start anew at the first evaluation of a run, which is their third argument. The
# others take the same steps wherever a run begins: "lms" too, as in diffusers.
STARTING: dict[str, Callable[[SchedulerConfig, int, int], Schedule]] = {
    "pndm": pndm.pndm,
    "dpmsolver++": dpm_solver.multistep,
    "dpmsolver++-2m-sde": dpm_solver.multistep_sde,
    "unipc": unipc.unipc,
}


def make_schedule(
    config: SchedulerConfig,
    num_inference_steps: int,
    *,
    strength: float = 1.0,
    denoising_start: float | None = None,
    denoising_end: float | None = None,
) -> Schedule:
    """Make the schedule of a run, the same as that of diffusers' scheduler `config.name`.

    Args:
        config: the scheduler.
        num_inference_steps: the number of steps of a whole run.
        strength: from 0 to 1, the share of the steps that a run from a picture takes; they are the
            last ones.
        denoising_start: from 0 to 1, the share of the denoising that another model has done. It
            replaces `strength`.
        denoising_end: from 0 to 1, the share of the denoising after which another model goes on.

    Raises:
        InputError: if no step is left.
    """
    schedule = METHODS[config.name](config, num_inference_steps)
    if denoising_start is None:
        first = first_evaluation(config.name, num_inference_steps, strength)
        fault, right = f"strength is {strength}", f"at least {1 / num_inference_steps:g}"
    else:
        first = _first_after(config, schedule.timesteps, denoising_start)
        fault, right = f"denoising_start is {denoising_start}", "a smaller number"
    end = len(schedule.timesteps)
    if denoising_end is not None:
        end = int((schedule.timesteps >= _cutoff(config, denoising_end)).sum())
        fault += f" and denoising_end {denoising_end}"
    if first is None or first >= end:
        raise InputError(
            f"{fault}, which leaves none of {num_inference_steps} steps; expected {right}"
            + (", or a larger denoising_end" if denoising_end is not None else "")
        )
    if first and config.name in STARTING:
        schedule = STARTING[config.name](config, num_inference_steps, first)
    part = schedule.part(first, end)
    return part if denoising_start is None else replace(part, first=first)


def _first_after(config: SchedulerConfig, timesteps: np.ndarray, start: float) -> int:
    """Return the first evaluation after a share of the denoising; no step is cut in two."""
    remaining_count = int((timesteps < _cutoff(config, start)).sum())
    if SCHEDULERS[config.name].evaluations == 2 and remaining_count % 2 == 0:
        remaining_count += 1
    return len(timesteps) - remaining_count


def _cutoff(config: SchedulerConfig, share: float) -> int:
    """Return the timestep at which a share of the denoising is done, as diffusers rounds it."""
    return round(config.num_train_timesteps - share * config.num_train_timesteps)
