"""Reference outputs of torch's diffusers for a checkpoint, component by component.

Inputs and outputs are float32 NumPy arrays, channels last, whatever torch has inside.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    SchedulerMixin,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from diffusers.schedulers import scheduling_euler_ancestral_discrete as euler_ancestral
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPTextModel, CLIPTextModelWithProjection

from pipeline.runtime.sampler import step_noise

Pipeline = StableDiffusionPipeline | StableDiffusionXLPipeline


def prepare_for_tiny() -> None:
    """Silence the libraries and use one thread.

    Tiny networks gain nothing from more threads, and lose much on busy cores.
    """
    quiet()
    torch.set_num_threads(1)


def quiet() -> None:
    """Let diffusers and transformers log only errors, without progress bars."""
    import diffusers.utils.logging
    import transformers.utils.logging

    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Convert `[B, H, W, C]` to `[B, C, H, W]`."""
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Convert `[B, C, H, W]` to `[B, H, W, C]`; other shapes stay as they are."""
    array = tensor.detach().float().numpy()
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


@dataclass(frozen=True)
class Sample:
    """A run of the whole pipeline: latents `[B, h, w, C]` and images `[B, H, W, 3]` in 0..1."""

    latents: np.ndarray
    images: np.ndarray


@torch.no_grad()
def encode_text(pipe: Pipeline, prompts: Sequence[str]) -> dict[str, np.ndarray]:
    """Run all tokenizers and text encoders.

    Returns:
        `input_ids_1` `[B, L]` int32, the hidden states `hidden_1` `[B, L, D]` and `prompt_embeds`
        `[B, L, D]`; with SDXL also `input_ids_2`, `hidden_2` and `pooled` `[B, P]`.
    """
    result: dict[str, np.ndarray] = {}
    xl = isinstance(pipe, StableDiffusionXLPipeline)
    both = [(1, pipe.tokenizer, pipe.text_encoder)]
    both += [(2, pipe.tokenizer_2, pipe.text_encoder_2)] if xl else []
    for number, tokenizer, encoder in both:
        ids = tokenizer(
            list(prompts),
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        result[f"input_ids_{number}"] = ids.numpy().astype(np.int32)
        result[f"hidden_{number}"], pooled = text_states(encoder, ids.numpy(), penultimate=xl)
    if not xl:
        embeds, _ = pipe.encode_prompt(list(prompts), "cpu", 1, False)
        return result | {"prompt_embeds": to_numpy(embeds)}
    embeds, _, right, _ = pipe.encode_prompt(list(prompts), do_classifier_free_guidance=False)
    assert np.array_equal(to_numpy(right), pooled)
    return result | {"pooled": pooled, "prompt_embeds": to_numpy(embeds)}


@torch.no_grad()
def text_states(
    encoder: CLIPTextModel | CLIPTextModelWithProjection,
    input_ids: np.ndarray,
    *,
    penultimate: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return penultimate or last hidden states `[B, L, D]` and pooled `[B, P]`, for `[B, L]` ids.

    Only SDXL's second encoder has a meaningful pooled output.
    """
    output = encoder(torch.from_numpy(input_ids), output_hidden_states=True)
    pooled = output.text_embeds if "text_embeds" in output else output.pooler_output
    states = output.hidden_states[-2] if penultimate else output.last_hidden_state
    return to_numpy(states), to_numpy(pooled)


def get_token_embeddings(pipe: Pipeline) -> np.ndarray:
    """Return a copy of the token embeddings of all text encoders, one after the other, flat."""
    return np.concatenate([weight.numpy().ravel() for weight in _token_embeddings(pipe)])


@contextmanager
def token_embeddings(pipe: Pipeline, flat: np.ndarray) -> Iterator[None]:
    """Give the text encoders other token embeddings, laid out as by `get_token_embeddings`."""
    weights = _token_embeddings(pipe)
    kept = [weight.clone() for weight in weights]
    ends = np.cumsum([weight.numel() for weight in weights])[:-1]
    for weight, values in zip(weights, np.split(flat, ends), strict=True):
        weight.copy_(torch.from_numpy(values).view_as(weight))
    try:
        yield
    finally:
        for weight, values in zip(weights, kept, strict=True):
            weight.copy_(values)


def _token_embeddings(pipe: Pipeline) -> list[torch.Tensor]:
    encoders = [pipe.text_encoder, getattr(pipe, "text_encoder_2", None)]
    return [each.get_input_embeddings().weight.detach() for each in encoders if each is not None]


@torch.no_grad()
def unet_forward(
    unet: UNet2DConditionModel,
    latents: np.ndarray,
    timesteps: np.ndarray,
    prompt_embeds: np.ndarray,
    pooled: np.ndarray | None = None,
    add_time_ids: np.ndarray | None = None,
) -> np.ndarray:
    """Run one forward pass: latents `[B, h, w, C]` to a prediction of the same shape."""
    added = {"text_embeds": pooled, "time_ids": add_time_ids}
    output = unet(
        to_torch(latents),
        torch.from_numpy(timesteps),
        encoder_hidden_states=torch.from_numpy(prompt_embeds),
        added_cond_kwargs={
            key: torch.from_numpy(value) for key, value in added.items() if value is not None
        },
    )
    return to_numpy(output.sample)


