"""From a checked request to a drawing: all that needs no device."""

from dataclasses import replace
from functools import partial
from threading import Event
from typing import NamedTuple

import numpy as np

from pipeline.drawing.drawing import Drawing
from pipeline.drawing.origins import Inputs, Origin
from pipeline.drawing.prompts import read_prompts
from pipeline.errors import InputError
from pipeline.families.family import Config
from pipeline.images.inputs import latent_mask, masked
from pipeline.request import FULL, TINY, Request, checked_latents
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.slots import ImageStart, Start
from pipeline.schedulers.config import DEFAULT_SIGMAS, SchedulerConfig
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import Schedule
from pipeline.text.embeddings import Placement
from pipeline.text.tokenizer import Tokenizers

OUTPUT_TYPES = ("pil", "np", "latent")


def check_output(
    request: Request, output_type: str, has_tiny_vae: bool, has_refiner: bool = False
) -> None:
    """Raise InputError if a request's pictures cannot be decoded as it asks."""
    if request.decoder == TINY and not has_tiny_vae:
        raise InputError(
            "decoder is 'tiny', but the pipeline has no tiny VAE; pass tiny_vae to"
            " from_pretrained, or leave decoder out"
        )
    if output_type not in OUTPUT_TYPES:
        raise InputError(f"output_type is {output_type!r}; expected one of {OUTPUT_TYPES}")
    if request.ends_early and output_type != "latent" and not has_refiner:
        raise InputError(
            f"denoising_end is {request.denoising_end}, but there is no refiner that goes on; leave"
            " it out, set output_type to 'latent', or pass refiner to from_pretrained"
        )


def check_latents(inputs: Inputs) -> None:
    """Raise InputError unless there are latents of which a share of the denoising is done."""
    denoising_start = inputs.denoising_start
    if denoising_start is None:
        return
    is_number = isinstance(denoising_start, int | float) and not isinstance(denoising_start, bool)
    if not is_number or not 0 <= denoising_start < 1:
        raise InputError(
            f"denoising_start is {denoising_start!r}; expected a number from 0 to below 1"
        )
    if inputs.latents is None:
        raise InputError("denoising_start is given without latents; pass latents too")


def check_cache(request: Request, step_cache: bool) -> None:
    """Raise InputError if a request needs step caching and the pipeline has none."""
    if request.cache_interval > 1 and not step_cache:
        raise InputError(
            f"cache_interval is {request.cache_interval}, but the pipeline has no step cache; pass"
            " step_cache=True to from_pretrained, or leave cache_interval out"
        )


class Drawer(NamedTuple):
    """A model that draws in one size: its configuration, tokenizers and programs."""

    config: Config
    tokenizers: Tokenizers
    run: CompiledSampler


def make_drawing(
    request: Request,
    drawer: Drawer,
    scheduler: SchedulerConfig,
    placement: Placement,
    inputs: Inputs,
    origin: Origin | None,
    output_type: str,
    cancelled: Event | None,
) -> Drawing:
    """Return the drawing of a request.

    Args:
        request: the checked request.
        drawer: the model.
        scheduler: the scheduler that draws it.
        placement: the embeddings that its prompts may name; it notes those that they do.
        inputs: the latents, `[images, h, w, C]` float32, that it starts from or goes on from.
        origin: the pictures that it starts from; None if it has none.
        output_type: one of `OUTPUT_TYPES`.
        cancelled: stops the drawing once it is set.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if the latents cannot be used, or no step is left.
    """
    config, tokenizers, run = drawer
    latents, denoising_start = inputs.latents, inputs.denoising_start
    goes_on = denoising_start is not None
    if latents is not None:
        if request.variation_strength > 0 and not goes_on:
            raise InputError("pass either latents or variation_strength, not both")
        latents = checked_latents(latents, (request.images, *run.latents_shape))
    part = part_of(scheduler, request, denoising_start)
    schedule = part.schedule
    prompts = read_prompts(request, part.whole, tokenizers, placement, run.shapes.chunks, cancelled)
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
        variations=[(np.array(each, np.uint32), share) for each, share in request.variations],
        noise=None if goes_on else latents,
        origin=None if origin is None else _image_start(origin, config, schedule, request.share),
        latents=latents if goes_on else None,
    )
    # A network that takes the guidance scale as an input has its guidance inside.
    guided = 0 if config.embeds_guidance else request.guided_steps(part.whole) - part.skipped
    steps = min(max(guided, 0), len(schedule.stops))
    return Drawing(
        request=request,
        named=_as_drawn(request, scheduler),
        run=run,
        schedule=schedule,
        start=start,
        text_of_step=prompts.of_step[:, part.skipped :],
        guided=schedule.stops[steps - 1] if steps else 0,
        placement=placement,
        output_type=output_type,
        truncated=prompts.truncated,
        negative_truncated=prompts.negative_truncated,
        frames=() if origin is None else origin.frames,
        cancelled=Event() if cancelled is None else cancelled,
        skipped=part.skipped,
    )


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


def part_of(scheduler: SchedulerConfig, request: Request, start: float | None) -> Part:
    """Return the part of a request's run that begins after a share of the denoising.

    Raises:
        InputError: if no step is left.
    """
    make = partial(make_schedule, scheduler, request.steps, strength=request.share)
    whole = make()
    if start is None and not request.ends_early:
        return Part(whole, len(whole.stops), 0)
    end = request.denoising_end if request.ends_early else None
    schedule = make(denoising_start=start, denoising_end=end)
    skipped = 0 if start is None else len(whole.stops) - len(schedule.stops)
    return Part(schedule, len(whole.stops), skipped)


def _image_start(origin: Origin, config: Config, schedule: Schedule, strength: float) -> ImageStart:
    """Return what the slots take of the pictures that a request starts from."""
    images, height, width, _ = origin.images.shape
    masks = np.ones((images, height, width), np.float32) if origin.masks is None else origin.masks
    rows, _, _ = config.family.latents_shape(config, height, width)
    signal, deviation = map(float, schedule.noised[0])
    if origin.masks is not None and strength == 1:  # as in diffusers, nothing of the masked part
        signal, deviation = 0.0, schedule.init_noise_sigma
    return ImageStart(
        images=origin.images,
        masks=np.stack([latent_mask(mask, height // rows) for mask in masks]),
        hidden=masked(origin.images, masks) if config.takes_mask else None,
        coefficients=(signal, deviation),
    )


def _as_drawn(request: Request, used: SchedulerConfig) -> Request:
    """Return a request as its pictures name it: with its scheduler, without names of defaults."""
    sigma_schedule = "" if used.sigma_schedule == DEFAULT_SIGMAS else used.sigma_schedule
    decoder = "" if request.decoder == FULL else request.decoder
    return replace(request, scheduler=used.name, sigma_schedule=sigma_schedule, decoder=decoder)
