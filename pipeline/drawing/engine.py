"""The engine: it advances all pictures in the slots, and lets others enter and leave.

The host is ahead of the devices: it queues the next evaluations while they compute one, so that
they never wait for it. A worker makes pictures of what was decoded, so that no evaluation waits for
a check or a conversion.
"""

from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass

import jax
import numpy as np

from pipeline.drawing.drawing import Drawing, Evaluated, Picture, Progress
from pipeline.drawing.finishing import Final, Finisher
from pipeline.errors import NotFiniteError, ScreenError
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.slots import Slots
from pipeline.schedulers.table import State

AHEAD = 2  # the most evaluations that are queued behind the one that the devices compute
MAX_DECODED = 4  # decoded pictures for each slot that wait for the worker; then no picture enters
# The longest wait for the worker, in seconds. A drawing that begins meanwhile waits as long.
_IDLE_S = 0.01


@dataclass(frozen=True)
class _Part:
    """A drawing's part of an evaluation: its pictures' slots and evaluations, by index."""

    drawing: Drawing
    slots: dict[int, int]
    evaluations: dict[int, int]
    final: Final | None


@dataclass(frozen=True)
class _Flight:
    """An evaluation that is queued or running, and the states before and after it."""

    before: State
    after: State
    parts: list[_Part]


@dataclass(frozen=True, eq=False)
class _Decoded:
    """Decoded pictures of a drawing, and what the worker makes of them."""

    drawing: Drawing
    final: Final
    pictures: Future[list[Picture]]


@dataclass
class _Seat:
    """A picture in a slot, the evaluation of it that comes next, and the texts in its context."""

    drawing: Drawing
    index: int
    evaluation: int = 0
    texts: tuple[int, int] = (0, 0)