@torch.no_grad()
def vae_encode(vae: AutoencoderKL, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode pictures `[B, H, W, 3]` in -1..1; return mean and log variance `[B, h, w, C]`."""
    distribution = vae.encode(to_torch(images)).latent_dist
    return to_numpy(distribution.mean), to_numpy(distribution.logvar)


@torch.no_grad()
def vae_decode(vae: AutoencoderKL, z: np.ndarray) -> np.ndarray:
    """Decode the VAE's own latents `[B, h, w, C]`; return pictures `[B, H, W, 3]`."""
    return to_numpy(vae.decode(to_torch(z)).sample)


@torch.no_grad()
def safety_embeds(
    checker: StableDiffusionSafetyChecker, processor: CLIPImageProcessorPil, images: np.ndarray
) -> np.ndarray:
    """Return the embeddings that a safety checker compares with its concepts.

    `[B, H, W, 3]` uint8 to `[B, P]`.
    """
    pooled = checker.vision_model(_prepared(processor, images))[1]
    return to_numpy(checker.visual_projection(pooled))


@torch.no_grad()
def safety_verdicts(
    checker: StableDiffusionSafetyChecker, processor: CLIPImageProcessorPil, images: np.ndarray
) -> np.ndarray:
    """Return which pictures `[B, H, W, 3]` uint8 are flagged: `[B]` bool."""
    _, flagged = checker(clip_input=_prepared(processor, images), images=list(images))
    return np.array(flagged)


def _prepared(processor: CLIPImageProcessorPil, images: np.ndarray) -> torch.Tensor:
    """Preprocess pictures `[B, H, W, 3]` uint8 for a safety checker, as torch's pipelines do."""
    pictures = [Image.fromarray(image) for image in images]
    return processor(pictures, return_tensors="pt").pixel_values


@torch.no_grad()
def set_thresholds(
    checker: StableDiffusionSafetyChecker, concepts: np.ndarray, special_care: np.ndarray
) -> None:
    """Replace a safety checker's thresholds, `[17]` and `[3]`."""
    checker.concept_embeds_weights.copy_(torch.from_numpy(concepts))
    checker.special_care_embeds_weights.copy_(torch.from_numpy(special_care))


def schedule(pipe: Pipeline, steps: int) -> dict[str, np.ndarray]:
    """Return `timesteps` `[T]`, `init_noise_sigma` `[]` and, if any, `sigmas` `[T + 1]`."""
    pipe.scheduler.set_timesteps(steps)
    values = {"timesteps": pipe.scheduler.timesteps.numpy().astype(np.float32)}
    if hasattr(pipe.scheduler, "sigmas"):
        values["sigmas"] = pipe.scheduler.sigmas.numpy().astype(np.float32)
    return values | {"init_noise_sigma": np.float32(pipe.scheduler.init_noise_sigma)}


@contextmanager
def _our_step_noise(seeds: Sequence[int], shape: tuple[int, ...]) -> Iterator[None]:
    """Give the ancestral scheduler the noise that this project draws from the pictures' seeds."""
    numbers, original = itertools.count(), euler_ancestral.randn_tensor

    def draw(*_: object, **__: object) -> torch.Tensor:
        noise = step_noise(jnp.array(seeds, jnp.uint32), next(numbers), shape)
        return to_torch(np.asarray(noise))

    euler_ancestral.randn_tensor = draw
    try:
        yield
    finally:
        euler_ancestral.randn_tensor = original


def scheduler_steps(
    scheduler: SchedulerMixin, latents: np.ndarray, predictions: np.ndarray
) -> np.ndarray:
    """Return the latents before the first step and after each one, `[N + 1, B, h, w, C]`.

    Args:
        scheduler: one whose steps take one evaluation of the network each.
        latents: standard normal noise `[B, h, w, C]`; `predictions` `[N, B, h, w, C]` stand for the
            network's. Noise that the scheduler adds is drawn from the seeds 0, 1, ...
    """
    scheduler.set_timesteps(len(predictions))
    state = to_torch(latents) * scheduler.init_noise_sigma
    states = [state]
    with _our_step_noise(range(len(latents)), latents.shape[1:]):
        for t, prediction in zip(scheduler.timesteps, predictions, strict=True):
            scheduler.scale_model_input(state, t)
            state = scheduler.step(to_torch(prediction), t, state).prev_sample
            states.append(state)
    return np.stack([to_numpy(state) for state in states])


def sample(
    pipe: Pipeline,
    prompts: Sequence[str],
    negative_prompts: Sequence[str] | None,
    latents: np.ndarray,
    guidance_scale: float,
    steps: int = 25,
    guidance_rescale: float = 0.0,
) -> Sample:
    """Run the pipeline from text and standard normal `latents` `[B, h, w, C]` to pictures.

    Noise that a scheduler adds on the way is drawn from the seeds 0, 1, ...
    """
    height, width = (side * pipe.vae_scale_factor for side in latents.shape[1:3])
    last: list[torch.Tensor] = []

    def keep(_pipe: object, _step: int, _t: object, tensors: dict) -> dict:
        last[:] = [tensors["latents"]]
        return tensors

    with _our_step_noise(range(len(latents)), latents.shape[1:]):
        images = pipe(
            prompt=list(prompts),
            negative_prompt=None if negative_prompts is None else list(negative_prompts),
            height=height,
            width=width,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            guidance_rescale=guidance_rescale,
            latents=to_torch(latents),
            callback_on_step_end=keep,
            output_type="np",
        ).images
    return Sample(latents=to_numpy(last[0]), images=np.asarray(images, np.float32))
