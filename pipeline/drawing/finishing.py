"""From final latents to pictures: decoding, moderation, the settings inside; and previews."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pipeline.drawing.drawing import Drawing, Evaluated, Job, Picture, Stage
from pipeline.errors import NotFiniteError
from pipeline.images import inputs, metadata, moderation
from pipeline.images.moderation import Screen, verdicts
from pipeline.request import TINY
from pipeline.runtime.slots import slot_mask

if TYPE_CHECKING:
    from jax import Array

    from pipeline.runtime.compiled import CompiledSampler


@dataclass(frozen=True)
class Final:
    """Final latents of some pictures of a stage, and these pictures once they are decoded.

    Attributes:
        stage: the stage.
        slots: the slot of each picture.
        latents: the latents of all slots, `[B, h, w, C]`.
        decoded: the pictures of all slots as `CompiledSampler.decode` returns them; None for
            results that are latents.
    """

    stage: Stage
    slots: dict[Job, int]
    latents: Array
    decoded: tuple[Array, Array] | None

    @property
    def drawing(self) -> Drawing:
        """The drawing of the pictures, which are all of one request."""
        return next(iter(self.slots)).drawing


class Finisher:
    """Makes results from latents, and previews from unfinished pictures.

    A worker makes the results, one after the other, so that `screen` is never called twice at once.

    Args:
        screen: the operator's check of finished pictures; None without one.
        first: the first model's programs. If it has a safety checker, that also checks pictures of
            models that have none.
    """

    def __init__(self, screen: Screen | None, first: CompiledSampler | None = None):
        self._screen = screen
        self._first = first
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="finishing")

    def decode(self, stage: Stage, slots: dict[Job, int], latents: Array) -> Final:
        """Queue the decoding of the pictures in some slots, whose latents are final."""
        if stage.output_type == "latent":
            return Final(stage, slots, latents, None)
        run, request = stage.run, next(iter(slots)).drawing.request
        mask = slot_mask(run.shapes.images, slots.values())
        decode = run.tiny_decode if request.decoder == TINY else run.decode
        return Final(stage, slots, latents, decode(latents, mask))

    def begin(self, final: Final) -> Future[list[Picture | Job]]:
        """Let the worker `finish` pictures; latents, which need no check, are finished at once."""
        if final.decoded is not None:
            return self._worker.submit(self.finish, final)
        future: Future[list[Picture | Job]] = Future()
        try:
            future.set_result(self.finish(final))
        except NotFiniteError as error:
            future.set_exception(error)
        return future

    def finish(self, final: Final) -> list[Picture | Job]:
        """Return finished pictures, or the jobs that go on from them; wait for their decoding.

        Raises:
            NotFiniteError: if their latents are no finite numbers.
            ScreenError: if `screen` fails.
        """
        jobs, slots, then = [*final.slots], [*final.slots.values()], final.stage.then
        latents = np.asarray(final.latents)[slots]
        if not np.isfinite(latents).all():
            raise NotFiniteError(
                "the latents are not finite, and pictures of them would be black; lower the"
                " weights of the LoRAs, or the guidance scale"
            )
        if final.decoded is None:
            pictures = [Picture(job.index, image) for job, image in zip(jobs, latents, strict=True)]
        else:
            pictures = self._decoded(jobs, slots, final.stage, final.decoded)
        if then is None:
            return [*pictures]
        return [then(job, picture) for job, picture in zip(jobs, pictures, strict=True)]

    def _decoded(
        self, jobs: Sequence[Job], slots: Sequence[int], stage: Stage, decoded: tuple[Array, Array]
    ) -> list[Picture]:
        """Return decoded pictures once they are checked."""
        pixels, floats = _pixels(jobs, slots, stage, decoded)
        by_checker = self._flagged(stage.run, pixels, slots)
        by_screen = [False] * len(slots) if self._screen is None else verdicts(self._screen, pixels)
        return [
            self._picture(*arguments)
            for arguments in zip(jobs, pixels, floats, by_checker, by_screen, strict=True)
        ]

    def look(self, drawing: Drawing) -> dict[int, np.ndarray]:
        """Return previews `[h, w, 3]` uint8 of a drawing's unfinished pictures, by index.

        They are the pictures that the newest evaluation of each predicts.
        """
        together: dict[int, list[Evaluated]] = {}
        for index, evaluated in drawing.newest.items():
            if index not in drawing.pictures:
                together.setdefault(id(evaluated.after), []).append(evaluated)
        return {index: look for group in together.values() for index, look in _look(group).items()}

    def _flagged(
        self, run: CompiledSampler, pixels: Sequence[np.ndarray], slots: Sequence[int]
    ) -> list[bool]:
        """Return for each picture `[H, W, 3]` uint8 whether the safety checker flags it."""
        if run.target.config.safety_checker is None and self._first is not None:
            run = self._first
        if (checker := run.target.config.safety_checker) is None:
            return [False] * len(pixels)
        images = moderation.prepare(pixels, checker)
        slot_images = np.zeros((run.shapes.images, *images.shape[1:]), images.dtype)
        slot_images[slots] = images
        return run.check(slot_images, slot_mask(len(slot_images), slots))[slots].tolist()

    def _picture(
        self,
        job: Job,
        pixels: np.ndarray,
        as_float: np.ndarray | None,
        by_checker: bool,
        by_screen: bool,
    ) -> Picture:
        flagged = by_checker or by_screen or job.flagged
        visible = moderation.blur(pixels) if flagged else pixels
        if as_float is not None:
            image = visible / np.float32(255) if flagged else as_float
            return Picture(job.index, image, flagged)
        image = self._described(job, visible, flagged)
        reveals = by_screen and not (by_checker or job.flagged)
        unblurred = self._described(job, pixels, flagged=False) if reveals else None
        return Picture(job.index, image, flagged, unblurred)

    def _described(self, job: Job, pixels: np.ndarray, flagged: bool) -> Image.Image:
        """Return a picture `[H, W, 3]` uint8 as a PIL picture with its settings attached."""
        image, first = Image.fromarray(pixels), job.drawing.first
        request, shapes = job.drawing.request, first.run.shapes
        prompts = request.prompts[job.index], request.negative_prompts[job.index]
        settings = replace(
            job.drawing.look.describe(request, job.index, (shapes.width, shapes.height)),
            safety_checker=metadata.BLURRED if flagged else None,
            lora_hashes=job.drawing.lora_hashes,
            ti_hashes=first.placement.hashes(*prompts),
        )
        metadata.attach(image, settings)
        return image


def _pixels(
    jobs: Sequence[Job], slots: Sequence[int], stage: Stage, decoded: tuple[Array, Array]
) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
    """Return pictures `[H, W, 3]` as uint8, and as float32 in 0..1, or None where not needed."""
    as_float, as_bytes = decoded
    needs_floats, nothing = stage.output_type == "np", [None] * len(slots)
    if not stage.frames:
        floats = np.asarray(as_float)[slots] if needs_floats else nothing
        return [*np.asarray(as_bytes)[slots]], [*floats]
    parts = zip(jobs, np.asarray(as_float)[slots], strict=True)
    pictures = [stage.frames[job.row].filled(part) for job, part in parts]
    return [inputs.to_bytes(picture) for picture in pictures], pictures if needs_floats else nothing


def _look(evaluated: Sequence[Evaluated]) -> dict[int, np.ndarray]:
    """Return previews of pictures that were evaluated together."""
    before, after = evaluated[0].before.latents, evaluated[0].after
    job = evaluated[0].job
    run, colours = job.stage.run, job.drawing.look.colours
    rows = {
        evaluation.slot: evaluation.job.stage.schedule.pred_x0[evaluation.number]
        for evaluation in evaluated
    }
    slots = {evaluation.job.index: evaluation.slot for evaluation in evaluated}
    if not run.has_tiny_vae:
        latents, values = np.asarray(before), np.asarray(after.history)[0]

        def predicted(slot: int) -> np.ndarray:
            a, b = rows[slot]
            return colours.of(a * latents[slot] + b * values[slot])

        return {index: predicted(slot) for index, slot in slots.items()}
    mask = slot_mask(run.shapes.images, rows)
    coefficients = np.zeros((len(mask), 2), np.float32)
    for slot, row in rows.items():
        coefficients[slot] = row
    looks = run.preview(before, after, coefficients, mask)
    return {index: looks[slot] for index, slot in slots.items()}
