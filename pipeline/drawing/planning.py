"""From a request to the drawing of its pictures, stage by stage; no device is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from pipeline.drawing.drawing import Drawing, Job, Look, Picture, Stage
from pipeline.drawing.following import Followed, control_starts, of_picture, read_controls
from pipeline.drawing.origins import Inputs, Origin, check_origin, read_origin
from pipeline.errors import InputError, raise_if_cancelled
from pipeline.facts import Facts
from pipeline.images.inputs import fitted, latent_mask, masked, to_bytes
from pipeline.request import (
    FULL,
    TINY,
    GenerateRequest,
    Request,
    check_choice,
    check_count,
    check_faults,
    check_request,
    checked_latents,
    misfits,
)
from pipeline.resolve import resolve, second_run
from pipeline.runtime.slots import ImageStart, Start
from pipeline.runtime.work import pack
from pipeline.schedulers.config import DEFAULT_SIGMAS, SchedulerConfig
from pipeline.schedulers.methods import make_schedule
from pipeline.schedulers.table import Schedule
from pipeline.setting_kinds import MAX_SEED, parse_size, parse_timesteps
from pipeline.text.embeddings import Embeddings, Placement
from pipeline.text.emphasis import Section
from pipeline.text.prompt_syntax import A1111, ignored_parts, read_prompt
from pipeline.text.tokenizer import Break, Part, Tokenizers, Tokens, longest_end
from pipeline.text.wildcards import UNRESOLVED, Resolver, line_budget

if TYPE_CHECKING:
    from pipeline.drawing.models import Models
    from pipeline.drawing.refining import Refiner
    from pipeline.families.family import Config
    from pipeline.runtime.adapters import Adapters
    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.control_networks import Controls
    from pipeline.runtime.models import Model

OUTPUT_TYPES = ("pil", "np", "latent")
# A text that a prompt has for some steps.
_Text = tuple[Section, ...]


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
            f"clip_skip is {request.clip_skip}; this model's is at most {facts.max_clip_skip}": (
                request.clip_skip > facts.max_clip_skip
            ),
        }
    )


class Drawer(NamedTuple):
    """A model that draws in one size: its configuration, tokenizers, programs and parameters.

    `controls` are the networks that can guide it.
    """

    config: Config
    tokenizers: Tokenizers
    run: CompiledSampler
    adapters: Adapters
    model: Model
    controls: Controls


class RunPart(NamedTuple):
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
        controls: what the pictures follow.
        then: see `Stage.then`.
        cancelled: stops the preparation once it is set.
    """

    request: Request
    scheduler: SchedulerConfig
    parts: Sequence[RunPart]
    noise: np.ndarray | None = None
    origin: Origin | None = None
    output_type: str = "pil"
    before: int = 0
    controls: Sequence[Followed] = ()
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
    config, tokenizers, run, adapters, model, controls = drawer
    schedule, chunks = part.schedule, run.shapes.chunks
    prompts = read_prompts(request, part.whole, tokenizers, placement, chunks, plan.cancelled)
    blank_negative = prompts.blank & np.array([True, False])[:, None]
    start = Start(
        input_ids=prompts.input_ids,
        weights=prompts.weights,
        chunks=prompts.chunks,
        zeroed=blank_negative & config.force_zeros_for_empty_prompt,
        clip_skip=np.full_like(prompts.chunks, max(request.clip_skip, 1)),
        texts=prompts.texts,
        vectors=placement.vectors(),
        guidance_scale=request.guidance,
        init_noise_sigma=schedule.init_noise_sigma,
        seeds=np.array(request.seeds, np.uint32),
        variations=[(np.array(seeds, np.uint32), share) for seeds, share in request.variations],
        noise=plan.noise,
        origin=None if origin is None else _image_start(origin, config, schedule, request.share),
        controls=control_starts(plan.controls, origin, run, schedule.stops[-1], plan.cancelled),
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
        controls=controls,
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
) -> RunPart:
    """Return the part of a run from one share of the denoising to another; None is its end."""
    schedule = make_schedule(
        scheduler,
        request.steps,
        strength=request.share,
        denoising_start=start,
        denoising_end=end,
    )
    whole_steps = int(request.steps * request.share)
    return RunPart(schedule, whole_steps, 0 if start is None else whole_steps - len(schedule.stops))


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


