"""`python -m tests.slowly STEP_MS [the flags of app.py]`: the real program, drawing slowly.

The bundled model is quicker than a browser: what is to happen between two steps needs more time.
"""

import sys
import threading
import time
from functools import partial
from typing import Any

import app
from pipeline import BUNDLED, SDXLPipeline
from serving import start
from serving.options import Options


def program(step_ms: int) -> list[str]:
    """Its command, behind Python's."""
    return ["-m", "tests.slowly", str(step_ms)]


def load(step_s: float, chosen: Options) -> tuple[SDXLPipeline, bool]:
    """See `serving.start.load_pipeline`; every step takes so long, as long as nobody stops it."""
    pipe, bundled = start.load_pipeline(chosen)
    generate = pipe.generate

    def slowly(
        *given: Any, on_step: Any = None, cancelled: threading.Event | None = None, **named: Any
    ) -> Any:
        if on_step is None or cancelled is None:  # the model is warmed up
            return generate(*given, **named)
        began = time.monotonic()

        def paced(step: int, *more: Any) -> None:
            # By the clock, so that waking up late does not add up.
            cancelled.wait(began + step * step_s - time.monotonic())
            on_step(step, *more)

        return generate(*given, on_step=paced, cancelled=cancelled, **named)

    pipe.generate = slowly
    return pipe, bundled


if __name__ == "__main__":
    step_ms, *flags = sys.argv[1:]
    try:
        app.main(["--model", str(BUNDLED), *flags], partial(load, float(step_ms) / 1000))
    except KeyboardInterrupt:
        sys.exit(130)
