"""`python -m tests.gated GATE [the flags of app.py]`: the real program, which draws when told.

The bundled model is quicker than a browser. Tests that act between two steps need a drawing that
waits for them: after `FREE_STEPS` steps it stands until the file GATE exists, or until it is
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

FREE_STEPS = 5
LOOK_S = 0.1
END_S = 0.5


@dataclass(frozen=True)
class Gate:
    """The gate of a program: a file, which exists while the gate is open."""

    file: Path

    @property
    def program(self) -> list[str]:
        """The arguments with which Python runs the program behind this gate."""
        return ["-m", "tests.gated", str(self.file)]

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let requests be drawn to their end inside this context."""
        self.file.touch()
        try:
            yield
        finally:
            self.file.unlink()

    def holds(self, cancelled: threading.Event) -> bool:
        """Wait a moment; return whether a drawing that is not cancelled must go on waiting."""
        return not self.file.exists() and not cancelled.wait(LOOK_S)


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
            while done == FREE_STEPS < total and gate.holds(cancelled):
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
