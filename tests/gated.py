"""`python -m tests.gated GATE [the flags of app.py]`: the real program, which draws when told.

The bundled model is quicker than a browser. Tests that act between two steps need a drawing that
waits for them: after `FREE_STEPS` steps it stands until the file GATE tells of more, or until it is
stopped. The events of a request end a while after its pictures, as on a slow network.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import app
from pipeline import BUNDLED
from pipeline.drawing.drawing import Drawing, Progress
from serving import bootstrap
from serving.generator import Event
from serving.requests.lifecycle import RequestLifecycle
from serving.settings import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

FREE_STEPS, ALL_STEPS = 5, 1000
LOOK_S = 0.1
END_S = 0.5


@dataclass(frozen=True)
class Gate:
    """The gate of a program: a file that tells up to which step it draws; none if it is closed."""

    file: Path

    @property
    def program(self) -> list[str]:
        """The arguments with which Python runs the program behind this gate."""
        return ["-m", "tests.gated", str(self.file)]

    @contextmanager
    def open(self, steps: int = ALL_STEPS) -> Iterator[None]:
        """Let requests be drawn up to a step inside this context, by default to their end."""
        written = self.file.with_suffix(".new")
        written.write_text(str(steps))
        written.replace(self.file)
        try:
            yield
        finally:
            self.file.unlink()

    def holds(self, drawing: Drawing) -> bool:
        """Return whether a drawing must wait before its next step."""
        try:
            free = int(self.file.read_text())
        except FileNotFoundError:
            free = FREE_STEPS
        stops = drawing.is_over or drawing.cancelled.is_set()
        return not stops and free <= max(drawing.steps) < drawing.total


def load(gate: Gate, chosen: Options) -> tuple["SDXLPipeline", bool]:
    """Load a pipeline whose devices wait at a gate as soon as one of its drawings must."""
    pipe, bundled = bootstrap.load_pipeline(chosen)
    begin, advance = pipe.begin, pipe.advance
    drawings = set[Drawing]()

    def noted(drawing: Drawing, pictures: int | None = None) -> None:
        drawings.add(drawing)
        begin(drawing, pictures)

    def gated() -> list[Progress]:
        if any(map(gate.holds, drawings)):
            time.sleep(LOOK_S)
            return []
        moved = advance()
        drawings.difference_update([each for each in drawings if each.is_over])
        return moved

    pipe.begin, pipe.advance = noted, gated
    return pipe, bundled


async def ending_late(events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Yield the events, and end a while after the last one."""
    async with aclosing(events):
        async for event in events:
            yield event
        await asyncio.sleep(END_S)


def end_late() -> None:
    """Delay the end of every request's events."""
    told = RequestLifecycle.events

    def events(
        self: RequestLifecycle, request_id: str, pause_s: float | None = None
    ) -> AsyncGenerator[Event]:
        return ending_late(told(self, request_id, pause_s))

    RequestLifecycle.events = events


if __name__ == "__main__":
    end_late()
    gate, *flags = sys.argv[1:]
    try:
        app.main(["--model", str(BUNDLED), *flags], partial(load, Gate(Path(gate))))
    except KeyboardInterrupt:
        sys.exit(130)
