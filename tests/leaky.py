"""`python -m tests.leaky [the flags of app.py]`: the real program, which keeps something for good.

It keeps 4 MB, a thread and an open file for each request.
"""

import os
import sys
from threading import Event, Thread
from typing import Any

import app
from serving.generator import Request
from serving.requests.lifecycle import RequestLifecycle

kept: list[Any] = []
submit = RequestLifecycle.submit


async def leak(self: RequestLifecycle, request: Request) -> None:
    """Take in a request, and keep something of it."""
    kept.append((b"x" * 4_000_000, os.open(os.devnull, os.O_RDONLY)))
    Thread(target=Event().wait, daemon=True).start()
    await submit(self, request)


if __name__ == "__main__":
    RequestLifecycle.submit = leak
    app.main(sys.argv[1:])
