"""From a checked request to a stage: all that needs no device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipeline.drawing.drawing import Job, Picture, Stage
from pipeline.drawing.origins import Origin
from pipeline.drawing.prompts import read_prompts
from pipeline.errors import InputError
from pipeline.facts import Facts
from pipeline.images.inputs import latent_mask, masked
from pipeline.request import FULL, TINY, Request, check_choice, check_faults
from pipeline.runtime.slots import ImageStart, Start
from pipeline.runtime.work import pack
from pipeline.schedulers.config import DEFAULT_SIGMAS, SchedulerConfig
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import Schedule
from pipeline.text.embeddings import Placement
from pipeline.text.tokenizer import Tokenizers

if TYPE_CHECKING:
    from pipeline.families.family import Config
    from pipeline.runtime.adapters import Adapters
    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.models import Model

OUTPUT_TYPES = ("pil", "np", "latent")


def check_output(
    request: Request, output_type: str, facts: Facts, has_refiner: bool = False
) -> None:
    """Raise InputError if a model cannot draw or decode a request's pictures as it asks."""
    check_choice("output_type", output_type, OUTPUT_TYPES)
    is_latent = output_type == "latent" and not request.enlarge
    check_faults(
        {
            "decoder is 'tiny', but the pipeline has no tiny VAE; pass tiny_vae to from_pretrained,"
            " or leave decoder out": request.decoder == TINY and facts.tiny_vae is None,
            f"denoising_end is {request.denoising_end}, but there is no refiner that goes on; leave"
            " it out, set output_type to 'latent', or pass refiner to from_pretrained": (
                request.ends_early and not has_refiner and not is_latent
            ),
            f"cache_interval is {request.cache_interval}, but the pipeline has no step cache; pass"
            " step_cache=True to from_pretrained, or leave cache_interval out": (
                request.cache_interval > 1 and not facts.step_cache
            ),
        }
    )


class Drawer(NamedTuple):
    """A model that draws in one size: its configuration, tokenizers, programs and parameters."""

    config: Config
    tokenizers: Tokenizers
    run: CompiledSampler
    adapters: Adapters
    model: Model


class Part(NamedTuple):
    """The part of a run that a model draws.

    Attributes:
        schedule: its schedule.
        whole: the number of steps of the whole run.
        skipped: the number of those that another model takes before.
    """

    schedule: Schedule
    whole: int
    skipped: int


@dataclass(frozen=True)
class StagePlan:
    """All that a stage is made of, beside the model that draws it.

    Attributes:
        request: the checked request.
        scheduler: the scheduler that draws it.
        parts: the stage's part of the run, and those of the models that go on.
        noise: `[images, h, w, C]` float32 standard normal noise in place of the seeds'; or None.
        origin: the pictures that it starts from; None if it has none.
        output_type: one of `OUTPUT_TYPES`.
        before: the number of steps that earlier stages take.
        then: see `Stage.then`.
        cancelled: stops the preparation once it is set.
    """

    request: Request
    scheduler: SchedulerConfig
    parts: Sequence[Part]
    noise: np.ndarray | None = None
    origin: Origin | None = None
    output_type: str = "pil"
    before: int = 0
    then: Callable[[Job, Picture], Job] | None = None
    cancelled: Event | None = None


