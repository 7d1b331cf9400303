"""The time from a cold start of `python app.py` until its page answers."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

from benchmarks.processes import free_port

LIMIT_SECONDS = 1800


def seconds_until_ready(arguments: list[str]) -> float:
    """Start the app on a free port, wait for its page, and stop it.

    Raises:
        RuntimeError: if the app ends, or does not answer within `LIMIT_SECONDS`.
    """
    port = free_port()
    begin = time.perf_counter()
    command = [sys.executable, "app.py", "--port", str(port), *arguments]
    app = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while app.poll() is None and time.perf_counter() - begin < LIMIT_SECONDS:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
                return round(time.perf_counter() - begin, 2)
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise RuntimeError("the page did not answer")
    finally:
        app.terminate()
        app.wait()