class Engine:
    """Draws the pictures of all drawings that have begun, as many at once as there are slots.

    Drawings enter in the order in which they begin, picture by picture. A drawing of another size,
    or with other LoRAs, waits until the slots are empty; so do all that begin after it. Only one
    thread at a time may use an engine.

    Args:
        adapters: the LoRAs at run time.
        finisher: makes results from latents.

    Attributes:
        evaluations: the number of evaluations so far, each of all pictures in slots.
        picture_evaluations: the number of pictures in them, summed up.
    """

    def __init__(self, adapters: Adapters, finisher: Finisher):
        self.evaluations = 0
        self.picture_evaluations = 0
        self._adapters = adapters
        self._finisher = finisher
        self._slots: Slots | None = None
        self._seats: dict[int, _Seat] = {}
        self._flights: deque[_Flight] = deque()
        self._waiting: dict[Drawing, None] = {}  # drawings with pictures that wait, in order
        self._decoded: list[_Decoded] = []

    @property
    def is_busy(self) -> bool:
        """Whether any drawing is under way or waits."""
        return bool(self._waiting or self._seats or self._flights or self._decoded)

    @property
    def is_finishing(self) -> bool:
        """Whether the worker alone has something to do."""
        return bool(self._decoded) and not (self._seats or self._flights)

    @property
    def in_slots(self) -> int:
        """Number of slots with a picture."""
        return len(self._seats)

    @property
    def waiting(self) -> bool:
        """Whether pictures wait for slots."""
        return bool(self._waiting)

    def begin(self, drawing: Drawing, pictures: int | None = None) -> None:
        """Let the next pictures of a drawing wait for slots; None means all that are left."""
        left = drawing.request.images - drawing.begun
        drawing.begun += left if pictures is None else min(pictures, left)
        self._waiting[drawing] = None

    def advance(self, idle: bool = True) -> list[Progress]:
        """Queue an evaluation of all pictures in slots, and wait for the oldest one if need be.

        After an exception the slots are empty, and no drawing goes on.

        Args:
            idle: whether to wait for a moment if only the worker has something to do.

        Returns:
            The drawings that moved: with pictures or steps that are complete, or an error. The list
            may be empty while the first evaluations are under way.
        """
        try:
            return self._advance(idle)
        except BaseException:
            self.reset()
            raise

    def look(self, drawing: Drawing) -> dict[int, np.ndarray]:
        """Return previews `[h, w, 3]` uint8 of a drawing's unfinished pictures, by index."""
        newest = drawing.newest
        return {} if newest is None else self._finisher.look(drawing, newest)

    def drop(self, drawing: Drawing) -> None:
        """Forget a drawing; nothing comes of the evaluations of its pictures that are queued."""
        self._waiting.pop(drawing, None)
        for flight in self._flights:
            flight.parts[:] = [part for part in flight.parts if part.drawing is not drawing]
        for dropped in [each for each in self._decoded if each.drawing is drawing]:
            self._decoded.remove(dropped)
            dropped.pictures.cancel()
        for slot in [slot for slot, seat in self._seats.items() if seat.drawing is drawing]:
            self._leave(slot)

    def reset(self) -> None:
        """Forget all drawings and the state on the devices, as after a failure."""
        self._waiting.clear()
        self._seats.clear()
        self._flights.clear()
        for each in self._decoded:
            each.pictures.cancel()
        self._decoded.clear()
        self._slots = None

    def _advance(self, idle: bool) -> list[Progress]:
        if ended := self._drop_cancelled() + self._let_in():
            return ended  # at once: others can have their slots
        queued = bool(self._seats)
        if queued:
            self._flights.append(self._dispatch())
        moved: list[Drawing] = []
        if self._flights and (len(self._flights) > AHEAD or not queued):
            moved = self._collect(self._flights.popleft())
        finished = self._finished(idle and not (queued or moved))
        return [
            Progress(each, finished.get(each, ())) for each in dict.fromkeys([*moved, *finished])
        ]

    # --- entering and leaving

    def _drop_cancelled(self) -> list[Progress]:
        queued = (part.drawing for flight in self._flights for part in flight.parts)
        seated = (seat.drawing for seat in self._seats.values())
        decoded = (each.drawing for each in self._decoded)
        drawings = dict.fromkeys([*queued, *seated, *decoded, *self._waiting])
        stopped = [each for each in drawings if each.cancelled.is_set()]
        for drawing in stopped:
            drawing.stop()
            self.drop(drawing)
        return [Progress(drawing) for drawing in stopped]

    def _let_in(self) -> list[Progress]:
        """Let waiting pictures enter free slots; return the drawings that cannot be drawn."""
        failed: list[Progress] = []
        while self._waiting:
            drawing = next(iter(self._waiting))
            if self._unfinished >= MAX_DECODED * drawing.run.shapes.images:
                break
            if not self._fits(drawing):
                if self._seats or self._flights:
                    break
                try:
                    self._adapters.select(drawing.request.lora_weights)
                except Exception as error:  # the next drawing must not suffer from this one
                    drawing.error = error
                    del self._waiting[drawing]
                    failed.append(Progress(drawing))
                    continue
            slots = self._slots_of(drawing)
            free = slots.free(drawing.begun - drawing.entered)
            if not free:
                break
            pictures = {slot: drawing.entered + i for i, slot in enumerate(free)}
            slots.enter(drawing.start, pictures)
            self._seats |= {slot: _Seat(drawing, index) for slot, index in pictures.items()}
            drawing.entered += len(free)
            drawing.lora_hashes = self._adapters.hashes or drawing.lora_hashes
            if drawing.entered == drawing.begun:
                del self._waiting[drawing]
        return failed

    def _fits(self, drawing: Drawing) -> bool:
        """Return whether a drawing can enter beside the pictures in the slots."""
        same_size = self._slots is not None and self._slots.run is drawing.run
        return same_size and self._adapters.is_selected(drawing.request.lora_weights)

    def _slots_of(self, drawing: Drawing) -> Slots:
        """Return the slots of a drawing's size; others must be empty."""
        slots = self._slots
        if slots is None or slots.run is not drawing.run:
            slots = self._slots = Slots(drawing.run, None if slots is None else slots.context)
        return slots

    def _leave(self, slot: int) -> None:
        assert self._slots is not None
        del self._seats[slot]
        self._slots.leave(slot)

    # --- evaluations

    def _dispatch(self) -> _Flight:
        """Queue an evaluation of all pictures in slots, and the decoding of those it finishes."""
        assert self._slots is not None
        self._change_prompts(self._slots)
        rows = {
            slot: seat.drawing.work(seat.index, seat.evaluation)
            for slot, seat in self._seats.items()
        }
        before, after = self._slots.advance(rows)
        by_drawing: dict[Drawing, dict[int, int]] = {}
        for slot, seat in self._seats.items():
            by_drawing.setdefault(seat.drawing, {})[seat.index] = slot
        parts = [self._part(drawing, slots, after) for drawing, slots in by_drawing.items()]
        self.evaluations += 1
        self.picture_evaluations += len(rows)
        for slot, seat in [*self._seats.items()]:
            seat.evaluation += 1
            last = seat.drawing.evaluations
            seat.drawing.vacated += seat.evaluation == max(1, last - 1)
            if seat.evaluation == last:
                self._leave(slot)
        return _Flight(before, after, parts)

    def _change_prompts(self, slots: Slots) -> None:
        """Let prompts switch to the texts that they have from this evaluation on."""
        changed: dict[Drawing, dict[int, tuple[int, int]]] = {}
        for slot, seat in self._seats.items():
            texts = seat.drawing.texts(seat.index, seat.evaluation)
            if texts != seat.texts:
                seat.texts = texts
                changed.setdefault(seat.drawing, {})[slot] = texts
        for drawing, texts in changed.items():
            pictures = {slot: self._seats[slot].index for slot in texts}
            slots.switch(drawing.start, pictures, texts)

    def _part(self, drawing: Drawing, slots: dict[int, int], after: State) -> _Part:
        evaluations = {index: self._seats[slot].evaluation for index, slot in slots.items()}
        last = drawing.evaluations - 1
        ending = {index: slots[index] for index, each in evaluations.items() if each == last}
        final = self._finisher.decode(drawing, ending, after.latents) if ending else None
        return _Part(drawing, slots, evaluations, final)

    def _collect(self, flight: _Flight) -> list[Drawing]:
        """Wait for an evaluation; return the drawings that were in it."""
        jax.block_until_ready(flight.after)
        for part in flight.parts:
            self._complete(flight, part)
        return [part.drawing for part in flight.parts]

    def _complete(self, flight: _Flight, part: _Part) -> None:
        drawing, final = part.drawing, part.final
        drawing.newest = Evaluated(flight.before, flight.after, part.slots, part.evaluations)
        for index, evaluation in part.evaluations.items():
            drawing.steps[index] += evaluation + 1 in drawing.schedule.stops
        if final is not None:
            self._decoded.append(_Decoded(drawing, final, self._finisher.begin(drawing, final)))

    # --- what was decoded

    @property
    def _unfinished(self) -> int:
        """Number of pictures that are decoded, or will be after the evaluations in flight."""
        finals = [part.final for flight in self._flights for part in flight.parts if part.final]
        finals += [each.final for each in self._decoded]
        return sum(len(final.slots) for final in finals)

    def _finished(self, idle: bool) -> dict[Drawing, list[Picture]]:
        """Return what the worker has finished, after a moment if `idle`."""
        if idle and self._decoded:
            wait([each.pictures for each in self._decoded], _IDLE_S, FIRST_COMPLETED)
        finished: dict[Drawing, list[Picture]] = {}
        for each in [each for each in self._decoded if each.pictures.done()]:
            if each not in self._decoded:  # its drawing has just failed
                continue
            self._decoded.remove(each)
            drawing, pictures = each.drawing, finished.setdefault(each.drawing, [])
            try:
                pictures += each.pictures.result()
            except (NotFiniteError, ScreenError) as error:  # of this drawing alone
                drawing.error = error
                self.drop(drawing)
            if drawing.then is None:  # otherwise they are latents for the refiner
                drawing.pictures |= {picture.index: picture for picture in pictures}
        return finished