def make_stage(plan: StagePlan, drawer: Drawer, placement: Placement) -> Stage:
    """Make a stage: read its prompts, and pack the work of each of its pictures.

    `placement` gets the embeddings that the prompts name.

    Raises:
        Cancelled: if `plan.cancelled` is set.
        InputError: if a prompt cannot be used.
    """
    request, origin, part = plan.request, plan.origin, plan.parts[0]
    config, tokenizers, run, adapters, model = drawer
    schedule, chunks = part.schedule, run.shapes.chunks
    prompts = read_prompts(request, part.whole, tokenizers, placement, chunks, plan.cancelled)
    blank_negative = prompts.blank & np.array([True, False])[:, None]
    start = Start(
        input_ids=prompts.input_ids,
        weights=prompts.weights,
        chunks=prompts.chunks,
        zeroed=blank_negative & config.force_zeros_for_empty_prompt,
        texts=prompts.texts,
        vectors=placement.vectors(),
        guidance_scale=request.guidance,
        init_noise_sigma=schedule.init_noise_sigma,
        seeds=np.array(request.seeds, np.uint32),
        variations=[(np.array(seeds, np.uint32), share) for seeds, share in request.variations],
        noise=plan.noise,
        origin=None if origin is None else _image_start(origin, config, schedule, request.share),
    )
    # A network that takes the guidance scale as an input has its guidance inside.
    guided_steps = (
        0
        if config.architecture.embeds_guidance
        else request.guided_steps(part.whole) - part.skipped
    )
    steps = min(max(guided_steps, 0), len(schedule.stops))
    evaluations = schedule.stops[steps - 1] if steps else 0
    scales = request.guidance, request.guidance_rescale
    return Stage(
        run=run,
        adapters=adapters,
        model=model,
        loras=request.lora_weights,
        schedule=schedule,
        start=start,
        work=[
            pack(schedule, *scales, evaluations, seed, request.cache_interval)
            for seed in request.seeds
        ],
        text_of_step=prompts.of_step[:, part.skipped :],
        placement=placement,
        output_type=plan.output_type,
        truncated=prompts.truncated,
        negative_truncated=prompts.negative_truncated,
        frames=() if origin is None else origin.frames,
        before=plan.before,
        then=plan.then,
    )


def plan_run(
    request: Request, scheduler: SchedulerConfig, start: float | None, has_refiner: bool
) -> StagePlan:
    """Return the plan of a run's first stage.

    Args:
        request: the checked request.
        scheduler: the scheduler that draws it.
        start: the share of the denoising that another model has done; None for none.
        has_refiner: whether a refiner draws what the model leaves. It is left out if one of the
            two would have no step.

    Raises:
        InputError: if no step is left.
    """
    part = partial(_part, request, scheduler)
    end = request.denoising_end if request.ends_early else None
    if end is None or not has_refiner:
        return StagePlan(request, scheduler, [part(start, end)])
    try:
        return StagePlan(request, scheduler, [part(start, end), part(end, None)])
    except InputError:
        whole_request = replace(request, denoising_end=1.0)
        return StagePlan(whole_request, scheduler, [part(start, None)])


def _part(
    request: Request, scheduler: SchedulerConfig, start: float | None, end: float | None
) -> Part:
    """Return the part of a run from one share of the denoising to another; None is its end."""
    schedule = make_schedule(
        scheduler,
        request.steps,
        strength=request.share,
        denoising_start=start,
        denoising_end=end,
    )
    whole_steps = int(request.steps * request.share)
    return Part(schedule, whole_steps, 0 if start is None else whole_steps - len(schedule.stops))


def _image_start(origin: Origin, config: Config, schedule: Schedule, strength: float) -> ImageStart:
    """Return what the slots take of the pictures that a request starts from."""
    images, height, width, _ = origin.images.shape
    masks = np.ones((images, height, width), np.float32) if origin.masks is None else origin.masks
    rows, _, _ = config.architecture.latents_shape(height, width)
    signal, deviation = map(float, schedule.noised[0])
    if origin.masks is not None and strength == 1:  # as in diffusers, nothing of the masked part
        signal, deviation = 0.0, schedule.init_noise_sigma
    return ImageStart(
        images=origin.images,
        masks=np.stack([latent_mask(mask, height // rows) for mask in masks]),
        hidden=masked(origin.images, masks) if config.takes_mask else None,
        coefficients=(signal, deviation),
    )


def as_drawn(request: Request, used: SchedulerConfig) -> Request:
    """Return a request as its pictures name it: with its scheduler, without names of defaults."""
    sigma_schedule = "" if used.sigma_schedule == DEFAULT_SIGMAS else used.sigma_schedule
    decoder = "" if request.decoder == FULL else request.decoder
    return replace(request, scheduler=used.name, sigma_schedule=sigma_schedule, decoder=decoder)
