"""The LoRAs that a pipeline holds in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline import DeviceError
from pipeline.errors import raise_if_cancelled
from serving.folders import File, Stamp
from serving.generator import ErrorKind, RequestError
from serving.generators.watched import LoraFolder
from serving.messages import Code, Message

if TYPE_CHECKING:
    from pipeline import SDXLPipeline

log = logging.getLogger(__name__)

# Bytes of the files whose LoRAs are kept. A LoRA of SDXL has 20 to 900 MB, most have 220.
MOST_BYTES = 2 * 2**30
# Seconds of a processor that loading a LoRA may take; the largest ones take a few.
MOST_SECONDS = 60.0


class LoadedLoras:
    """LoRAs that are loaded when they are first asked for; the latest ones asked for are kept.

    Its methods change the pipeline, so one thread at a time calls them. A file that cannot be used,
    or takes too long, is logged and not tried again until it changes.

    Args:
        pipe: the pipeline.
        folder: the folder of the LoRAs.
        clock: the time in seconds that the calling thread has computed.
    """

    def __init__(
        self,
        pipe: SDXLPipeline,
        folder: LoraFolder,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._pipe = pipe
        self._folder = folder
        self._clock = clock
        self._loaded: OrderedDict[str, File] = OrderedDict()  # the latest one asked for is last
        self._unusable: set[tuple[Path, Stamp]] = set()

    def prepare(self, names: Iterable[str], cancelled: threading.Event) -> None:
        """Load the LoRAs of these names, and remove others that leave too little room.

        Raises:
            Cancelled: if `cancelled` is set.
            RequestError: if one is not there, or its file cannot be used.
        """
        self._tidy()
        wanted_names = set(names)
        for name in sorted(wanted_names):
            raise_if_cancelled(cancelled)
            self._load(name)
            self._loaded.move_to_end(name)
        for name in [name for name in self._loaded if name not in wanted_names]:
            if sum(file.stamp.size for file in self._loaded.values()) <= MOST_BYTES:
                break
            self._unload(name)

    def _tidy(self) -> None:
        """Remove the LoRAs whose files were removed or replaced."""
        files = self._folder.files
        self._unusable &= {file.version for file in files.values()}
        for name, file in list(self._loaded.items()):
            if name not in files or files[name].version != file.version:
                self._unload(name)

    def _load(self, name: str) -> None:
        if name in self._loaded:
            return
        file = self._folder.files.get(name)
        if file is None:
            raise RequestError(Message(Code.UNKNOWN_LORA, {"value": name}), field="loras")
        if file.version in self._unusable:
            raise _unusable(name)
        began = self._clock()
        try:
            self._pipe.load_lora(file.path, name)
        except Exception as error:  # the file may hold anything
            log.error("The LoRA %s cannot be used: %s", name, error)
            if not isinstance(error, DeviceError | MemoryError):  # there may be memory later
                self._unusable.add(file.version)
            raise _unusable(name) from error
        self._loaded[name] = file
        if (seconds := self._clock() - began) > MOST_SECONDS:
            log.error(
                "The LoRA %s cannot be used: to load it took %.0f s; the most is %.0f s",
                name,
                seconds,
                MOST_SECONDS,
            )
            self._unusable.add(file.version)
            self._unload(name)
            raise _unusable(name)

    def _unload(self, name: str) -> None:
        del self._loaded[name]
        self._pipe.unload_lora(name)


def _unusable(name: str) -> RequestError:
    message = Message(Code.UNUSABLE_LORA, {"value": name})
    return RequestError(message, ErrorKind.INVALID, field="loras")
