"""LoRAs and textual inversions, which are loaded on top of a checkpoint."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock

from pipeline.adapters.adapter import Adapter
from pipeline.adapters.reader import read_adapter
from pipeline.adapters.source import find_adapter
from pipeline.errors import DeviceError, InputError
from pipeline.runtime.adapters import Adapters
from pipeline.runtime.plan import Budget
from pipeline.text.embeddings import Embeddings, is_embedding_name, read_embedding
from pipeline.text.loras import is_lora_name


class Additions:
    """The loaded LoRAs and embeddings. Any thread may call its methods while another draws.

    Args:
        adapters: the LoRAs at run time.
        budget: the memory that the checkpoint needs without additions.
        sizes: returns the sizes, (height, width), whose programs need memory too.
        widths: the width D of each text encoder.
        kept: the names of the networks that a refiner shares as they are without LoRAs.

    Attributes:
        embeddings: the loaded embeddings. This mapping is replaced, never mutated.
    """

    def __init__(
        self,
        adapters: Adapters,
        budget: Budget,
        sizes: Callable[[], Iterable[tuple[int, int]]],
        widths: Sequence[int],
        kept: Sequence[str] = (),
    ) -> None:
        self._adapters = adapters
        self.embeddings = Embeddings()
        self._budget = budget
        self._sizes = sizes
        self._widths = widths
        self._kept = kept
        self._loading = Lock()
        self._embedding = Lock()

    def budget(self, more: Adapter | None = None) -> Budget:
        """Return the memory that is needed with the loaded LoRAs, and `more`."""
        changed, on_host = self._adapters.bytes_of(more), self._adapters.host_bytes(more)
        kept = self._adapters.bytes_of(more, self._kept) if self._kept else 0
        given = {"pristine": changed, "adapters": on_host, "unchanged": kept}
        return dataclasses.replace(self._budget, **given)

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

    def _check_room(self, more: Adapter) -> None:
        """Raise DeviceError unless there is memory for one more adapter."""
        try:
            self.budget(more).check([*self._sizes()])
            self._adapters.check_host(more)
        except DeviceError as error:
            raise DeviceError(f"the LoRA {more.name!r} cannot be loaded: {error}") from error


def _checked(name: str, is_name: Callable[[str], bool], whose: str, without: str) -> str:
    """Return a name, or raise InputError if it cannot be used."""
    if not is_name(name):
        raise InputError(
            f"{name!r} cannot be {whose} name; expected up to 100 printable characters without"
            f" {without}; pass another as name"
        )
    return name
