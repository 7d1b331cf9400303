"""Description of the model that a pipeline in this process draws with."""

from pipeline import SDXLPipeline
from serving.generator import Model


def describe(pipe: SDXLPipeline, bundled: bool) -> Model:
    """Return the description; `bundled` says whether the model is the miniature."""
    return Model(
        name=pipe.model,
        revision=pipe.revision,
        bundled=bundled,
        device=pipe.device_kind,
        num_devices=pipe.num_devices,
        height=pipe.height,
        width=pipe.width,
        images_per_request=pipe.images_per_request,
        num_inference_steps=pipe.num_inference_steps,
        guidance_scale=pipe.guidance_scale,
        distilled=pipe.recipe is not None,
        vae=pipe.vae,
        unet=pipe.unet,
        max_inference_steps=pipe.max_inference_steps,
        family=pipe.family,
        safety_checker=pipe.safety_checker,
        scheduler=pipe.scheduler,
        version=pipe.version,
        screened=pipe.screened,
        sigma_schedule=pipe.sigma_schedule,
        schedulers=pipe.schedulers,
        sigma_schedules=pipe.sigma_schedules,
        refused_schedulers=tuple(pipe.refused_schedulers.items()),
        num_train_timesteps=pipe.num_train_timesteps,
        tiny_vae=pipe.tiny_vae,
        takes_image=True,
        needs_mask=pipe.needs_mask,
        needs_image=pipe.needs_image,
        refiner=pipe.refiner,
        step_cache=pipe.step_cache,
        quantization=pipe.quantization,
    )
