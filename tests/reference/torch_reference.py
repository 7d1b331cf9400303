"""Reference outputs of torch's diffusers for a checkpoint, component by component.

Inputs and outputs are float32 NumPy arrays, channels last, whatever torch has inside.
"""

import importlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import diffusers
import jax.numpy as jnp
import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderTiny,
    AutoPipelineForImage2Image,
    AutoPipelineForInpainting,
    SchedulerMixin,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    TCDScheduler,
    UNet2DConditionModel,
)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.stable_diffusion import StableDiffusionSafetyChecker
from diffusers.schedulers import (
    scheduling_ddim,
    scheduling_ddpm,
    scheduling_dpmsolver_multistep,
    scheduling_dpmsolver_sde,
    scheduling_euler_ancestral_discrete,
    scheduling_lcm,
    scheduling_tcd,
)
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPTextModel, CLIPTextModelWithProjection

from pipeline.runtime.sampler import step_noise
from pipeline.schedulers.config import SCHEDULERS, SIGMA_KEYS
from tests.scheduler_cases import Case, config_of

# Modules of the schedulers that add noise in their steps.
NOISY_MODULES = (
    scheduling_euler_ancestral_discrete,
    scheduling_ddim,
    scheduling_ddpm,
    scheduling_dpmsolver_multistep,
    scheduling_lcm,
    scheduling_tcd,
)

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


def tokenize(pipe: Pipeline, prompts: Sequence[str]) -> list[np.ndarray]:
    """Return each tokenizer's ids `[B, L]` int64."""
    xl = isinstance(pipe, StableDiffusionXLPipeline)
    return [
        tokenizer(
            list(prompts),
            padding="max_length",
            max_length=tokenizer.model_max_length,
            truncation=True,
            return_tensors="np",
        ).input_ids
        for tokenizer in ([pipe.tokenizer, pipe.tokenizer_2] if xl else [pipe.tokenizer])
    ]


@torch.no_grad()
def encode_text(pipe: Pipeline, prompts: Sequence[str]) -> dict[str, np.ndarray]:
    """Run all tokenizers and text encoders.

    Returns:
        `input_ids_1` `[B, L]` int32, the hidden states `hidden_1` `[B, L, D]` and `prompt_embeds`
        `[B, L, D]`; with SDXL also `input_ids_2`, `hidden_2` and `pooled` `[B, P]`.
    """
    result: dict[str, np.ndarray] = {}
    xl = isinstance(pipe, StableDiffusionXLPipeline)
    encoders = [pipe.text_encoder, pipe.text_encoder_2] if xl else [pipe.text_encoder]
    for number, (encoder, ids) in enumerate(zip(encoders, tokenize(pipe, prompts), strict=True), 1):
        result[f"input_ids_{number}"] = ids.astype(np.int32)
        result[f"hidden_{number}"], pooled = text_states(encoder, ids, penultimate=xl)
    if not xl:
        embeds, _ = pipe.encode_prompt(list(prompts), "cpu", 1, False)
        return result | {"prompt_embeds": to_numpy(embeds)}
    embeds, _, expected, _ = pipe.encode_prompt(list(prompts), do_classifier_free_guidance=False)
    assert np.array_equal(to_numpy(expected), pooled)
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
    originals = [weight.clone() for weight in weights]
    ends = np.cumsum([weight.numel() for weight in weights])[:-1]
    for weight, values in zip(weights, np.split(flat, ends), strict=True):
        weight.copy_(torch.from_numpy(values).view_as(weight))
    try:
        yield
    finally:
        for weight, values in zip(weights, originals, strict=True):
            weight.copy_(values)


def _token_embeddings(pipe: Pipeline) -> list[torch.Tensor]:
    encoders = [pipe.text_encoder, getattr(pipe, "text_encoder_2", None)]
    return [
        encoder.get_input_embeddings().weight.detach()
        for encoder in encoders
        if encoder is not None
    ]


