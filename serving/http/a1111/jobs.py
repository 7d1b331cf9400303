"""Calls for pictures that are under way, which their own clients can follow and stop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from serving.generator import Event, Generator, Preview, Queued, RequestError, Started, Step


@dataclass
class Job:
    """One call for pictures.

    Attributes:
        kind: "txt2img" or "img2img".
        count: number of requests that it takes.
        done: number of those that are over.
        request_id: id of the request under way, "" between requests.
        step, steps: progress of that request.
        queued: its position in the queue, None if it is drawn.
        previews: the newest previews of its pictures, JPEG files.
        skipped: whether its client wants no more of that request.
        interrupted: whether its client wants no more of the job.
    """

    kind: str
    count: int
    done: int = 0
    request_id: str = ""
    step: int = 0
    steps: int = 0
    queued: int | None = None
    previews: tuple[bytes, ...] = ()
    skipped: bool = False
    interrupted: bool = False
    timestamp: str = field(default_factory=lambda: datetime.now().strftime("%Y%m%d%H%M%S"))
    began_at: float = field(default_factory=time.monotonic)

    def begin(self, request_id: str) -> None:
        """Note that a request begins."""
        self.request_id, self.step, self.steps = request_id, 0, 0
        self.skipped, self.queued, self.previews = False, None, ()

    def note(self, event: Event) -> None:
        """Note an event of the request under way."""
        if isinstance(event, Queued):
            self.queued = event.position
        elif isinstance(event, Started):
            self.queued = None
        elif isinstance(event, Step):
            self.step, self.steps = event.done, event.total
        elif isinstance(event, Preview):
            self.previews = event.jpegs

    def end(self) -> None:
        """Note that the request is over."""
        self.request_id = ""
        self.done += 1

    @property
    def is_stopped(self) -> bool:
        """Whether its client wants no more of the request under way."""
        return self.skipped or self.interrupted

    @property
    def progress(self) -> float:
        """Share of the job that is done, from 0 to 1."""
        share = self.step / self.steps if self.steps else 0.0
        return min((self.done + share) / self.count, 1.0)


class Jobs:
    """The jobs of each visitor, oldest first. A visitor sees and stops only jobs of its own."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._jobs: dict[str, list[Job]] = {}

    @contextmanager
    def begun(self, visitor: str, job: Job) -> Iterator[Job]:
        """Have a job among those of a visitor until the block ends."""
        jobs = self._jobs.setdefault(visitor, [])
        jobs.append(job)
        try:
            yield job
        finally:
            jobs.remove(job)
            if not jobs:
                del self._jobs[visitor]

    def current(self, visitor: str) -> Job | None:
        """Return a visitor's oldest job, as AUTOMATIC1111 draws one after the other."""
        jobs = self._jobs.get(visitor)
        return jobs[0] if jobs else None

    def interrupt(self, visitor: str) -> None:
        """Stop a visitor's current job, if there is one."""
        if job := self.current(visitor):
            job.interrupted = True
            self._stop(job)

    def skip(self, visitor: str) -> None:
        """Stop the request under way of a visitor's current job, if there is one."""
        job = self.current(visitor)
        if job and job.request_id:
            job.skipped = True
            self._stop(job)

    def _stop(self, job: Job) -> None:
        if job.request_id:
            with suppress(RequestError):  # it has not been submitted yet
                self._generator.cancel(job.request_id)
