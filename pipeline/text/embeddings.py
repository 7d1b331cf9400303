"""Textual inversion (Gal et al. 2022): words whose token embeddings come from a file.

A prompt names an embedding as AUTOMATIC1111 does, by its bare name, or as diffusers does, in angle
brackets. Its n vectors take the place of n tokens.
"""

import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np

from pipeline.adapters.adapter import Adapter
from pipeline.checkpoints.contents import INVERSION, contents, use_of
from pipeline.checkpoints.tensors import PICKLE_SUFFIXES, Tensor, open_file
from pipeline.errors import CheckpointError, InputError
from pipeline.text.tokenizer import POSITIONS, Part, Words

MAX_VECTORS = 256  # of all embeddings that a request uses
MAX_LENGTH = POSITIONS - 2  # vectors of an embedding: a prompt without its start and end tokens
SDXL_KEYS = ("clip_l", "clip_g")
# The names of a pair; the second ones are those of diffusers' trainers before version 0.26.
PAIRS = (SDXL_KEYS, ("text_encoders_0", "text_encoders_1"))
_NAME = re.compile(r"[^\s,:<>()\[\]|\\](?:[^\n\r\t,:<>()\[\]|\\]{0,98}[^\s,:<>()\[\]|\\])?")


@dataclass(frozen=True)
class Embedding:
    """A loaded embedding.

    Attributes:
        name: its name in prompts, in which upper and lower case are the same.
        file: its file.
        digest: the SHA-256 of the file, in hexadecimal digits.
        vectors: `[n, D]` float32 for each text encoder; n is the same for all.
    """

    name: str
    file: Path
    digest: str
    vectors: tuple[np.ndarray, ...] = field(repr=False, compare=False)

    @property
    def length(self) -> int:
        """Number of tokens that it stands for."""
        return len(self.vectors[0])

    @property
    def short_hash(self) -> str:
        """The digits by which AUTOMATIC1111 knows the file."""
        return self.digest[:12]


def is_embedding_name(name: str) -> bool:
    """Return whether prompts can name an embedding so."""
    return name.isprintable() and _NAME.fullmatch(name) is not None


# --- files


def read_embedding(file: Path, name: str, widths: Sequence[int]) -> Embedding:
    """Read an embedding's file.

    Stable Diffusion 1 and 2 take a file with one tensor, `emb_params` or diffusers' `<token>`;
    Stable Diffusion XL takes one with `clip_l` and `clip_g`. Each is `[n, D]`, or `[D]`.

    Args:
        file: the file, in the format of safetensors.
        name: its name in prompts.
        widths: D of each text encoder.

    Raises:
        CheckpointError: if the file cannot be read, or does not fit the text encoders.
    """
    if file.suffix.lower() in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{file}: only .safetensors files are read; other formats of textual inversions are"
            " pickles, which can run code and are never opened"
        )
    with open_file(file) as tensors:
        vectors = _read(file, tensors, widths)
        try:
            digest = sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    return Embedding(name, file, digest, vectors)


def bundled_embeddings(adapter: Adapter, widths: Sequence[int]) -> "Embeddings":
    """Return the embeddings in a LoRA's file, which are to be used with it.

    Their tensors are those of an embedding's own file, or A1111's `string_to_param.*`.

    Raises:
        CheckpointError: if one does not fit the text encoders, or prompts cannot name it.
    """
    embeddings = Embeddings()
    for name, parts in adapter.bundles.items():
        if not is_embedding_name(name):
            raise CheckpointError(f"{adapter.file}: prompts cannot name its embedding {name!r}")
        vectors = _read(adapter.file, parts, widths)
        embeddings |= {name: Embedding(name, adapter.file, adapter.digest, vectors)}
    return Embeddings(embeddings)


def _read(
    file: Path, tensors: Mapping[str, Tensor | np.ndarray], widths: Sequence[int]
) -> tuple[np.ndarray, ...]:
    """Return the vectors for each text encoder, `[n, D]` float32."""
    keys = _keys(file, tensors, widths)
    vectors = tuple(
        _vectors(file, key, tensors[key], width) for key, width in zip(keys, widths, strict=True)
    )
    if len({len(rows) for rows in vectors}) > 1:
        shapes = " and ".join(str(list(rows.shape)) for rows in vectors)
        raise CheckpointError(
            f"{file}: the tensors have the shapes {shapes}; expected equally many vectors in each"
        )
    return vectors


def _keys(file: Path, tensors: Iterable[str], widths: Sequence[int]) -> Sequence[str]:
    """Return the names of a file's tensors, in the order of the text encoders."""
    keys = sorted(tensors)
    # OneTrainer's `clip_l_out` are added behind the text encoder, which nothing else does.
    if len(widths) == 1 and len(keys) == 1 and not keys[0].endswith("_out"):
        return keys
    pair = next((pair for pair in PAIRS if set(keys) == {*pair}), ())
    if pair and len(widths) == 2:
        return pair
    names = ", ".join(map(repr, keys[:3])) or "none"
    names += f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    expectation = "one tensor" if len(widths) == 1 else f"the tensors {' and '.join(SDXL_KEYS)}"
    kind = contents(keys)
    kind = "" if kind in (None, INVERSION) else f": it is {kind}{use_of(kind)}"
    raise CheckpointError(
        f"{file}: this model's textual inversions have {expectation}; this file has {names}{kind}"
    )


