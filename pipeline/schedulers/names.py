"""Names of schedulers and of their sigma schedules in other programs and in pictures' texts."""

import re
from collections.abc import Mapping

from pipeline.schedulers.config import ALIGNED, DEFAULT_SIGMAS, SCHEDULERS

# AUTOMATIC1111's names of the schedulers.
SAMPLERS = {
    "euler": "Euler",
    "euler-ancestral": "Euler a",
    "heun": "Heun",
    "lms": "LMS",
    "ddim": "DDIM",
    "ddpm": "DDPM",
    "pndm": "PLMS",
    "dpmsolver++": "DPM++ 2M",
    "dpmsolver++-2m-sde": "DPM++ 2M SDE",
    "dpmsolver++-sde": "DPM++ SDE",
    "unipc": "UniPC",
    "lcm": "LCM",
    "tcd": "TCD",
}
# AUTOMATIC1111's names of the sigma schedules.
SCHEDULE_TYPES = {
    DEFAULT_SIGMAS: "Uniform",
    "karras": "Karras",
    "exponential": "Exponential",
    "beta": "Beta",
    ALIGNED: "Align Your Steps",
}
# Further names, of ComfyUI and of older versions, as `folded` writes them.
_OTHERS = {
    "keuler": "euler",
    "keulera": "euler-ancestral",
    "keulerancestral": "euler-ancestral",
    "kheun": "heun",
    "klms": "lms",
    "dpmpp2m": "dpmsolver++",
    "kdpmpp2m": "dpmsolver++",
    "dpmpp2msde": "dpmsolver++-2m-sde",
    "kdpmpp2msde": "dpmsolver++-2m-sde",
    "dpmppsde": "dpmsolver++-sde",
    "kdpmppsde": "dpmsolver++-sde",
    "dpmpp2msdegpu": "dpmsolver++-2m-sde",
    "dpmppsdegpu": "dpmsolver++-sde",
    "unipcbh2": "unipc",
}
# Schedulers that only other programs have, as `folded` writes them with "pp" for "++", and those
# of this program that come nearest: of the same order if possible, and with noise in the steps or
# without.
_NEAREST = {
    "ddimcfgpp": "ddim",
    "deis": "dpmsolver++",
    "dpm2": "heun",
    "dpm2a": "euler-ancestral",
    "dpm2ancestral": "euler-ancestral",
    "dpmadaptive": "dpmsolver++",
    "dpmfast": "dpmsolver++",
    "dpmpp2mcfgpp": "dpmsolver++",
    "dpmpp2msdegpu": "dpmsolver++-2m-sde",
    "dpmpp2msdeheun": "dpmsolver++-2m-sde",
    "dpmpp2sa": "dpmsolver++-sde",
    "dpmpp2sancestral": "dpmsolver++-sde",
    "dpmpp2sancestralcfgpp": "dpmsolver++-sde",
    "dpmpp3msde": "dpmsolver++-2m-sde",
    "dpmpp3msdegpu": "dpmsolver++-2m-sde",
    "dpmppsdegpu": "dpmsolver++-sde",
    "ersde": "dpmsolver++-2m-sde",
    "eulerancestralcfgpp": "euler-ancestral",
    "eulercfgpp": "euler",
    "eulerdy": "euler",
    "eulersmeady": "euler",
    "gradientestimation": "euler",
    "heunpp2": "heun",
    "ipndm": "lms",
    "ipndmv": "lms",
    "resmultistep": "dpmsolver++",
    "resmultistepancestral": "dpmsolver++-2m-sde",
    "restart": "heun",
    "sasolver": "dpmsolver++-2m-sde",
    "seeds2": "dpmsolver++-sde",
    "seeds3": "dpmsolver++-sde",
    "unipcbh2": "unipc",
}


def folded(text: str) -> str:
    """Return a name in small letters, without the characters that programs write differently."""
    return re.sub(r"[\s_-]", "", text.lower())


_SCHEDULERS = {
    **_OTHERS,
    # One class can be several schedulers; the first one is the class's own default.
    **{folded(scheduler.name): name for name, scheduler in reversed(SCHEDULERS.items())},
    **{folded(sampler): name for name, sampler in SAMPLERS.items()},
    **{folded(name): name for name in SCHEDULERS},
}
_SIGMA_SCHEDULES = {
    **{folded(title): name for name, title in SCHEDULE_TYPES.items()},
    **{folded(name): name for name in SCHEDULE_TYPES},
    "automatic": DEFAULT_SIGMAS,
}


def find_sigma_schedule(text: str) -> str | None:
    """Return the sigma schedule that a text names; None if there is none of this name."""
    return _SIGMA_SCHEDULES.get(folded(text))


def find_scheduler(text: str) -> tuple[str | None, str | None]:
    """Return the scheduler and the sigma schedule that a text names, such as "DPM++ 2M Karras".

    Either is None if the text does not name one that this program has.
    """
    return _find(folded(text), _SCHEDULERS)


def nearest_scheduler(text: str) -> tuple[str | None, str | None]:
    """Return those that come nearest to what a text names, such as "DPM++ 3M SDE Karras".

    Either is None if nothing is known that would be near.
    """
    return _find(folded(text).replace("++", "pp").removeprefix("k"), _NEAREST)


def _find(name: str, schedulers: Mapping[str, str]) -> tuple[str | None, str | None]:
    if name in schedulers:
        return schedulers[name], None
    for end, sigma_schedule in _SIGMA_SCHEDULES.items():
        if name.endswith(end) and (scheduler := schedulers.get(name.removesuffix(end))):
            return scheduler, sigma_schedule
    return None, None