@torch.no_grad()
def unet_forward(
    unet: UNet2DConditionModel,
    latents: np.ndarray,
    timesteps: np.ndarray,
    prompt_embeds: np.ndarray,
    pooled: np.ndarray | None = None,
    add_time_ids: np.ndarray | None = None,
    guidance_scale: np.ndarray | None = None,
) -> np.ndarray:
    """Run one forward pass: latents `[B, h, w, C]` to a prediction of the same shape.

    `guidance_scale` `[B]` is for UNets that take it.
    """
    conditions = {"text_embeds": pooled, "time_ids": add_time_ids}
    output = unet(
        to_torch(latents),
        torch.from_numpy(timesteps),
        encoder_hidden_states=torch.from_numpy(prompt_embeds),
        timestep_cond=None if guidance_scale is None else _guidance(unet, guidance_scale),
        added_cond_kwargs={
            key: torch.from_numpy(value) for key, value in conditions.items() if value is not None
        },
    )
    return to_numpy(output.sample)


def _guidance(unet: UNet2DConditionModel, scales: np.ndarray) -> torch.Tensor:
    embed = StableDiffusionPipeline.get_guidance_scale_embedding  # it does not use the pipeline
    return embed(None, torch.from_numpy(scales) - 1, unet.config.time_cond_proj_dim)


