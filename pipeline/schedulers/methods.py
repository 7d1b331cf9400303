"""The schedulers by name. Each is a function that makes a schedule."""

from collections.abc import Callable

from pipeline.schedulers import consistency, ddim, dpm_solver, euler, pndm, unipc
from pipeline.schedulers.config import SchedulerConfig
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


def make_schedule(config: SchedulerConfig, num_inference_steps: int) -> Schedule:
    """Make the schedule of a run, the same as that of diffusers' scheduler `config.name`."""
    return METHODS[config.name](config, num_inference_steps)
