"""Descriptions of a pipeline's models and of its pictures."""

import jax

from pipeline.checkpoints.checkpoint import Checkpoint
from pipeline.facts import OF_MODEL, Facts, ModelFacts
from pipeline.families.family import Config
from pipeline.images import metadata
from pipeline.request import GUIDANCE_SCALE, NUM_INFERENCE_STEPS, Request, effective
from pipeline.runtime.compiled import CompiledSampler
from pipeline.schedulers.config import SCHEDULERS


def facts_of(name: str, checkpoint: Checkpoint[Config], steps: int | None) -> ModelFacts:
    """Return the description of a model, under its name in requests."""
    config, recipe, timesteps = checkpoint.config, checkpoint.config.recipe, ""
    scheduler, replacements = config.scheduler, checkpoint.replacements
    defaults = {"num_inference_steps": NUM_INFERENCE_STEPS, "guidance_scale": GUIDANCE_SCALE}
    if recipe is not None:
        defaults = {field: recipe.settings[field] for field in defaults}
        if recipe.scheduler == scheduler.name:
            timesteps = recipe.settings["timesteps"]
    if steps is not None:
        defaults["num_inference_steps"] = steps
    return ModelFacts(
        name=name,
        revision=checkpoint.revision,
        unet=replacements["unet"].name if "unet" in replacements else None,
        prediction_type=scheduler.prediction_type,
        scheduler=scheduler.name,
        sigma_schedule=scheduler.sigma_schedule,
        schedulers=tuple(key for key in SCHEDULERS if key in config.schedulers.configs),
        refused_schedulers=tuple(config.schedulers.refused.items()),
        num_train_timesteps=scheduler.num_train_timesteps,
        **defaults,
        distilled=recipe is not None,
        timesteps=timesteps,
        words=checkpoint.words,
    )


def read_facts(
    model_facts: ModelFacts,
    checkpoint: Checkpoint[Config],
    compiled: CompiledSampler,
    screened: bool,
    refiner: str | None,
) -> Facts:
    """Return the facts about a checkpoint that do not change.

    `refiner` is the name of its refiner.
    """
    config, shapes, devices = checkpoint.config, compiled.shapes, compiled.mesh.devices
    replacements = {name: component.name for name, component in checkpoint.replacements.items()}
    quantization = compiled.target.quantization
    version = f"jax {jax.__version__}", compiled.target.dtype.name, quantization
    return Facts(
        **{name: getattr(model_facts, name) for name in OF_MODEL},
        vae=replacements.get("vae"),
        tiny_vae=replacements.get("tiny_vae"),
        refiner=refiner,
        step_cache=compiled.target.step_cache,
        quantization=quantization,
        family=config.family.name,
        safety_checker=config.safety_checker is not None,
        screened=screened,
        needs_mask=config.takes_mask,
        needs_image=config.architecture.needs_image,
        sigma_schedules=config.schedulers.sigma_schedules,
        version=", ".join(filter(None, version)),
        height=shapes.height,
        width=shapes.width,
        images_per_request=shapes.images,
        device=devices.flat[0].device_kind,
        num_devices=devices.size,
    )


def settings_of(facts: Facts, request: Request, i: int, size: tuple[int, int]) -> metadata.Settings:
    """Return the settings of picture i of a request.

    `size` is the width and height of the first run.
    """
    is_own_model = not request.model
    settings = {**effective(request.of_picture(i)), "model": request.model or facts.name}
    return metadata.Settings(
        **settings,
        width=size[0],
        height=size[1],
        revision=facts.revision if is_own_model else None,
        vae=facts.vae,
        unet=facts.unet if is_own_model else None,
        refiner=facts.refiner if request.ends_early else None,
        quantization=facts.quantization,
    )
