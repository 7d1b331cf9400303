"""LoRAs and textual inversions, which are loaded on top of a checkpoint."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from pipeline.adapters.adapter import Adapter
from pipeline.adapters.reader import read_adapter
from pipeline.adapters.source import find_adapter
from pipeline.errors import DeviceError, InputError
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.room import Room
from pipeline.text.embeddings import Embeddings, is_embedding_name, read_embedding
from pipeline.text.loras import is_lora_name


class Additions:
    """The loaded LoRAs and embeddings. Any thread may call its methods while another draws.

    Args:
        adapters: the LoRAs at run time.
        room: the memory that holds the checkpoint; it counts the LoRAs from now on.
        widths: the width D of each text encoder.
        kept: the names of the networks that a refiner shares as they are without LoRAs.

    Attributes:
        embeddings: the loaded embeddings. This mapping is replaced, never mutated.
    """

    def __init__(
        self,
        adapters: Adapters,
        room: Room,
        widths: Sequence[int],
        kept: Sequence[str] = (),
    ) -> None:
        self._adapters = adapters
        self.embeddings = Embeddings()
        self._room = room
        room.loras = self._bytes
        self._widths = widths
        self._kept = kept
        self._loading = Lock()
        self._embedding = Lock()

    def load_lora(self, source: str | Path, name: str | None) -> str:
        """Load a LoRA and return its name; see `SDXLPipeline.load_lora`."""
        file = find_adapter(source)
        name = _checked(
            file.stem if name is None else name, is_lora_name, "a LoRA's", "commas, colons, < and >"
        )
        with self._loading:
            self._adapters.check_new(name)
            adapter = read_adapter(file, name, self._adapters.inventory)
            self._check_room(adapter)
            self._adapters.add(adapter)
        return name

    def load_embedding(self, source: str | Path, name: str | None, replace: bool) -> str:
        """Load an embedding and return its name; see `SDXLPipeline.load_embedding`."""
        file = Path(source)
        name = _checked(
            file.stem if name is None else name,
            is_embedding_name,
            "an embedding's",
            "commas, colons, bars, backslashes and brackets",
        )
        embedding = read_embedding(file, name, self._widths)
        with self._embedding:
            self.embeddings = self.embeddings.with_one(embedding, replace=replace)
        return name

    def unload_embedding(self, name: str) -> None:
        """Forget an embedding; see `SDXLPipeline.unload_embedding`."""
        with self._embedding:
            self.embeddings = self.embeddings.without(name)

    def _bytes(self, more: Adapter | None) -> int:
        """Return what the loaded LoRAs take, and `more`; see `Adapters.device_bytes`."""
        return self._adapters.device_bytes(more, self._kept)

    def _check_room(self, more: Adapter) -> None:
        """Raise DeviceError unless there is memory for one more adapter."""
        try:
            self._room.check(more=more)
            self._adapters.check_host(more)
        except DeviceError as error:
            raise DeviceError(f"the LoRA {more.name!r} cannot be loaded: {error}") from error


def _checked(name: str, is_name: Callable[[str], bool], owner: str, without: str) -> str:
    """Return a name, or raise InputError if it cannot be used."""
    if not is_name(name):
        raise InputError(
            f"{name!r} cannot be {owner} name; expected up to 100 printable characters without"
            f" {without}; pass another as name"
        )
    return name
