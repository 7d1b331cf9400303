"""Names of schedulers and of their sigma schedules in other programs and in pictures' texts."""

import re

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
# Further names, of ComfyUI and of older versions, as `_folded` writes them.
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
}


def _folded(text: str) -> str:
    """Return a name in small letters, without the characters that programs write differently."""
    return re.sub(r"[\s_-]", "", text.lower())


_SCHEDULERS = {
    **_OTHERS,
    # One class can be several schedulers; the first one is the class's own default.
    **{_folded(scheduler.name): name for name, scheduler in reversed(SCHEDULERS.items())},
    **{_folded(sampler): name for name, sampler in SAMPLERS.items()},
    **{_folded(name): name for name in SCHEDULERS},
}
_SIGMA_SCHEDULES = {
    **{_folded(title): name for name, title in SCHEDULE_TYPES.items()},
    **{_folded(name): name for name in SCHEDULE_TYPES},
    "automatic": DEFAULT_SIGMAS,
}


def find_sigma_schedule(text: str) -> str | None:
    """Return the sigma schedule that a text names; None if there is none of this name."""
    return _SIGMA_SCHEDULES.get(_folded(text))


def find_scheduler(text: str) -> tuple[str | None, str | None]:
    """Return the scheduler and the sigma schedule that a text names, such as "DPM++ 2M Karras".

    Either is None if the text does not name one that this program has.
    """
    folded = _folded(text)
    if folded in _SCHEDULERS:
        return _SCHEDULERS[folded], None
    for end, sigma_schedule in _SIGMA_SCHEDULES.items():
        if folded.endswith(end) and (name := _SCHEDULERS.get(folded.removesuffix(end))):
            return name, sigma_schedule
    return None, None
