"""The one thread that owns the devices. It draws the pictures in all slots at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from pipeline.drawing.drawing import Drawing, Picture, Progress
from serving.generators.picture_files import Previews

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

T = TypeVar("T")


@dataclass(frozen=True)
class News:
    """News of a drawing after an evaluation.

    Attributes:
        steps: the number of completed steps of each picture.
        vacated: the number of its pictures whose slots others can have.
        finished: the pictures that have become finished.
        previews: JPEG files of unfinished pictures, by index.
        error: the reason why it ended early; None if it did not.
        is_over: whether these are the last news.
    """

    steps: tuple[int, ...]
    vacated: int
    finished: Sequence[Picture]
    previews: Mapping[int, bytes]
    error: Exception | None
    is_over: bool


@dataclass(eq=False)
class _Follower:
    """The receiver of a drawing's news, with its previews; None if it wants none."""

    tell: Callable[[News], object]
    previews: Previews | None
    vacated: int = 0  # as it was told
    finished: set[int] = field(default_factory=set)  # the pictures that it was told of


@dataclass(frozen=True)
class _Job:
    """Work for the thread; `alone` if the slots must be empty."""

    run: Callable[[], object]
    alone: bool = False


class Devices:
    """The thread that owns the devices.

    It lets the pictures that it is given wait for slots, advances all pictures in the slots while
    there are any, and tells each drawing's news. A call, such as warming up, runs when the slots
    are empty. Pictures that are given later wait for it.

    Args:
        pipe: the pipeline, whose slots nothing else uses.
        evaluated: called on the thread with the numbers of evaluations and of pictures in them,
            summed up, since the last call.
    """

    def __init__(self, pipe: SDXLPipeline, evaluated: Callable[[int, int], object]) -> None:
        self._pipe = pipe
        self._evaluated = evaluated
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devices")
        self._lock = Lock()
        self._driving = False  # whether the thread is at work
        self._jobs: deque[_Job] = deque()
        self._followers: dict[Drawing, _Follower] = {}
        self._heard_at: float | None = None
        self._counted = 0, 0

    @property
    def heard_at(self) -> float | None:
        """`time.monotonic()` of the devices' last sign; None while they have nothing to do."""
        return self._heard_at

    def hear(self) -> None:
        """Note a sign of the devices during a call."""
        self._heard_at = time.monotonic()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the thread while the slots are empty."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._add(_Job(run, alone=True))
        return future

    def draw(
        self, drawing: Drawing, pictures: int, tell: Callable[[News], object], previews: bool
    ) -> None:
        """Let a drawing's next pictures wait for slots; do nothing if it has ended.

        Args:
            drawing: the drawing.
            pictures: the number of pictures.
            tell: called on the thread with its news; the first one given is used.
            previews: whether the news have previews.
        """

        def run() -> None:
            if drawing.begun == 0:
                self._followers[drawing] = _Follower(tell, Previews() if previews else None)
            if drawing in self._followers:
                self._pipe.begin(drawing, pictures)

        self._add(_Job(run))

    def stop_paused(self) -> None:
        """End the cancelled drawings without pictures in slots; others end by themselves."""

        def run() -> None:
            for drawing in [*self._followers]:
                if drawing.is_paused and drawing.cancelled.is_set():
                    drawing.stop()
                    self._tell(drawing)

        self._add(_Job(run))

    def close(self) -> None:
        """Take no more work; the thread ends when it has done the rest."""
        self._thread.shutdown(wait=False)

    # --- the thread

    def _add(self, job: _Job) -> None:
        with self._lock:
            self._jobs.append(job)
            if not self._driving:
                self._thread.submit(self._drive)
                self._driving, self._heard_at = True, time.monotonic()

    def _drive(self) -> None:
        try:
            while self._has_work():
                self._run_jobs()
                if self._pipe.is_busy:
                    self._advance()
        except BaseException:  # the news could not be told: the event loop is closed
            self._driving, self._heard_at = False, None
            raise

    def _has_work(self) -> bool:
        with self._lock:
            self._driving = bool(self._jobs) or self._pipe.is_busy
            if not self._driving:
                self._heard_at = None
            elif not self._pipe.is_finishing:  # a check of pictures may never end
                self._heard_at = time.monotonic()
            return self._driving

    def _run_jobs(self) -> None:
        while self._jobs and not (self._jobs[0].alone and self._pipe.is_busy):
            self._jobs.popleft().run()

    def _advance(self) -> None:
        try:
            updates = self._pipe.advance()
            looks = self._looks(updates)
        except Exception as error:  # drawings without pictures in slots must not suffer
            self._pipe.reset()
            for drawing in [*self._followers]:
                if not (drawing.is_paused or drawing.is_over):
                    drawing.error = error
                self._tell(drawing)
            return
        self._count()
        self._tell_all(updates, looks)

    def _count(self) -> None:
        old_counts, self._counted = self._counted, self._pipe.evaluated
        evaluations, pictures = (
            new_count - old_count
            for new_count, old_count in zip(self._counted, old_counts, strict=True)
        )
        if evaluations:
            self._evaluated(evaluations, pictures)

    def _looks(self, updates: Sequence[Progress]) -> dict[Drawing, dict[int, bytes]]:
        """Return the previews that are due, of drawings that moved."""
        count = sum(follower.previews is not None for follower in self._followers.values())
        looks: dict[Drawing, dict[int, bytes]] = {}
        for drawing in [update.drawing for update in updates if not update.drawing.is_over]:
            if (previews := self._followers[drawing].previews) is not None:
                looks[drawing] = previews.make(partial(self._pipe.look, drawing), among=count)
        return looks

    def _tell_all(
        self, updates: Sequence[Progress], looks: Mapping[Drawing, Mapping[int, bytes]]
    ) -> None:
        have_moved = {update.drawing for update in updates}
        for drawing, follower in [*self._followers.items()]:
            if drawing in have_moved or drawing.vacated != follower.vacated:
                self._tell(drawing, looks.get(drawing))

    def _tell(self, drawing: Drawing, previews: Mapping[int, bytes] | None = None) -> None:
        follower = self._followers[drawing]
        follower.vacated = drawing.vacated
        # A picture may have been finished just before a failure.
        pictures = [
            picture
            for index, picture in sorted(drawing.pictures.items())
            if index not in follower.finished
        ]
        follower.finished.update(picture.index for picture in pictures)
        if drawing.is_over:
            del self._followers[drawing]
        if drawing.is_over or drawing.is_paused:
            drawing.forget()
        news = News(
            steps=tuple(drawing.steps),
            vacated=drawing.vacated,
            finished=pictures,
            previews=previews or {},
            error=drawing.error,
            is_over=drawing.is_over,
        )
        follower.tell(news)