@torch.no_grad()
def vae_encode(vae: AutoencoderKL, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode pictures `[B, H, W, 3]` in -1..1; return mean and log variance `[B, h, w, C]`."""
    distribution = vae.encode(to_torch(images)).latent_dist
    return to_numpy(distribution.mean), to_numpy(distribution.logvar)


@torch.no_grad()
def vae_decode(vae: AutoencoderKL | AutoencoderTiny, z: np.ndarray) -> np.ndarray:
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
    _, verdicts = checker(clip_input=_prepared(processor, images), images=list(images))
    return np.array(verdicts)


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
def _our_step_noise(
    seeds: Sequence[int], shape: tuple[int, ...], first_evaluation: int = 0
) -> Iterator[None]:
    """Give diffusers' schedulers the noise that this project draws from the pictures' seeds.

    `first_evaluation` is the number of the first evaluation.
    """

    def noise(number: int) -> torch.Tensor:
        array = step_noise(jnp.array(seeds, jnp.uint32), first_evaluation + number, shape)
        return to_torch(np.asarray(array))

    numbers = itertools.count()
    with ExitStack() as patches:
        for module in NOISY_MODULES:
            patches.enter_context(
                patch.object(module, "randn_tensor", lambda *_, **__: noise(next(numbers)))
            )
        sampler = partial(_BrownianMotion, noise)
        patches.enter_context(
            patch.object(scheduling_dpmsolver_sde, "BrownianTreeNoiseSampler", sampler)
        )
        yield


class _BrownianMotion:
    """A replacement of diffusers' sampler of increments, over given normal noise.

    It is called twice a step: from its start to its middle, then from its start to its end. The
    second increment is the first one and an independent one from the middle to the end.
    """

    def __init__(self, noise: Callable[[int], torch.Tensor], *_: object) -> None:
        self._noise = noise
        self._numbers = itertools.count()

    def __call__(self, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        number = next(self._numbers)
        if number % 2 == 0:
            return self._noise(number)
        middle = torch.sqrt(start * end)
        first_increment, second_increment = self._noise(number - 1), self._noise(number)
        total = first_increment * torch.sqrt(start - middle) + second_increment * torch.sqrt(
            middle - end
        )
        return total / torch.sqrt(start - end)


def make_scheduler(case: Case) -> SchedulerMixin:
    """Return diffusers' scheduler of a case, with its timesteps set."""
    config, definition = config_of(case), SCHEDULERS[case["name"]]
    settings = asdict(config)
    timesteps, betas = settings.pop("timesteps"), settings.pop("training")
    settings["rescale_betas_zero_snr"] = betas.pop("zero_snr")
    settings |= {f"beta_{name}": value for name, value in betas.items()}
    settings |= {key: value == config.sigma_schedule for key, value in SIGMA_KEYS.items()}
    supported_settings = {key: values[0] for key, values in definition.supported.items()}
    cls = getattr(diffusers, definition.name)
    scheduler = cls.from_config({**settings, **supported_settings})
    if timesteps is None:
        scheduler.set_timesteps(case["steps"])
    else:
        scheduler.set_timesteps(timesteps=list(timesteps))
    return scheduler


def part_timesteps(scheduler: SchedulerMixin, case: Case) -> torch.Tensor:
    """Return the timesteps `[N]` of a case's part of a run, and let the scheduler begin there."""
    timesteps = scheduler.timesteps
    if "strength" in case or "denoising_start" in case:
        timesteps, _ = StableDiffusionXLImg2ImgPipeline.get_timesteps(
            SimpleNamespace(scheduler=scheduler),  # it uses nothing else of the pipeline
            case["steps"],
            case.get("strength"),
            "cpu",
            case.get("denoising_start"),
        )
    if "denoising_end" in case:  # as in the pipelines' `__call__`
        num_train_timesteps = scheduler.config.num_train_timesteps
        timesteps = timesteps[
            timesteps >= round(num_train_timesteps - case["denoising_end"] * num_train_timesteps)
        ]
    return timesteps


class Steps(NamedTuple):
    """The latents of a run, `[N + 1, B, h, w, C]` before the first evaluation and after each one.

    `noised` is the picture with as much noise as the latents before each evaluation have.
    """

    latents: np.ndarray
    noised: np.ndarray


def scheduler_steps(
    scheduler: SchedulerMixin,
    timesteps: torch.Tensor,
    latents: np.ndarray,
    predictions: np.ndarray,
    x0: np.ndarray | None = None,
    **options: Any,
) -> Steps:
    """Return the latents and the noised picture in a run or in a part of it.

    Args:
        scheduler: the scheduler, whose timesteps are set.
        timesteps: those of the run, from `part_timesteps`.
        latents: standard normal noise `[B, h, w, C]`. Noise that the scheduler adds is drawn from
            the seeds 0, 1, ...
        predictions: at least `N` arrays `[B, h, w, C]` that stand for the network's predictions.
        x0: a picture's latents `[B, h, w, C]`, with which the run begins; None for a run that
            begins with noise alone, and has no noised picture.
        options: further arguments of the scheduler's `step`.
    """
    noise, noised_latents = to_torch(latents), []

    def add_noise(t: torch.Tensor) -> torch.Tensor:
        assert x0 is not None
        noised_latents.append(scheduler.add_noise(to_torch(x0), noise, t.reshape(1)))
        return noised_latents[-1]

    state = noise * scheduler.init_noise_sigma if x0 is None else add_noise(timesteps[0])
    states = [state]
    with _our_step_noise(range(len(latents)), latents.shape[1:]):
        for i, prediction in enumerate(predictions[: len(timesteps)]):
            scheduler.scale_model_input(state, timesteps[i])
            state = scheduler.step(to_torch(prediction), timesteps[i], state, **options).prev_sample
            states.append(state)
            if x0 is not None and i + 1 < len(timesteps):
                add_noise(timesteps[i + 1])
    arrays = ([to_numpy(tensor) for tensor in tensors] for tensors in (states, noised_latents))
    return Steps(*(np.array(array) for array in arrays))


def sample(
    pipe: Pipeline,
    prompts: Sequence[str],
    negative_prompts: Sequence[str] | None,
    latents: np.ndarray,
    guidance_scale: float,
    steps: int = 25,
    guidance_rescale: float = 0.0,
    denoising_end: float | None = None,
) -> Sample:
    """Run the pipeline from text and standard normal `latents` `[B, h, w, C]` to pictures.

    Noise that a scheduler adds on the way is drawn from the seeds 0, 1, ...; the run ends after
    `denoising_end`, a share of the denoising.
    """
    ending = {} if denoising_end is None else {"denoising_end": denoising_end}
    height, width = (side * pipe.vae_scale_factor for side in latents.shape[1:3])

    def first_of(timestep: torch.Tensor, *_: object) -> int:
        return int((pipe.scheduler.timesteps == timestep).nonzero()[0])

    # diffusers starts at the second of two equal first timesteps, and lacks one at the end.
    with patch.object(pipe.scheduler, "index_for_timestep", first_of, create=True):
        return _run(
            pipe,
            latents.shape,
            prompt=list(prompts),
            negative_prompt=None if negative_prompts is None else list(negative_prompts),
            height=height,
            width=width,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            guidance_rescale=guidance_rescale,
            latents=to_torch(latents),
            **ending,
        )


def sample_from_picture(
    pipe: Pipeline,
    prompts: Sequence[str],
    negative_prompts: Sequence[str],
    noise: np.ndarray,
    guidance_scale: float,
    steps: int,
    images: np.ndarray,
    mask: np.ndarray | None = None,
    first_evaluation: int = 0,
    **options: Any,
) -> Sample:
    """Run the pipeline for pictures, or that for inpainting, on the networks of `pipe`.

    Noise that a scheduler adds on the way is drawn from the seeds 0, 1, ...

    Args:
        pipe: a pipeline from text, or the refiner's.
        prompts, negative_prompts: one for each picture.
        noise: standard normal noise `[B, h, w, C]`.
        guidance_scale: above 1.
        steps: of a whole run.
        images: pictures `[B, H, W, 3]` in 0..1, whose latents are the mean; or latents
            `[B, h, w, C]`, if `denoising_start` is among the options.
        mask: `[B, H, W]`, 1 where the pictures are redrawn; None for no inpainting.
        first_evaluation: the number of evaluations that another model made before, with noise.
        options: further arguments of the pipeline, such as `strength`.
    """
    kind = AutoPipelineForImage2Image if mask is None else AutoPipelineForInpainting
    is_refiner = isinstance(pipe, StableDiffusionXLImg2ImgPipeline)
    picture_pipe = pipe if is_refiner and mask is None else kind.from_pipe(pipe)
    picture_pipe.set_progress_bar_config(disable=True)
    if mask is not None:
        options["mask_image"] = [
            Image.fromarray(np.uint8(255 * picture_mask)) for picture_mask in mask
        ]
    image = images if images.shape[-1] == 3 else to_torch(images)
    module = importlib.import_module(type(picture_pipe).__module__)
    with (
        patch.object(module, "randn_tensor", lambda *_, **__: to_torch(noise)),
        patch.object(DiagonalGaussianDistribution, "sample", lambda self, *_, **__: self.mean),
    ):
        return _run(
            picture_pipe,
            noise.shape,
            first_evaluation,
            prompt=list(prompts),
            negative_prompt=list(negative_prompts),
            image=image,
            num_inference_steps=steps,
            guidance_scale=guidance_scale,
            **options,
        )


def _run(pipe: Any, shape: Sequence[int], first_evaluation: int = 0, **arguments: Any) -> Sample:
    """Run a pipeline whose latents have this shape, `[B, h, w, C]`.

    `first_evaluation` is the number of the first evaluation, for the noise that it adds.
    """
    final_latents: list[torch.Tensor] = []

    def keep(_pipe: object, _step: int, _t: object, tensors: dict) -> dict:
        final_latents[:] = [tensors["latents"]]
        return tensors

    count, *sizes = shape
    with _our_step_noise(range(count), tuple(sizes), first_evaluation):
        images = pipe(
            # The pipelines' own default is 0, whatever the scheduler's is.
            eta=SCHEDULERS["tcd"].eta if isinstance(pipe.scheduler, TCDScheduler) else 0.0,
            callback_on_step_end=keep,
            output_type="np",
            **arguments,
        ).images
    return Sample(latents=to_numpy(final_latents[0]), images=np.asarray(images, np.float32))
