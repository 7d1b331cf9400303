"""Startup steps shared by the processes that draw or serve a page."""

import logging
import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serving import scratch, screen
from serving.http.auth import Access, ApiKeys, Users, digests_of, parse_users
from serving.http.watched_file import WatchedFile
from serving.metrics import Observer
from serving.requests import blocked_words
from serving.requests.blocked_words import BlockedWords
from serving.requests.registry import Limits
from serving.settings import Options

if TYPE_CHECKING:
    from pipeline import SDXLPipeline
    from serving.requests.lifecycle import RequestLifecycle

log = logging.getLogger(__name__)

Size = tuple[int, int]

# Above `serving.http.server.MAX_CONNECTIONS`: each is an open file, as are pictures and the model.
_OPEN_FILES = 8192


def prepare_environment() -> None:
    """Disable telemetry, make a temporary folder for this process, and allow more open files."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    # Gradio remembers this many calls for its monitoring page, which is closed here.
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    os.environ["GRADIO_TEMP_DIR"] = str(scratch.make_folder())
    _allow_open_files()


def _allow_open_files() -> None:
    """Raise the limit of open files, which is 1024 per process on most systems."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def load_pipeline(options: Options) -> "tuple[SDXLPipeline, bool]":
    """Load the pipeline, compile it for the first size and warm it up.

    Returns:
        The pipeline, and whether its model is the bundled one.

    Raises:
        CheckpointError, DeviceError, InputError, OSError: if the pipeline cannot be loaded; the
            message says why.
    """
    # JAX is imported only in processes that draw.
    from pipeline import BUNDLED, SDXLPipeline
    from pipeline.default_model import choose_model
    from pipeline.images import preparing
    from pipeline.runtime.mesh import cores_as_devices

    cores_as_devices(options.images_per_request)
    screening = screen.find(options.screen) if options.screen else None
    preparing.add_preprocessors(options.preprocessors)
    model, revision = choose_model(options.model_id, options.revision)
    bundled = Path(model).resolve() == BUNDLED.resolve()
    log.info("Loading %s", model)
    width, height = options.sizes[0] if options.sizes else (None, None)
    pipe = SDXLPipeline.from_pretrained(
        model,
        revision=revision,
        height=height,
        width=width,
        images_per_request=options.images_per_request,
        num_inference_steps=options.steps,
        cache_dir=options.cache_dir,
        scheduler=options.scheduler,
        safety_checker=options.safety_checker,
        screen=screening,
        vae=options.vae_id,
        tiny_vae=options.tiny_vae,
        unet=options.unet_id,
        prompt_chunks=options.prompt_chunks,
        refiner=options.refiner_id,
        step_cache=options.step_cache,
        devices_per_picture=options.devices_per_picture,
        quantization=options.quantization,
        wildcard_dir=options.wildcard_dir,
        model_memory=options.model_memory,
        models=options.models,
        more_sizes=[(height, width) for width, height in options.sizes[1:]],
        controlnets={} if bundled or options.control_dir else None,
    )
    return pipe, bundled


def local_generator(
    options: Options,
    limits: Limits,
    observer: Observer,
    loaded: "tuple[SDXLPipeline, bool]",
) -> "RequestLifecycle":
    """Return a generator over the result of `load_pipeline`."""
    from pipeline import BUNDLED
    from serving.generators.local import Folders, LocalDrawer
    from serving.generators.watched import ControlFolder, EmbeddingFolder, LoraFolder, ModelFolder
    from serving.requests.lifecycle import RequestLifecycle

    pipe, bundled = loaded
    lora_dir = options.lora_dir or (BUNDLED / "loras" if bundled else None)
    control_dir = options.control_dir or (BUNDLED / "controls" if bundled else None)
    embedding_dir = options.embedding_dir
    drawer = LocalDrawer(
        pipe,
        limits,
        observer,
        bundled=bundled,
        more_sizes=_fitting(pipe, options.sizes[1:]),
        reveal=options.reveal,
        folders=Folders(
            LoraFolder(lora_dir) if lora_dir else None,
            EmbeddingFolder(pipe, embedding_dir) if embedding_dir else None,
            ModelFolder(pipe, options.model_dir, options.cache_dir) if options.model_dir else None,
            ControlFolder(pipe, control_dir) if control_dir else None,
        ),
        live=options.live,
    )
    return RequestLifecycle(drawer, limits, observer)


def _fitting(pipe: "SDXLPipeline", sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes, each (width, height), that fit into the memory; log the others."""
    from pipeline import DeviceError

    fitting: list[Size] = []
    for size in sizes:
        try:
            pipe.check_memory([(height, width) for width, height in (*fitting, size)])
        except DeviceError as error:
            log.error("Pictures of %dx%d cannot be drawn: %s", *size, error)
        else:
            fitting.append(size)
    return tuple(fitting)


def limits(options: Options) -> Limits:
    """Return the limits of a generator.

    Raises:
        ValueError: if the file with the blocked words cannot be used; the message says why.
    """
    return Limits(
        max_waiting=options.max_waiting,
        waiting_s=options.max_wait,
        running_s=options.max_run,
        grace_s=options.grace,
        kept=options.keep_results,
        kept_s=options.keep_seconds,
        rate_per_address=options.rate_per_address,
        rate_per_session=options.rate_per_session,
        blocked=BlockedWords()
        if options.blocked_words is None
        else blocked_words.read(options.blocked_words),
    )


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Return a socket that listens for connections.

    Args:
        host: a name, or an IPv4 or IPv6 address.
        port: 0 for any free port.
        reuse_port: whether another process may listen on this port too.

    Raises:
        OSError: if the address or port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, reuse_port=reuse_port)


def access(options: Options) -> Access:
    """Return who may use the APIs and the page; changes of the files count from then on.

    Raises:
        ValueError: if a file or the passphrase cannot be used; the message says why.
    """
    keys, users = ApiKeys(), None
    if (file := options.api_keys_file) is not None:
        keys = ApiKeys(WatchedFile("API_KEYS_FILE", file, lambda text: digests_of(text.split())))
    if (file := options.page_users_file) is not None:
        users = Users(WatchedFile("PAGE_USERS_FILE", file, parse_users))
    elif (passphrase := options.page_passphrase) is not None:
        users = Users.with_passphrase(passphrase.get_secret_value())
    if users is not None and options.api_keys_file is None:
        log.warning(
            "Visitors of the page sign in, but everybody can draw with the APIs: "
            "set API_KEYS_FILE to ask programs for a key"
        )
    return Access(keys, users)
