"""The engine: it advances all pictures in slots, and lets others enter and leave.

Every model has slots for each size of pictures, and those with pictures take turns. The host is
ahead of the devices: it queues the next evaluations while they compute one, so that they never wait
for it. A worker makes pictures of what was decoded, so that no evaluation waits for a check or a
conversion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from pipeline.drawing.drawing import Drawing, Evaluated, Job, Picture, Progress, Stage
from pipeline.errors import InputError, NotFiniteError, ScreenError
from pipeline.images import inputs, metadata, moderation
from pipeline.request import TINY
from pipeline.runtime.controls import Guided
from pipeline.runtime.slots import Entry, Slots, slot_mask
from pipeline.schedulers.table import State

if TYPE_CHECKING:
    from jax import Array

    from pipeline.runtime.compiled import CompiledSampler
    from pipeline.runtime.control_networks import ControlNetwork

AHEAD = 2  # the most evaluations that are queued behind the one that the devices compute
MAX_DECODED = 4  # decoded pictures for each slot that wait for the worker; then no picture enters
# The longest wait for the worker, in seconds. A drawing that begins meanwhile waits as long.
_IDLE_S = 0.01


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

    def __init__(self, screen: moderation.Screen | None, first: CompiledSampler | None = None):
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
        by_screen = (
            [False] * len(slots)
            if self._screen is None
            else moderation.verdicts(self._screen, pixels)
        )
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


@dataclass(frozen=True)
class _Flight:
    """An evaluation that is queued or running, the state after it, and what it finishes."""

    after: State
    pictures: list[Evaluated]
    finals: list[Final]


@dataclass
class _Seat:
    """A picture in a slot, the evaluation of it that comes next, and the texts in its context."""

    job: Job
    evaluation: int = 0
    texts: tuple[int, int] = (0, 0)


class Engine:
    """Draws the pictures of all drawings that have begun, as many at once as there are slots.

    Pictures enter slots in the order in which they begin; those that go on with a further stage
    come first. A picture that needs another model or other LoRAs waits until the slots are empty.
    A picture of a size whose slots are full waits until one is free. All pictures that begin after
    it wait too. Only one thread at a time may use an engine.

    Args:
        screen: the operator's check of finished pictures; None without one.
        first: the programs whose safety checker serves models without one of their own.

    """

    def __init__(
        self, screen: moderation.Screen | None = None, first: CompiledSampler | None = None
    ):
        self._evaluations = 0  # each of all pictures in the slots of a model and size
        self._picture_evaluations = 0
        self._finisher = Finisher(screen, first)
        # Decoded pictures, by the future of what the worker makes of them.
        self._decoded: dict[Future[list[Picture | Job]], Final] = {}
        self.reset()

    def reset(self) -> None:
        """Forget all drawings and the state on the devices, as after a failure."""
        for pictures in self._decoded:
            pictures.cancel()
        self._decoded = {}
        self._slots: dict[CompiledSampler, Slots] = {}  # the next to advance comes first
        self._seats: dict[tuple[Slots, int], _Seat] = {}
        self._flights: deque[_Flight] = deque()
        self._continuing: deque[Job] = deque()  # pictures that wait for a further stage
        self._waiting: deque[Job] = deque()  # pictures that wait for their first one

    @property
    def is_busy(self) -> bool:
        """Whether any drawing is under way or waits."""
        waits = self._continuing or self._waiting
        return bool(waits or self._seats or self._flights or self._decoded)

    @property
    def is_finishing(self) -> bool:
        """Whether the worker alone has something to do."""
        return bool(self._decoded) and not (self._seats or self._flights or self._continuing)

    @property
    def in_slots(self) -> int:
        """Number of slots with a picture."""
        return len(self._seats)

    @property
    def evaluated(self) -> tuple[int, int]:
        """Number of evaluations so far, and of the pictures in them, summed up."""
        return self._evaluations, self._picture_evaluations

    def begin(self, drawing: Drawing, pictures: int | None = None) -> None:
        """Let the next pictures of a drawing wait for slots; None means all that are left."""
        self._waiting += drawing.begin(pictures)

    def advance(self) -> list[Progress]:
        """Queue an evaluation of pictures in slots, and wait for the oldest one if need be.

        After an exception the slots are empty, and no drawing goes on.

        Returns:
            The drawings that moved: with pictures or steps that are complete, or an error. The list
            may be empty while the first evaluations are under way.
        """
        try:
            return self._advance()
        except BaseException:
            self.reset()
            raise

    def look(self, drawing: Drawing) -> dict[int, np.ndarray]:
        """Return previews `[h, w, 3]` uint8 of a drawing's unfinished pictures, by index."""
        return self._finisher.look(drawing)

    def drop(self, drawing: Drawing) -> None:
        """Forget a drawing, and ignore the results of its evaluations that are queued."""
        for jobs in (self._continuing, self._waiting):
            remaining_jobs = [job for job in jobs if job.drawing is not drawing]
            jobs.clear()
            jobs += remaining_jobs
        for flight in self._flights:
            flight.pictures[:] = [
                evaluated for evaluated in flight.pictures if evaluated.job.drawing is not drawing
            ]
            flight.finals[:] = [final for final in flight.finals if final.drawing is not drawing]
        for pictures, final in [*self._decoded.items()]:
            if final.drawing is drawing:
                del self._decoded[pictures]
                pictures.cancel()
        for place in [place for place, seat in self._seats.items() if seat.job.drawing is drawing]:
            self._leave(*place)

    def _advance(self) -> list[Progress]:
        if ended := self._drop_cancelled() + self._let_in():
            return ended  # at once: others can have their slots
        has_pictures = bool(self._seats)
        if has_pictures:
            self._flights.append(self._dispatch(self._next_slots()))
        drawings: list[Drawing] = []
        if self._flights and (len(self._flights) > AHEAD or not has_pictures):
            drawings = self._collect(self._flights.popleft())
        finished = self._finished(idle=not (has_pictures or drawings))
        return [
            Progress(drawing, finished.get(drawing, ()))
            for drawing in dict.fromkeys([*drawings, *finished])
        ]

    # --- entering and leaving

    def _drop_cancelled(self) -> list[Progress]:
        jobs = chain(self._jobs_on_devices(), self._continuing, self._waiting)
        decoded = (final.drawing for final in self._decoded.values())
        drawings = dict.fromkeys([*(job.drawing for job in jobs), *decoded])
        cancelled_drawings = [drawing for drawing in drawings if drawing.cancelled.is_set()]
        for drawing in cancelled_drawings:
            drawing.stop()
            self.drop(drawing)
        return [Progress(drawing) for drawing in cancelled_drawings]

    def _let_in(self) -> list[Progress]:
        """Let waiting pictures enter free slots; return the drawings that cannot be drawn."""
        failures: list[Progress] = []
        for jobs in (self._continuing, self._waiting):
            while jobs and self._has_room(jobs[0].stage):
                job = jobs[0]
                adapters, selection = job.stage.adapters, (job.stage.loras, job.stage.model)
                if not adapters.is_selected(*selection):
                    if any(other.stage.adapters is adapters for other in self._jobs_on_devices()):
                        adapters.read_ahead(job.stage.model, job.stage.loras)
                        break
                    try:
                        adapters.select(*selection)
                    except Exception as error:  # the next drawing must not suffer from this one
                        failures.append(self._fail(job.drawing, error))
                        continue
                try:
                    if not self._has_controls(job.stage):
                        break
                except Exception as error:  # likewise
                    failures.append(self._fail(job.drawing, error))
                    continue
                self._enter(jobs)
            if jobs:
                break
        return failures

    def _has_room(self, stage: Stage) -> bool:
        """Return whether a picture can enter a slot for a stage, whatever its model and LoRAs."""
        slots = self._slots_of(stage.run)
        return self._unfinished < MAX_DECODED * stage.run.shapes.images and bool(slots.free(1))

    def _fail(self, drawing: Drawing, error: Exception) -> Progress:
        """End a drawing with an error."""
        drawing.error = error
        self.drop(drawing)
        return Progress(drawing)

    def _has_controls(self, stage: Stage) -> bool:
        """Return whether the networks that a picture follows are on the devices, or will be soon.

        With no picture in a slot it waits for them.
        """
        if not stage.start.controls:
            return True
        jobs = [*self._jobs_on_devices()]
        in_use = [network for job in jobs for network in _networks(job.stage)]
        return stage.controls.acquire(_networks(stage), in_use, wait=not jobs)

    def _jobs_on_devices(self) -> Iterator[Job]:
        """Yield the jobs in evaluations that are queued, and those in slots."""
        yield from (evaluated.job for flight in self._flights for evaluated in flight.pictures)
        yield from (seat.job for seat in self._seats.values())

    def _slots_of(self, run: CompiledSampler) -> Slots:
        """Return the slots of a model and size."""
        if run not in self._slots:
            self._slots[run] = Slots(run)
        return self._slots[run]

    def _enter(self, jobs: deque[Job]) -> None:
        """Let the first job, and those next to it that fit beside it, enter free slots."""
        first = jobs[0].stage
        slots = self._slots_of(first.run)

        def fits(job: Job) -> bool:
            key, first_key = (
                (stage.run, stage.model, stage.loras, _networks(stage))
                for stage in (job.stage, first)
            )
            return key == first_key

        free_slots = slots.free(sum(1 for _ in takewhile(fits, jobs)))
        entering = {slot: jobs.popleft() for slot in free_slots}
        slots.enter({slot: _entry(job) for slot, job in entering.items()})
        for slot, job in entering.items():
            self._seats[slots, slot] = _Seat(job)
            job.drawing.entered += job.stage is job.drawing.first
            job.drawing.lora_hashes = first.adapters.hashes or job.drawing.lora_hashes

    def _leave(self, slots: Slots, slot: int) -> None:
        del self._seats[slots, slot]
        slots.leave(slot)

    # --- evaluations

    def _next_slots(self) -> Slots:
        """Return the slots whose turn it is, of those with pictures."""
        run = next(run for run, slots in self._slots.items() if slots.taken)
        self._slots[run] = slots = self._slots.pop(run)  # the last of the next round
        return slots

    def _dispatch(self, slots: Slots) -> _Flight:
        """Queue an evaluation of the pictures in slots, and the decoding of those it finishes."""
        seats = {slot: seat for (owner, slot), seat in self._seats.items() if owner is slots}
        self._change_prompts(slots, seats)
        rows = {slot: seat.job.work(seat.evaluation) for slot, seat in seats.items()}
        guided = {
            slot: Guided(_entry(seat.job), seat.evaluation, seat.texts)
            for slot, seat in seats.items()
            if seat.job.stage.start.controls
        }
        before, after = slots.advance(rows, guided)
        self._evaluations += 1
        self._picture_evaluations += len(rows)
        pictures: list[Evaluated] = []
        finals: dict[Stage, dict[Job, int]] = {}
        for slot, seat in seats.items():
            pictures.append(Evaluated(seat.job, slot, seat.evaluation, before, after))
            seat.evaluation += 1
            stage, drawing = seat.job.stage, seat.job.drawing
            drawing.vacated += stage is drawing.first and seat.evaluation == max(
                1, stage.evaluations - 1
            )
            if seat.evaluation == stage.evaluations:
                finals.setdefault(stage, {})[seat.job] = slot
                self._leave(slots, slot)
        decoded = [self._finisher.decode(*final, after.latents) for final in finals.items()]
        return _Flight(after, pictures, decoded)

    def _change_prompts(self, slots: Slots, seats: Mapping[int, _Seat]) -> None:
        """Let prompts switch to the texts that they have from this evaluation on."""
        changed_seats: dict[int, _Seat] = {}
        for slot, seat in seats.items():
            texts = seat.job.texts(seat.evaluation)
            if texts != seat.texts:
                seat.texts = texts
                changed_seats[slot] = seat
        if changed_seats:
            entries = {slot: _entry(seat.job) for slot, seat in changed_seats.items()}
            slots.switch(entries, {slot: seat.texts for slot, seat in changed_seats.items()})

    def _collect(self, flight: _Flight) -> list[Drawing]:
        """Wait for an evaluation; return the drawings that were in it."""
        flight.after.history.block_until_ready()  # one program makes both of its arrays
        for evaluated in flight.pictures:
            evaluated.job.drawing.complete(evaluated)
        for final in flight.finals:
            self._decoded[self._finisher.begin(final)] = final
        return [evaluated.job.drawing for evaluated in flight.pictures]

    # --- what was decoded

    @property
    def _unfinished(self) -> int:
        """Number of pictures that are decoded, or will be after the evaluations in flight."""
        queued = (final for flight in self._flights for final in flight.finals)
        return sum(len(final.slots) for final in chain(queued, self._decoded.values()))

    def _finished(self, idle: bool) -> dict[Drawing, list[Picture]]:
        """Return what the worker has finished, after a moment if `idle`."""
        if idle and self._decoded:
            wait(self._decoded, _IDLE_S, FIRST_COMPLETED)
        pictures_by_drawing: dict[Drawing, list[Picture]] = {}
        for future in [future for future in self._decoded if future.done()]:
            if future not in self._decoded:  # its drawing has just failed
                continue
            drawing = self._decoded.pop(future).drawing
            pictures = pictures_by_drawing.setdefault(drawing, [])
            try:
                results = future.result()
            except (InputError, NotFiniteError, ScreenError) as error:  # of this drawing alone
                drawing.error = error
                self.drop(drawing)
                continue
            pictures += [result for result in results if isinstance(result, Picture)]
            self._continuing += [result for result in results if isinstance(result, Job)]
            drawing.pictures |= {picture.index: picture for picture in pictures}
        return pictures_by_drawing


def _networks(stage: Stage) -> Collection[ControlNetwork]:
    """Return the networks that pictures follow others through, equal for equal ones."""
    return dict.fromkeys(control.network for control in stage.start.controls).keys()


def _entry(job: Job) -> Entry:
    return Entry(job.stage.start, job.row, job.latents)