@dataclass(frozen=True)
class Prompts:
    """The prompts of n pictures, each with up to V different texts in turn.

    Attributes:
        input_ids: for each text encoder `[V, 2, n, C * L]` int32, the negative prompts first.
        weights: how much each token counts, likewise float32.
        blank: `[V, 2, n]` bool, whether a text is blank.
        chunks: `[V, 2, n]` int32, the number of chunks of a text, at most C.
        texts: `[n]`, the number of texts of each picture's prompt or negative prompt, at most V.
        of_step: `[n, steps, 2]`, which of the V texts each step uses for the negative prompt and
            for the prompt.
        truncated, negative_truncated: for each picture the end that does not fit, or "".
    """

    input_ids: tuple[np.ndarray, ...]
    weights: tuple[np.ndarray, ...]
    blank: np.ndarray
    chunks: np.ndarray
    texts: np.ndarray
    of_step: np.ndarray
    truncated: list[str]
    negative_truncated: list[str]


def resolved(request: Request, folder: Path | None, cancelled: Event | None = None) -> Request:
    """Return a request with a choice in place of each list in its prompts, by the pictures' seeds.

    Parts of the prompts without effect, such as the tags of LoRAs that are not there, are noted in
    `ignored`. Lists that are not there stay as text.

    Args:
        request: a checked request; one in plain syntax stays as it is.
        folder: the folder of the lists that prompts name; None for none.
        cancelled: an event; once it is set, no more is read.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if a list cannot be used, or a prompt becomes too long.
    """
    if request.prompt_syntax != A1111:
        return request

    budget = line_budget(cancelled)

    def choose(prompt: str, seed: int) -> tuple[str, tuple[str, ...]]:
        raise_if_cancelled(cancelled)
        chosen, ignored = ignored_parts(Resolver(seed, folder, budget).resolve(prompt))
        return chosen, (*ignored, *(match[0] for match in UNRESOLVED.finditer(chosen)))

    def each(prompts: Sequence[str], stream: int) -> list[tuple[str, tuple[str, ...]]]:
        return [*map(choose, prompts, (stream + seed for seed in request.seeds))]

    # The choices in negative prompts are independent of those in prompts.
    prompts, negative = each(request.prompts, 0), each(request.negative_prompts, MAX_SEED + 1)
    return replace(
        request,
        prompt=tuple(prompt for prompt, _ in prompts),
        negative_prompt=tuple(prompt for prompt, _ in negative),
        ignored=tuple(a + b for (_, a), (_, b) in zip(prompts, negative, strict=True)),
    )


