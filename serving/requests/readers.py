"""Threads that read what strangers send, which the page and all APIs share.

Nothing else waits for them: pictures are encoded on other threads.
"""

from anyio.lowlevel import RunVar

from serving.requests.workers import Workers

# Calls that read, or wait for that: in all, and of one address.
MOST_READING, MOST_READING_EACH = 64, 8

_BODIES = RunVar[Workers]("bodies")
_PROMPTS = RunVar[Workers]("prompts")
_SETTINGS = RunVar[Workers]("settings")


def of_bodies() -> Workers:
    """Return the threads of this event loop that parse large bodies of calls."""
    return _shared(_BODIES, threads=1)


def of_settings() -> Workers:
    """Return the threads of this event loop that read settings in pictures and in texts."""
    return _shared(_SETTINGS, threads=1)


def of_prompts() -> Workers:
    """Return the threads of this event loop that read and measure prompts."""
    return _shared(_PROMPTS, threads=2)


def _shared(variable: RunVar[Workers], threads: int) -> Workers:
    if (workers := variable.get(None)) is None:
        workers = Workers(threads, MOST_READING, MOST_READING_EACH)
        variable.set(workers)
    return workers