def _vectors(file: Path, name: str, tensor: Tensor | np.ndarray, width: int) -> np.ndarray:
    """Return the vectors of a tensor, `[n, width]` float32."""
    shape = tensor.shape if len(tensor.shape) == 2 else (1, *tensor.shape)
    if len(shape) != 2 or shape[1] != width or not 1 <= shape[0] <= MAX_LENGTH:
        raise CheckpointError(
            f"{file}: tensor {name!r} has shape {list(tensor.shape)}; this model's"
            f" text encoder takes [1 to {MAX_LENGTH}, {width}]"
        )
    if tensor.dtype.kind in "iub":
        raise CheckpointError(f"{file}: tensor {name!r} is {tensor.dtype}; expected a float dtype")
    values = tensor if isinstance(tensor, np.ndarray) else tensor.read()
    vectors = values.astype(np.float32).reshape(shape)
    if not np.isfinite(vectors).all():
        raise CheckpointError(f"{file}: tensor {name!r} has values that are not finite")
    return vectors


# --- prompts


class Embeddings(dict[str, Embedding]):
    """The loaded embeddings by name; an instance never changes."""

    def with_one(self, embedding: Embedding, *, replace: bool = False) -> "Embeddings":
        """Return these embeddings and one more.

        Raises:
            InputError: if one of this name is loaded, except for the one that `replace` replaces.
        """
        namesake = self._by_folded.get(embedding.name.casefold())
        if namesake is not None and not (replace and namesake.name == embedding.name):
            raise InputError(
                f"an embedding named {namesake.name!r} is loaded; unload it, or pass another name"
            )
        return Embeddings(self | {embedding.name: embedding})

    def without(self, name: str) -> "Embeddings":
        """Return these embeddings without one.

        Raises:
            InputError: if none of this name is loaded; the message lists those that are.
        """
        if name not in self:
            names = ", ".join(map(repr, self)) or "none"
            raise InputError(f"no embedding named {name!r} is loaded; loaded are: {names}")
        return Embeddings({key: embedding for key, embedding in self.items() if key != name})

    def with_bundles(
        self, adapters: Iterable[Adapter | None], widths: Sequence[int]
    ) -> "Embeddings":
        """Return these embeddings and those in LoRAs' files.

        A loaded embedding takes precedence over a LoRA's of the same name.
        """
        bundles = [bundled_embeddings(each, widths) for each in adapters if each and each.bundles]
        return Embeddings(ChainMap(self, *bundles)) if bundles else self

    def for_encoders(self, places: Sequence[int]) -> "Embeddings":
        """Return these embeddings for some of the text encoders, given by their places."""
        return Embeddings(
            {
                name: replace(embedding, vectors=tuple(embedding.vectors[i] for i in places))
                for name, embedding in self.items()
            }
        )

    @cached_property
    def _by_folded(self) -> dict[str, Embedding]:
        return {name.casefold(): embedding for name, embedding in self.items()}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, sorted(self, key=len, reverse=True)))
        return re.compile(rf"<(?:{names})>|(?<![\w-])(?:{names})(?![\w-])", re.IGNORECASE)

    def split(self, prompt: str) -> list[tuple[str, Embedding | None]]:
        """Return the parts of a prompt, each with the embedding that it names, if it names one."""
        if not self:
            return [(prompt, None)]
        parts, end = [], 0
        for match in self._pattern.finditer(prompt):
            if embedding := self._by_folded.get(match[0].strip("<>").casefold()):
                parts += [(prompt[end : match.start()], None), (match[0], embedding)]
                end = match.end()
        return [*parts, (prompt[end:], None)]


class Placement:
    """The embeddings that a request uses, and the rows in which their vectors are.

    Args:
        loaded: the loaded embeddings.
        limit: the number of rows; None for as many as are needed.
    """

    def __init__(self, loaded: Embeddings, limit: int | None = MAX_VECTORS) -> None:
        self._loaded = loaded
        self._limit = limit
        self._rows: dict[str, int] = {}  # the first row of each, by name
        self._count = 0

    def place(self, prompt: str, weight: float = 1.0) -> list[Part]:
        """Return the parts of a text, all of one weight: ids of rows where it names embeddings.

        Row i has the id -1 - i, which no token has.

        Raises:
            InputError: if the embeddings need more rows than there are.
        """
        return [
            Words(text, weight, None if embedding is None else self._ids(embedding))
            for text, embedding in self._loaded.split(prompt)
        ]

    def _ids(self, embedding: Embedding) -> tuple[int, ...]:
        if embedding.name not in self._rows:
            self._rows[embedding.name] = self._count
            self._count += embedding.length
        if self._limit is not None and self._count > self._limit:
            names = ", ".join(self._rows)
            raise InputError(
                f"the embeddings {names} have {self._count} vectors; a request can use"
                f" {self._limit}"
            )
        first_row = self._rows[embedding.name]
        return tuple(-1 - row for row in range(first_row, first_row + embedding.length))

    def vectors(self) -> tuple[np.ndarray, ...] | None:
        """Return the rows for each text encoder, `[MAX_VECTORS, D]` float32; None without any."""
        vectors = [self._loaded[name].vectors for name in self._rows]
        if not vectors:
            return None
        spare = MAX_VECTORS - self._count
        return tuple(
            np.pad(np.concatenate(arrays), ((0, spare), (0, 0)))
            for arrays in zip(*vectors, strict=True)
        )

    def hashes(self, *prompts: str) -> str | None:
        """Return names and hashes of the embeddings in prompts, as AUTOMATIC1111 writes them."""
        parts = chain.from_iterable(map(self._loaded.split, prompts))
        hashes = {
            embedding.name: embedding.short_hash for _, embedding in parts if embedding is not None
        }
        return ", ".join(f"{name}: {short_hash}" for name, short_hash in hashes.items()) or None