def read_prompts(
    request: Request,
    steps: int,
    tokenizers: Tokenizers,
    placement: Placement,
    chunks: int = 1,
    cancelled: Event | None = None,
) -> Prompts:
    """Read and tokenise a checked request's prompts for a run of some steps.

    `placement` notes the embeddings that they name. A prompt may have up to `chunks` chunks. Once
    `cancelled` is set, no more is read.

    Raises:
        Cancelled: if `cancelled` is set.
        InputError: if a prompt has too many different texts, or too many embeddings.
    """
    tokens: dict[_Text, list[Tokens]] = {}

    def tokens_of(sections: _Text) -> list[Tokens]:
        if sections not in tokens:
            raise_if_cancelled(cancelled)
            tokens[sections] = tokenizers.tokens(placed(sections, placement), chunks)
        return tokens[sections]

    def texts_of(prompt: str) -> tuple[list[_Text], list[int]]:
        raise_if_cancelled(cancelled)
        return _texts(prompt, request.prompt_syntax, steps)

    runs = [
        [texts_of(prompt) for prompt in half]
        for half in (request.negative_prompts, request.prompts)
    ]
    texts = [[row for row, _ in half] for half in runs]
    of_step = np.array([[used for _, used in half] for half in runs])  # [2, n, steps]
    counts = np.array([[*map(len, half)] for half in texts]).max(0)
    padded_texts = [[row + row[-1:] * (counts.max() - len(row)) for row in half] for half in texts]
    all_tokens = [[[tokens_of(text) for text in row] for row in half] for half in padded_texts]

    def arranged(value: Callable[[Tokens], Any]) -> tuple[np.ndarray, ...]:
        """Return a value of all texts for each text encoder, `[V, 2, n, ...]`."""
        values = (
            np.array([[[value(text[i]) for text in row] for row in half] for half in all_tokens])
            for i in range(len(all_tokens[0][0][0]))
        )
        return tuple(np.moveaxis(array, 2, 0) for array in values)

    blank = np.array([[[*map(_is_blank, row)] for row in half] for half in padded_texts])
    ends = [[max(map(longest_end, row), key=len) for row in half] for half in all_tokens]
    return Prompts(
        input_ids=arranged(lambda tokens: tokens.input_ids),
        weights=arranged(lambda tokens: tokens.weights),
        blank=np.moveaxis(blank, 2, 0),
        # Text encoders with different tokenizers may need different numbers.
        chunks=np.max(arranged(lambda tokens: tokens.chunks), axis=0).astype(np.int32),
        texts=counts,
        of_step=np.moveaxis(of_step, 0, -1),
        truncated=ends[1],
        negative_truncated=ends[0],
    )


def placed(sections: Sequence[Section], placement: Placement) -> list[Part]:
    """Return the parts of a prompt, with a break between its sections."""
    parts: list[Part] = []
    for i, section in enumerate(sections):
        parts += [Break()] if i else []
        parts += [part for fragment in section for part in placement.place(*fragment)]
    return parts


def _texts(prompt: str, syntax: str, steps: int) -> tuple[list[_Text], list[int]]:
    """Return the different texts of a prompt, and which of them each step uses."""
    step_texts: list[_Text] = []
    for until, sections in read_prompt(prompt, syntax, steps):
        step_texts += [sections] * (until - len(step_texts))
    texts = [*dict.fromkeys(step_texts)]
    return texts, [*map(texts.index, step_texts)]


def _is_blank(sections: Sequence[Section]) -> bool:
    return not any(fragment.text.strip() for section in sections for fragment in section)


