"""How the page shows settings: their order, and the ranges and steps of their sliders.

`pipeline.request` declares each setting's type, range, default and description.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.setting_kinds import Number


@dataclass(frozen=True)
class Field:
    """How the page shows one setting.

    Attributes:
        high: the end of its slider, if that is below the setting's own limit.
        step: the step of its slider.
        in_per_cent: whether its values, shares from 0 to 1, are shown in per cent.
        if_set: whether it is shown only while it has another value than the default, which a link
            or a picture can give it.
    """

    high: float | None = None
    step: float = 1
    in_per_cent: bool = False
    if_set: bool = False


# In the order of the page.
FIELDS: Mapping[str, Field] = {
    "model": Field(),
    "guidance_scale": Field(high=20, step=0.5),
    "guidance_until": Field(step=0.05, in_per_cent=True),
    "guidance_rescale": Field(step=0.05),
    "num_inference_steps": Field(),
    "scheduler": Field(),
    "sigma_schedule": Field(),
    "timestep_spacing": Field(if_set=True),
    "timesteps": Field(if_set=True),
    "eta": Field(if_set=True),
    "seed": Field(),
    "variation_strength": Field(step=0.05),
    "variation_seed": Field(),
    "variation_of": Field(),
    "loras": Field(),
    "decoder": Field(),
    "cache_interval": Field(),
    "recipe": Field(),
    "strength": Field(step=0.01),
    "padding": Field(),
    "prompt_syntax": Field(),
    "denoising_end": Field(step=0.01),
    "enlarge": Field(if_set=True),
    "enlarge_strength": Field(step=0.01, if_set=True),
    "enlarge_steps": Field(if_set=True),
}


def highest(setting: Number) -> float:
    """Return the largest value of a number's component."""
    high = FIELDS[setting.name].high
    return setting.high if high is None else high
