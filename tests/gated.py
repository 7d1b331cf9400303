"""`python -m tests.gated GATE [the flags of app.py]`: the real program, which draws when told.

The bundled model is quicker than a browser. Tests that act between two steps need a drawing that
waits for them: after `FREE_STEPS` steps it stands until the file GATE tells of more, or until it is
stopped. The events of a request end a while after its pictures, as on a slow network.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import app
from pipeline import BUNDLED, SDXLPipeline
from serving import bootstrap
from serving.generator import Event
from serving.requests.lifecycle import RequestLifecycle
from serving.settings import Options

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

    def holds(self, done: int, cancelled: threading.Event) -> bool:
        """Return whether a drawing must go on waiting after a step; wait a moment if so."""
        try:
            free = int(self.file.read_text())
        except FileNotFoundError:
            free = FREE_STEPS
        return done >= free and not cancelled.wait(LOOK_S)


def load(gate: Gate, chosen: Options) -> tuple[SDXLPipeline, bool]:
    """Load a pipeline whose drawings wait at a gate."""
    pipe, bundled = bootstrap.load_pipeline(chosen)
    generate = pipe.generate

    def gated(
        *given: Any, on_step: Any = None, cancelled: threading.Event | None = None, **named: Any
    ) -> Any:
        if on_step is None or cancelled is None:  # warm-up
            return generate(*given, **named)

        def step(done: int, total: int, *more: Any) -> None:
            on_step(done, total, *more)
            while done < total and gate.holds(done, cancelled):
                on_step(done, total, *more)  # for pages that come while it waits

        return generate(*given, on_step=step, cancelled=cancelled, **named)

    pipe.generate = gated
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

    def events(self: RequestLifecycle, request_id: str) -> AsyncGenerator[Event]:
        return ending_late(told(self, request_id))

    RequestLifecycle.events = events


if __name__ == "__main__":
    end_late()
    gate, *flags = sys.argv[1:]
    try:
        app.main(["--model", str(BUNDLED), *flags], partial(load, Gate(Path(gate))))
    except KeyboardInterrupt:
        sys.exit(130)
