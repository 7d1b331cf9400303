"""`python -m tests.slowly STEP_MS [the flags of app.py]`: the real program, drawing slowly.

The bundled model is quicker than a browser. Tests that act between two steps, or between the
pictures and the end of the events, need more time.
"""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

import app
from pipeline import BUNDLED, SDXLPipeline
from serving import bootstrap
from serving.generator import Event
from serving.requests.lifecycle import RequestLifecycle
from serving.settings import Options

END_S = 0.5


def program(step_ms: int) -> list[str]:
    """Return the arguments with which Python runs this program."""
    return ["-m", "tests.slowly", str(step_ms)]


def load(step_s: float, chosen: Options) -> tuple[SDXLPipeline, bool]:
    """Load a pipeline whose every step takes `step_s` longer, unless it is stopped."""
    pipe, bundled = bootstrap.load_pipeline(chosen)
    generate = pipe.generate

    def slowly(
        *given: Any, on_step: Any = None, cancelled: threading.Event | None = None, **named: Any
    ) -> Any:
        if on_step is None or cancelled is None:  # warm-up
            return generate(*given, **named)
        began = time.monotonic()

        def paced(step: int, *more: Any) -> None:
            # Each step ends at a fixed time, so that late wake-ups do not add up.
            cancelled.wait(began + step * step_s - time.monotonic())
            on_step(step, *more)

        return generate(*given, on_step=paced, cancelled=cancelled, **named)

    pipe.generate = slowly
    return pipe, bundled


async def ending_slowly(events: AsyncGenerator[Event]) -> AsyncGenerator[Event]:
    """Yield the events, and end a while after the last one."""
    async with aclosing(events):
        async for event in events:
            yield event
        await asyncio.sleep(END_S)


def end_slowly() -> None:
    """Delay the end of every request's events."""
    told = RequestLifecycle.events

    def events(self: RequestLifecycle, request_id: str) -> AsyncGenerator[Event]:
        return ending_slowly(told(self, request_id))

    RequestLifecycle.events = events


if __name__ == "__main__":
    end_slowly()
    step_ms, *flags = sys.argv[1:]
    try:
        app.main(["--model", str(BUNDLED), *flags], partial(load, float(step_ms) / 1000))
    except KeyboardInterrupt:
        sys.exit(130)
