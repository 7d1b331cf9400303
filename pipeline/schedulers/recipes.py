"""Settings of models and LoRAs that were distilled to few steps, and how they are recognised.

The settings are those that their publishers recommend. A recipe is recognised by the name of a
model, of a UNet or of a LoRA: the last part of an id on the Hub, or the name of a folder or file.
Merges of distilled models with others have settings of their own, and are not recognised.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from pipeline.schedulers.config import DEFAULT_SIGMAS

NO_GUIDANCE = 1.0
STABLE_DIFFUSION, SDXL = "Stable Diffusion", "Stable Diffusion XL"  # names of families


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a distilled model or LoRA.

    Attributes:
        name: its name in requests.
        title: the name of the distillation, for people.
        family: the name of the family of its models.
        pattern: pattern of the names that it is recognised by, as `_folded` writes them.
        steps: the numbers of steps that it was made for; the first is the default.
        scheduler: a key of `SCHEDULERS`.
        guidance_scale: the guidance scale; 1 means no guidance.
        timestep_spacing: how timesteps are spaced; None for schedulers that do not space them.
        timesteps: the timesteps of a run with as many steps; empty for spaced ones.
        eta: the share of noise; None for schedulers without one.
        prediction_type: the type of the UNet's prediction, where it differs from the base model's.
        size: height and width in pixels, where they differ from the base model's.
        lora: the name of the LoRA that it was found by, if it is a LoRA's.
    """

    name: str
    title: str
    family: str
    pattern: str
    steps: tuple[int, ...]
    scheduler: str
    guidance_scale: float = NO_GUIDANCE
    timestep_spacing: str | None = None
    timesteps: tuple[int, ...] = ()
    eta: float | None = None
    prediction_type: str | None = None
    size: tuple[int, int] | None = None
    lora: str = ""

    @property
    def scheduler_settings(self) -> dict[str, str]:
        """Keys of `scheduler_config.json` that differ from the base model's, with their values."""
        keys = {
            "timestep_spacing": self.timestep_spacing,
            "prediction_type": self.prediction_type,
        }
        return {key: value for key, value in keys.items() if value is not None}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a request that follow from it, except for its LoRA."""
        return {
            "num_inference_steps": self.steps[0],
            "guidance_scale": self.guidance_scale,
            "scheduler": self.scheduler,
            "sigma_schedule": DEFAULT_SIGMAS,
            "timestep_spacing": self.timestep_spacing or "",
            "timesteps": ",".join(map(str, self.timesteps)),
            "eta": self.eta,
        }

    def matches(self, name: str) -> bool:
        """Return whether a model, UNet or LoRA of this name is recognised."""
        return re.fullmatch(self.pattern, _folded(name)) is not None


def _folded(name: str) -> str:
    """Return the last part of a name in small letters, with hyphens, without its precision."""
    last = PurePosixPath(name).name.lower().removesuffix(".safetensors")
    return re.sub(r"-(fp16|fp32|bf16)$", "", re.sub(r"[\s_.-]+", "-", last))


# https://huggingface.co/ByteDance/SDXL-Lightning
_LIGHTNING: dict[str, Any] = {
    "title": "SDXL Lightning",
    "family": SDXL,
    "scheduler": "euler",
    "timestep_spacing": "trailing",
}
# LoRAs of https://huggingface.co/ByteDance/Hyper-SD: for a number of steps, and for one to eight.
_HYPER: dict[str, Any] = {
    "title": "Hyper-SD",
    "scheduler": "ddim",
    "timestep_spacing": "trailing",
}
_UNIFIED_HYPER: dict[str, Any] = {
    "name": "hyper-unified",
    "title": "Hyper-SD unified",
    "steps": (4, 1, 2, 3, 5, 6, 7, 8),
    "scheduler": "tcd",
    "eta": 1.0,
}
# https://huggingface.co/latent-consistency
_CONSISTENCY: dict[str, Any] = {
    "name": "lcm",
    "title": "LCM",
    "steps": (4, 2, 3, 5, 6, 7, 8),
    "scheduler": "lcm",
}
# https://github.com/jabir-zheng/TCD
_TRAJECTORY: dict[str, Any] = {
    "name": "tcd",
    "title": "TCD",
    "steps": (4, *range(5, 21)),
    "scheduler": "tcd",
    "eta": 0.3,
}
# https://huggingface.co/tianweiy/DMD2
_DMD2: dict[str, Any] = {"title": "DMD2", "family": SDXL, "scheduler": "lcm"}
_DMD2_4: dict[str, Any] = {
    **_DMD2,
    "name": "dmd2-4",
    "steps": (4,),
    "timesteps": (999, 749, 499, 249),
}
# UNets that take the guidance scale as an input: latent consistency models, whatever their names.
LATENT_CONSISTENCY = {
    SDXL: Recipe(**_CONSISTENCY, family=SDXL, pattern=r"lcm-(sdxl|ssd-1b)", guidance_scale=8.0),
    STABLE_DIFFUSION: Recipe(
        **_CONSISTENCY,
        family=STABLE_DIFFUSION,
        pattern=r"lcm-dreamshaper-v7",
        guidance_scale=8.0,
    ),
}
# Models and UNets.
MODELS = (
    Recipe(
        name="sdxl-turbo",
        title="SDXL Turbo",
        family=SDXL,
        pattern=r"(sdxl|sd-xl)-turbo(-1-0)?",
        steps=(4, 1, 2, 3),
        scheduler="euler-ancestral",
        timestep_spacing="trailing",
        size=(512, 512),
    ),
    Recipe(
        name="sd-turbo",
        title="SD Turbo",
        family=STABLE_DIFFUSION,
        pattern=r"sd-turbo",
        steps=(4, 1, 2, 3),
        scheduler="euler",
        timestep_spacing="trailing",
        size=(512, 512),
    ),
    Recipe(
        **_LIGHTNING,
        name="lightning-1",
        pattern=r"sdxl-lightning-1step(-unet)?-x0",
        steps=(1,),
        prediction_type="sample",
    ),
    *(
        Recipe(
            **_LIGHTNING,
            name=f"lightning-{steps}",
            pattern=rf"sdxl-lightning-{steps}step(-unet)?",
            steps=(steps,),
        )
        for steps in (2, 4, 8)
    ),
    Recipe(
        name="hyper-1",
        title="Hyper-SD",
        family=SDXL,
        pattern=r"hyper-sdxl-1step-unet(-comfyui)?",
        steps=(1,),
        scheduler="lcm",
        timesteps=(800,),
    ),
    *LATENT_CONSISTENCY.values(),
    Recipe(**_DMD2_4, pattern=r"dmd2-sdxl-4step-unet"),
    Recipe(**_DMD2, name="dmd2-1", pattern=r"dmd2-sdxl-1step-unet", steps=(1,), timesteps=(399,)),
)
LORAS = (
    *(
        Recipe(
            **_LIGHTNING,
            name=f"lightning-{steps}",
            pattern=rf"sdxl-lightning-{steps}step-lora",
            steps=(steps,),
        )
        for steps in (2, 4, 8)
    ),
    *(
        recipe
        for family, base in ((SDXL, "sdxl"), (STABLE_DIFFUSION, "sd15"))
        for recipe in (
            Recipe(**_UNIFIED_HYPER, family=family, pattern=rf"hyper-{base}-1steps?-lora"),
            *(
                Recipe(
                    **_HYPER,
                    name=f"hyper-{steps}",
                    family=family,
                    pattern=rf"hyper-{base}-{steps}steps?-lora",
                    steps=(steps,),
                )
                for steps in (2, 4, 8)
            ),
        )
    ),
    Recipe(**_CONSISTENCY, family=SDXL, pattern=r"lcm-lora-(sdxl|ssd-1b)"),
    Recipe(**_CONSISTENCY, family=STABLE_DIFFUSION, pattern=r"lcm-lora-sdv1-5"),
    Recipe(**_TRAJECTORY, family=SDXL, pattern=r"tcd-sdxl-lora"),
    Recipe(**_TRAJECTORY, family=STABLE_DIFFUSION, pattern=r"tcd-(sd15|sd21-base)-lora"),
    Recipe(**_DMD2_4, pattern=r"dmd2-sdxl-4step-lora"),
    # The bundled miniature's.
    Recipe(
        name="quick",
        title="Miniature",
        family=SDXL,
        pattern=r"miniature-quick",
        steps=(4, 2, 3),
        scheduler="euler",
        timestep_spacing="trailing",
    ),
)


def find_model_recipe(names: Iterable[str]) -> Recipe | None:
    """Return the recipe of a model with one of these names, its own or its UNet's, if any."""
    candidates = list(names)
    return next((recipe for recipe in MODELS if any(map(recipe.matches, candidates))), None)


NAMES = tuple(dict.fromkeys(recipe.name for recipe in LORAS))
# Settings of a request that a recipe sets or, as it has no guidance, does not use.
RECIPE_SETS = frozenset({*LORAS[0].settings, "guidance_until", "guidance_rescale"})


def find_lora_recipes(loras: Iterable[str], family: str) -> tuple[Recipe, ...]:
    """Return the recipes of LoRAs with these names for models of a family, in the table's order.

    If several LoRAs have the same recipe, the first in alphabetical order is used.
    """
    names = sorted(loras)
    recipes: dict[str, Recipe] = {}
    for recipe in LORAS:
        lora = next(filter(recipe.matches, names), None)
        if recipe.family == family and lora is not None and recipe.name not in recipes:
            recipes[recipe.name] = replace(recipe, lora=lora)
    return tuple(recipes.values())
