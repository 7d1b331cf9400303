"""From a request to the drawing of its pictures, stage by stage; no device is used."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import cast

from pipeline.drawing.drawing import Drawing, Job, Look, Picture, Stage
from pipeline.drawing.models import Models
from pipeline.drawing.origins import Inputs, Origin, check_origin, read_origin
from pipeline.drawing.preparing import (
    Drawer,
    StagePlan,
    as_drawn,
    check_output,
    make_stage,
    plan_run,
    resolved,
)
from pipeline.drawing.refining import Refiner
from pipeline.errors import InputError, raise_if_cancelled
from pipeline.facts import Facts
from pipeline.images.inputs import fitted
from pipeline.request import (
    GenerateRequest,
    Request,
    check_count,
    check_request,
    checked_latents,
    misfits,
)
from pipeline.resolve import resolve, second_run
from pipeline.runtime.compiled import CompiledSampler
from pipeline.setting_kinds import parse_size, parse_timesteps
from pipeline.text.embeddings import Embeddings, Placement


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
            output_type=output_type,
            cancelled=cancelled,
        )
        if checked.enlarge:
            plan = self._enlarged(plan, facts, drawer)
        elif origin is not None and output_type == "np":
            origin.check_one_size()
        return Drawing(
            as_drawn(plan.request, plan.scheduler),
            self._first_stage(plan, drawer),
            plan.request.drawn_steps - plan.parts[0].skipped,
            self.look,
            output_type,
            latents,
            cancelled,
        )

    def _first_stage(self, plan: StagePlan, drawer: Drawer) -> Stage:
        """Return the first stage of a run, which the refiner's follows."""
        embeddings, refiner = self.embeddings(), self.refiner
        if refiner is not None and len(plan.parts) > 1:
            second = refiner.stage(plan, drawer, embeddings)
            plan = replace(plan, output_type="latent", then=partial(_go_on, second))
        return make_stage(plan, drawer, Placement(embeddings))

    def _enlarged(self, plan: StagePlan, facts: Facts, drawer: Drawer) -> StagePlan:
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
            image = fitted(picture.image, height, width)
            picture_plan = replace(
                larger_plan,
                request=Request(**larger_plan.request.of_picture(job.index), images=1),
                origin=Origin(image[None], None, ()),
                before=job.stage.total,
            )
            stage = self._first_stage(picture_plan, drawer)
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
