"""Entry point: reads the settings, builds the generator and the page, and runs the server.

`python app.py --help` lists the settings.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipeline.facts import Facts
from serving import bootstrap, logs, scratch, settings
from serving.generator import Generator
from serving.http.auth import Access
from serving.metrics import Observer
from serving.requests.registry import Limits
from serving.settings import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

    # Returns the pipeline, and whether its model is the bundled one.
    Load = Callable[[Options], tuple[SDXLPipeline, bool]]

log = logging.getLogger("app")

# The program's name in messages: it has a package where it is installed, and none in a checkout.
PROG = "sdxl-jax serve" if __package__ else "app.py"
_INTERRUPTED = 130  # the exit status that shells give to Ctrl+C


def main(arguments: Sequence[str], load: "Load | None" = None) -> None:
    """Serve the page until a signal stops the process.

    Args:
        arguments: the flags of the command line.
        load: returns the pipeline; None loads the model that the settings name.
    """
    chosen = settings.read(arguments, os.environ, PROG)
    logs.start(chosen.log_format)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_loading)
    for warning in settings.misspelt(os.environ):
        log.warning("%s", warning)
    _check_address(chosen.host, chosen.port)
    bootstrap.prepare_environment()

    try:
        access = bootstrap.access(chosen)
    except ValueError as error:
        _give_up(str(error))
    try:
        limits = bootstrap.limits(chosen)
    except ValueError as error:
        _give_up(f"--blocked-words: {error}")
    observer = Observer(log_prompts=chosen.log_prompts)
    if chosen.backend_urls:
        generator = _connect(chosen, limits, observer)
    else:
        generator = bootstrap.local_generator(chosen, limits, observer, (load or _load)(chosen))
    _serve(generator, observer, access, chosen)


def _stop_loading(number: int, _: object) -> None:
    """End the process at once: its exit would wait for threads that read or compile."""
    scratch.remove_made()
    os._exit(0 if number == signal.SIGTERM else _INTERRUPTED)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not break the shutdown
    sys.exit(0)


def _check_address(host: str, port: int) -> None:
    """Exit if the page cannot be served at this address, before the model is loaded."""
    try:
        bootstrap.listen(host, port).close()
    except OSError as error:
        _give_up(f"cannot listen on {host}, port {port}: {error.strerror}")


def _load(chosen: Options) -> "tuple[SDXLPipeline, bool]":
    # Here and below, JAX and Gradio are imported late: a wrong option is then reported at once.
    from pipeline import CheckpointError, DeviceError, InputError

    started = time.monotonic()
    try:
        pipe, bundled = bootstrap.load_pipeline(chosen)
    except (CheckpointError, DeviceError, InputError, OSError) as error:
        _give_up(str(error))
    log.info("Ready after %.1f s on %s", time.monotonic() - started, pipe.facts.device)
    return pipe, bundled


def _connect(chosen: Options, limits: Limits, observer: Observer) -> Generator:
    """Return a generator that sends requests to other instances, once one of them is ready."""
    from serving import waiting
    from serving.generators.client import Client, LoopError
    from serving.generators.remote import RemoteDrawer
    from serving.requests.lifecycle import RequestLifecycle

    headers = _backend_headers(chosen.backend_key_file)
    urls = chosen.backend_urls

    async def first_model() -> Facts:
        async with Client(headers) as client:
            at = waiting.config(chosen.host, chosen.port)
            return await waiting.wait_for_model(client, urls, at)

    try:
        model = asyncio.run(first_model())
    except LoopError as error:
        _give_up(f"--backend-urls: {error}")
    log.info("%s draws at %s", model.name, ", ".join(urls))
    drawer = RemoteDrawer(Client(headers), urls, model, observer)
    return RequestLifecycle(drawer, limits, observer)


def _serve(generator: Generator, observer: Observer, access: Access, chosen: Options) -> None:
    from serving.generators.client import http_url
    from ui import server as page_server

    server = page_server.build(generator, observer, access, chosen)
    log.info("Open %s", http_url(chosen.host, chosen.port))
    status = 0
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        server.run()
    except KeyboardInterrupt:
        status = _INTERRUPTED
        raise
    finally:
        if generator.at_work:
            _leave(status)


def _leave(status: int) -> NoReturn:
    """End the process without joining its threads: a device may block one for ever."""
    log.warning("A task did not stop in time; it ends with the process")
    scratch.remove_made()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _backend_headers(file: Path | None) -> dict[str, str]:
    """Return the headers of requests to other instances, with the key that they ask for."""
    if file is None:
        return {}
    try:
        keys = file.read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        _give_up(f"--backend-key-file: {file} cannot be used: {error}")
    if not keys:
        _give_up(f"--backend-key-file: {file} cannot be used: it is empty; write the key into it")
    return {"Authorization": f"Bearer {keys[0]}"}


def _give_up(message: str) -> NoReturn:
    print(f"{PROG}: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