@dataclass(frozen=True)
class Planner:
    """Makes drawings of requests. Any thread may call it.

    Attributes:
        models: the models.
        refiner: the refiner; None without one.
        facts: returns the facts about the models.
        run_of: returns the programs for a height and a width; raises InputError if there are none.
        embeddings: returns the loaded embeddings.
        look: how pictures are shown and described.
        wildcard_dir: the folder of the lists that prompts can name; None for none.
    """

    models: Models
    refiner: Refiner | None
    facts: Callable[[], Facts]
    run_of: Callable[[int, int], CompiledSampler]
    embeddings: Callable[[], Embeddings]
    look: Look
    wildcard_dir: Path | None

    def plan(
        self,
        request: GenerateRequest,
        images: int,
        run: CompiledSampler,
        inputs: Inputs,
        output_type: str,
        cancelled: Event,
    ) -> Drawing:
        """Return the drawing of a request.

        Args:
            request: the request.
            images: the number of pictures.
            run: the programs of the size.
            inputs: the arrays that the request starts from.
            output_type: one of `OUTPUT_TYPES`.
            cancelled: stops the drawing once it is set.

        Raises:
            Cancelled: if the request was cancelled.
            InputError: if a value cannot be used; the message names it.
        """
        facts = self.facts().for_model(request.model)
        check_count("images", images, 1, facts.images_per_request)
        checked = check_request(request, images)
        checked = resolve(checked, facts, has_image=inputs.image is not None)
        checked = resolved(checked, self.wildcard_dir, cancelled)
        check_output(checked, output_type, facts, self.refiner is not None)
        # One for all stages: a name may be another model's before the last one begins.
        drawer = self.models.drawer(checked.model, run)
        drawer.adapters.check(checked.lora_weights)
        adapters = map(drawer.adapters.loaded.get, checked.lora_weights)
        embeddings = self.embeddings().with_bundles(adapters, drawer.config.widths)
        raise_if_cancelled(cancelled)
        check_origin(checked, inputs, facts.needs_mask, facts.needs_image)
        noise = latents = None
        if inputs.latents is not None:
            array = checked_latents(inputs.latents, (images, *run.latents_shape))
            goes_on = inputs.denoising_start is not None
            noise, latents = (None, array) if goes_on else (array, None)
        origin = read_origin(inputs, images, run.shapes.height, run.shapes.width, checked.padding)
        plan = replace(
            self._run(checked, facts, drawer, inputs.denoising_start),
            noise=noise,
            origin=origin,
            controls=read_controls(checked, inputs, drawer.controls),
            output_type=output_type,
            cancelled=cancelled,
        )
        if checked.enlarge:
            plan = self._enlarged(plan, facts, drawer, embeddings)
        elif origin is not None and output_type == "np":
            origin.check_one_size()
        return Drawing(
            as_drawn(plan.request, plan.scheduler),
            self._first_stage(plan, drawer, embeddings),
            plan.request.drawn_steps - plan.parts[0].skipped,
            self.look,
            output_type,
            latents,
            cancelled,
        )

    def _first_stage(self, plan: StagePlan, drawer: Drawer, embeddings: Embeddings) -> Stage:
        """Return the first stage of a run, which the refiner's follows."""
        refiner = self.refiner
        if refiner is not None and len(plan.parts) > 1:
            second = refiner.stage(plan, drawer, embeddings)
            plan = replace(plan, output_type="latent", then=partial(_go_on, second))
        return make_stage(plan, drawer, Placement(embeddings))

    def _enlarged(
        self, plan: StagePlan, facts: Facts, drawer: Drawer, embeddings: Embeddings
    ) -> StagePlan:
        """Return the plan of pictures that a second run draws again in a larger size."""
        if facts.needs_mask:
            raise InputError("enlarge needs a model that is not for inpainting; leave it out")
        width, height = cast(tuple[int, int], parse_size(plan.request.enlarge))
        drawer = drawer._replace(run=self.run_of(height, width))
        larger_plan = replace(
            self._run(second_run(plan.request), facts, drawer, None),
            output_type=plan.output_type,
            cancelled=plan.cancelled,
        )

        def enlarge(job: Job, picture: Picture) -> Job:
            # In 8 bits, as its file has it: the file then gives the same second run.
            image = fitted(to_bytes(picture.image).astype(np.float32) / 255, height, width)
            picture_plan = replace(
                larger_plan,
                request=Request(**larger_plan.request.of_picture(job.index), images=1),
                origin=Origin(image[None], None, ()),
                before=job.stage.total,
                controls=[of_picture(followed, job.index) for followed in plan.controls],
            )
            stage = self._first_stage(picture_plan, drawer, embeddings)
            return Job(job.drawing, job.index, stage, 0, flagged=picture.flagged)

        return replace(plan, output_type="np", then=enlarge)

    def _run(
        self, request: Request, facts: Facts, drawer: Drawer, start: float | None
    ) -> StagePlan:
        """Return the plan of the first stage of a run, see `plan_run`.

        Raises:
            InputError: if the settings do not fit together or do not fit the model.
        """
        for misfit in misfits(request, facts.scheduler):
            raise InputError(str(misfit))
        scheduler = drawer.config.schedulers.choose(
            request.scheduler,
            request.sigma_schedule,
            request.timestep_spacing,
            parse_timesteps(request.timesteps),
            request.eta,
        )
        return plan_run(request, scheduler, start, self.refiner is not None)


def _go_on(stage: Stage, job: Job, picture: Picture) -> Job:
    """Return the job that goes on from the latents of a picture."""
    return replace(job, stage=stage, latents=picture.image)
