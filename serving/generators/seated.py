"""A request whose pictures have turns: the state of its drawing, on the event loop."""

import asyncio
import threading
import time
from dataclasses import dataclass, field

from pipeline.drawing.drawing import Drawing
from serving.generator import Error


@dataclass(eq=False)
class Seated:
    """A request that has had a turn for each of its first pictures.

    Attributes:
        stop: stops its drawing once it is set.
        changed: set when it gets a turn, or when it is over.
        turns_at: `time.monotonic()` of each turn; picture i has turn i.
        given: number of pictures that were given to the devices.
        vacated: number of pictures whose slots others can have.
        drawing: its drawing, once it is prepared.
        done: number of steps that were published.
        looks: JPEG files of the pictures as they look at present, by index.
        files: the tasks that encode and publish its pictures, in order.
        error: the reason why it ends early; None if it does not.
        is_over: whether nothing of it is drawn any more.
        programs: the programs that draw it; see `Facts.programs_of`.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turns_at: list[float] = field(default_factory=list)
    given: int = 0
    vacated: int = 0
    drawing: Drawing | None = None
    done: int = 0
    looks: dict[int, bytes] = field(default_factory=dict)
    files: list[asyncio.Task[None]] = field(default_factory=list)
    error: Error | None = None
    is_over: bool = False
    programs: str = ""

    @property
    def in_slots(self) -> int:
        """Number of slots that it has, or that are kept for it."""
        return 0 if self.is_over else len(self.turns_at) - self.vacated

    def take_turn(self) -> None:
        """Use a turn for its next picture."""
        self.turns_at.append(time.monotonic())
        self.changed.set()

    def give(self) -> int:
        """Return the number of pictures that have a turn and were not given, now they are."""
        count = len(self.turns_at) - self.given
        self.given += count
        return count

    def end(self, error: Error | None = None) -> None:
        """Note that nothing of it is drawn any more."""
        self.error = self.error or error
        self.is_over = True
        self.changed.set()
