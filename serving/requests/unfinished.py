"""Unfinished pictures of requests that were stopped, as their newest previews show them."""

import io
from dataclasses import asdict

from PIL import Image as Pillow

from pipeline.facts import Facts
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from pipeline.request import VALUES, effective
from pipeline.resolve import with_recipe
from pipeline.schedulers.config import DEFAULT_SIGMAS, SCHEDULERS
from pipeline.setting_kinds import parse_size
from serving.generator import Image, Request


def image_of(request: Request, index: int, preview: bytes, facts: Facts) -> Image:
    """Return an unfinished picture of a request, enlarged from its preview, with its settings."""
    settings = settings_of(request, index, facts)
    size = parse_size(request.enlarge) or request.size or facts.sizes[0]
    picture = Pillow.open(io.BytesIO(preview)).resize(size, Pillow.Resampling.LANCZOS)
    metadata.attach(picture, settings)
    return Image(index, metadata.to_png(picture), settings.seed, asdict(settings))


def settings_of(request: Request, index: int, facts: Facts) -> Settings:
    """Return the settings of an unfinished picture of a request."""
    facts = facts.for_known(request.model)
    if request.recipe in facts.recipe_names:  # its LoRA may be gone by now
        request = with_recipe(request, facts.recipes)
    values = request.of_picture(index) | _drawn_with(request, facts)
    effective_values = effective({setting.name: values[setting.name] for setting in VALUES})
    width, height = request.size or facts.sizes[0]
    return Settings(
        prompt=values["prompt"],
        negative_prompt=values["negative_prompt"] or "",
        **effective_values | {"model": request.model or facts.name},
        width=width,
        height=height,
        vae=facts.vae,
        unet=facts.unet,
        refiner=None if values["denoising_end"] == 1 else facts.refiner,
        quantization=facts.quantization,
    )


def _drawn_with(request: Request, facts: Facts) -> dict[str, str]:
    """Return the scheduler and the sigma schedule that draw a request, "" for the default one."""
    name = request.scheduler or facts.scheduler
    spaces_sigmas = name in SCHEDULERS and SCHEDULERS[name].sigma_schedules
    default_sigmas = facts.sigma_schedule if spaces_sigmas and not request.timesteps else ""
    sigmas = request.sigma_schedule or default_sigmas
    return {
        "scheduler": name if name in SCHEDULERS else "",
        "sigma_schedule": "" if sigmas == DEFAULT_SIGMAS else sigmas,
    }
