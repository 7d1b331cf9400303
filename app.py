"""The Space: settings -> backend -> page -> launch. `python app.py --help` tells the settings."""

import atexit
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from serving import options
from serving.options import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger("app")


def main() -> None:
    """Starts the page and serves it until told to stop."""
    chosen = options.read(sys.argv[1:], os.environ)
    _start_log()
    signal.signal(signal.SIGTERM, _stop)
    _check_address(chosen.host, chosen.port)
    _prepare_environment()

    started = time.monotonic()
    model, revision = _choose_model(chosen)
    log.info("Loading %s", model)
    pipe = _load(model, revision, chosen)
    log.info("Ready after %.1f s on %s", time.monotonic() - started, pipe.device_kind)
    _serve(pipe, model, chosen)


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    sys.exit(0)


def _start_log() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    for ours in ("app", "pipeline", "serving", "ui"):
        logging.getLogger(ours).setLevel(logging.INFO)


def _check_address(host: str, port: int) -> None:
    """Fails at once, not after the model was loaded, if the page cannot be served there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        _give_up(f"cannot listen on {host}, port {port}: {error.strerror}")


def _prepare_environment() -> None:
    """Nothing calls home, and every picture served lies in a folder that ends with the process."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    folder = tempfile.mkdtemp(prefix="sdxl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = folder


def _choose_model(chosen: Options) -> tuple[str, str | None]:
    # Here and below, JAX and Gradio are imported once the options are known to be good.
    from pipeline.default_model import choose_model

    return choose_model(chosen.model, chosen.revision)


def _load(model: str, revision: str | None, chosen: Options) -> "SDXLPipeline":
    from pipeline import CheckpointError, InputError, SDXLPipeline

    try:
        return SDXLPipeline.from_pretrained(
            model,
            revision=revision,
            height=chosen.height,
            width=chosen.width,
            images_per_request=chosen.images,
            num_inference_steps=chosen.steps,
            cache_dir=chosen.cache_dir,
            scheduler=chosen.scheduler,
        )
    except (CheckpointError, InputError, OSError) as error:
        _give_up(str(error))


def _serve(pipe: "SDXLPipeline", model: str, chosen: Options) -> None:
    from pipeline import BUNDLED
    from serving.local import LocalGenerator
    from ui import theme
    from ui.kinds import kind_of
    from ui.page import build_page

    is_bundled = Path(model).resolve() == Path(BUNDLED).resolve()
    generator = LocalGenerator(pipe)
    page = build_page(generator, kind_of(model, bundled=is_bundled), max_waiting=chosen.max_waiting)
    log.info("Open http://%s:%d", chosen.host, chosen.port)
    try:
        page.launch(
            server_name=chosen.host,
            server_port=chosen.port,
            theme=theme.theme(),
            css_paths=theme.CSS,
            footer_links=["api"],
            share=False,
            ssr_mode=False,
            run_history=False,
            enable_monitoring=False,
            max_file_size="1mb",
            quiet=True,
        )
    finally:
        generator.close()


def _give_up(message: str) -> NoReturn:
    print(f"app.py: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
