"""Calls of `fetch` in processes of their own, because the Hub's client reads its environment once.

They fork from one process that has imported the package, which saves them most of their start.
"""

import multiprocessing
import os
import resource
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from pipeline.errors import CheckpointError

WITHIN_S = 300

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pipeline.families", "pipeline.checkpoints.source"])


def fetch_with(
    environment: Mapping[str, str], largest_file: int, options: Mapping[str, Any]
) -> list[Any]:
    """Return the folder, model, revision and weights that `fetch` finds in an environment.

    In place of the folder of a single file, its own path is returned; it has no weights.

    Args:
        environment: all environment variables.
        largest_file: limit of the size of files, in bytes.
        options: arguments of `fetch`, and of its `FamilyReader`.

    Raises:
        CheckpointError: the error of `fetch`.
    """
    receiver, sender = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(
        target=_fetch, args=(dict(environment), largest_file, dict(options), sender)
    )
    process.start()
    sender.close()
    try:
        assert receiver.poll(WITHIN_S), "no answer"
        found, error = receiver.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"fetch ended with {process.exitcode}") from None
    process.join()
    if error is not None:
        raise CheckpointError(error)
    return found


def _fetch(
    environment: dict[str, str], largest_file: int, options: dict[str, Any], sender: Connection
) -> None:
    from pipeline.checkpoints.single_file import SingleFileCheckpoint
    from pipeline.checkpoints.source import fetch, fetch_component
    from pipeline.families import FamilyReader
    from pipeline.families.single_files import VAE_FILE

    os.environ.clear()
    os.environ.update(environment)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    scheduler, checker = options.pop("scheduler", None), options.pop("safety_checker", True)
    vae = options.pop("vae", None)
    try:
        other = None if vae is None else fetch_component(vae, "vae", VAE_FILE)
        reader = FamilyReader(scheduler, checker, other)
        arguments: dict[str, Any] = {"revision": None, **options}
        found: Any = fetch(reader=reader, **arguments)
    except CheckpointError as error:
        sender.send((None, str(error)))
    else:
        is_file = isinstance(found, SingleFileCheckpoint)
        path, weights = (found.file, {}) if is_file else (found.folder, found.weights)
        sender.send(([str(path), found.model, found.revision, weights], None))
