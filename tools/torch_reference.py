"""What torch's diffusers makes of a checkpoint, component by component, in this project's layout.

Everything goes in and comes out as float32 NumPy arrays, channels last, whatever torch has inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection


def prepare_for_tiny() -> None:
    """Quiet, and one thread: tiny networks gain nothing from more, and lose much on busy cores."""
    quiet()
    torch.set_num_threads(1)


def quiet() -> None:
    """Only errors, no progress bars."""
    import diffusers.utils.logging
    import transformers.utils.logging

    for logging in (diffusers.utils.logging, transformers.utils.logging):
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """`[B, H, W, C]` -> `[B, C, H, W]`."""
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """`[B, C, H, W]` -> `[B, H, W, C]`; other shapes stay as they are."""
    array = tensor.detach().float().numpy()
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


@dataclass(frozen=True)
class Sample:
    """One run of the whole pipeline: `[B, h, w, C]` and `[B, H, W, 3]` in 0..1."""

    latents: np.ndarray
    images: np.ndarray


@torch.no_grad()
def encode_text(pipe: StableDiffusionXLPipeline, prompts: Sequence[str]) -> dict[str, np.ndarray]:
    """Both tokenizers and text encoders.

    Returns `input_ids_1`, `input_ids_2` `[B, L]` int32, the penultimate hidden states
    `hidden_1`, `hidden_2` `[B, L, D]`, `pooled` `[B, P]` and `prompt_embeds` `[B, L, D1 + D2]`.
    """
    result: dict[str, np.ndarray] = {}
    for number, tokenizer, encoder in (
        (1, pipe.tokenizer, pipe.text_encoder),
        (2, pipe.tokenizer_2, pipe.text_encoder_2),
    ):
        ids = tokenizer(
            list(prompts),
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        ).input_ids
        result[f"input_ids_{number}"] = ids.numpy().astype(np.int32)
        result[f"hidden_{number}"], result["pooled"] = text_states(encoder, ids.numpy())
    embeds, _, pooled, _ = pipe.encode_prompt(list(prompts), do_classifier_free_guidance=False)
    result["prompt_embeds"] = to_numpy(embeds)
    assert np.array_equal(to_numpy(pooled), result["pooled"])
    return result


@torch.no_grad()
def text_states(
    encoder: CLIPTextModel | CLIPTextModelWithProjection, input_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`[B, L]` ids -> penultimate hidden states `[B, L, D]` and pooled `[B, P]`.

    Pooled means something for the second encoder only.
    """
    output = encoder(torch.from_numpy(input_ids), output_hidden_states=True)
    pooled = output.text_embeds if "text_embeds" in output else output.pooler_output
    return to_numpy(output.hidden_states[-2]), to_numpy(pooled)


@torch.no_grad()
def unet_forward(
    unet: UNet2DConditionModel,
    latents: np.ndarray,
    timesteps: np.ndarray,
    prompt_embeds: np.ndarray,
    pooled: np.ndarray,
    add_time_ids: np.ndarray,
) -> np.ndarray:
    """One forward pass: latents `[B, h, w, C]` -> prediction of the same shape."""
    output = unet(
        to_torch(latents),
        torch.from_numpy(timesteps),
        encoder_hidden_states=torch.from_numpy(prompt_embeds),
        added_cond_kwargs={
            "text_embeds": torch.from_numpy(pooled),
            "time_ids": torch.from_numpy(add_time_ids),
        },
    )
    return to_numpy(output.sample)


@torch.no_grad()
def vae_encode(vae: AutoencoderKL, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pictures `[B, H, W, 3]` in -1..1 -> mean and log variance, `[B, h, w, C]`."""
    distribution = vae.encode(to_torch(images)).latent_dist
    return to_numpy(distribution.mean), to_numpy(distribution.logvar)


@torch.no_grad()
def vae_decode(vae: AutoencoderKL, z: np.ndarray) -> np.ndarray:
    """The VAE's own latents `[B, h, w, C]` -> pictures `[B, H, W, 3]`."""
    return to_numpy(vae.decode(to_torch(z)).sample)


def schedule(pipe: StableDiffusionXLPipeline, steps: int) -> dict[str, np.ndarray]:
    """`timesteps` `[T]`, `sigmas` `[T + 1]` and `init_noise_sigma` `[]`, float32."""
    pipe.scheduler.set_timesteps(steps)
    return {
        "timesteps": pipe.scheduler.timesteps.numpy().astype(np.float32),
        "sigmas": pipe.scheduler.sigmas.numpy().astype(np.float32),
        "init_noise_sigma": np.float32(pipe.scheduler.init_noise_sigma),
    }


def sample(
    pipe: StableDiffusionXLPipeline,
    prompts: Sequence[str],
    negative_prompts: Sequence[str] | None,
    latents: np.ndarray,
    guidance_scale: float,
    steps: int = 25,
) -> Sample:
    """The pipeline from text and standard normal `latents` `[B, h, w, C]` to pictures."""
    height, width = (side * pipe.vae_scale_factor for side in latents.shape[1:3])
    last: list[torch.Tensor] = []

    def keep(_pipe: object, _step: int, _t: object, tensors: dict) -> dict:
        last[:] = [tensors["latents"]]
        return tensors

    images = pipe(
        prompt=list(prompts),
        negative_prompt=None if negative_prompts is None else list(negative_prompts),
        height=height,
        width=width,
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        latents=to_torch(latents),
        callback_on_step_end=keep,
        output_type="np",
    ).images
    return Sample(latents=to_numpy(last[0]), images=np.asarray(images, np.float32))
