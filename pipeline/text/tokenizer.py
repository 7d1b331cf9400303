"""Conversion of prompts to token ids, for each of a checkpoint's text encoders."""

import gzip
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.strict_json import StrictJson

MERGES = Path(__file__).parent / "clip_merges.txt.gz"  # its licence is beside it
WORD_END = "</w>"
SPECIAL = ("<|startoftext|>", "<|endoftext|>")
CONFIG = "tokenizer_config.json"
POSITIONS = 77  # tokens per prompt in the training of CLIP's text encoders
BACKTRACK = 20  # tokens after the last comma that move to the next chunk with the word that is cut


@dataclass(frozen=True)
class Run:
    """Token ids of one weight, in order.

    Attributes:
        ids: the ids.
        weight: how much each of them counts.
        is_whole: whether they stay together, as the vectors of an embedding do.
    """

    ids: Sequence[int]
    weight: float = 1.0
    is_whole: bool = False


@dataclass(frozen=True)
class Break:
    """The beginning of a new chunk."""


# Ids with their weights.
Chunk = list[tuple[int, float]]


def arrange(
    runs: Sequence[Run | Break], room: int, most: int, comma: int | None
) -> tuple[list[Chunk], int]:
    """Distribute tokens over chunks.

    A chunk that is full ends after its last comma, if at most `BACKTRACK` tokens follow it. The
    last of `most` chunks is filled, and no break ends it.

    Args:
        runs: the tokens.
        room: the number of tokens in a chunk, without start and end.
        most: the number of chunks that there may be.
        comma: the id of a comma; None if there is none.

    Returns:
        The chunks, at least one, and the number of tokens in them.
    """
    chunks: list[Chunk] = [[]]
    last_comma: int | None = None

    def begin(tokens: Chunk) -> None:
        nonlocal last_comma
        chunks.append(tokens)
        last_comma = None

    for run in runs:
        is_last = len(chunks) == most
        if isinstance(run, Break):
            if not is_last:
                begin([])
            continue
        if run.is_whole and not is_last and chunks[-1] and len(chunks[-1]) + len(run.ids) > room:
            begin([])
        for token in run.ids:
            chunk = chunks[-1]
            if len(chunk) == room:
                if len(chunks) == most:
                    return chunks, sum(map(len, chunks))
                near = last_comma is not None and room - last_comma <= BACKTRACK
                start = room if last_comma is None or not near or token == comma else last_comma + 1
                tokens = chunk[start:]
                del chunk[start:]
                begin(tokens)
            if token == comma:
                last_comma = len(chunks[-1])
            chunks[-1].append((token, run.weight))
    return chunks, sum(map(len, chunks))


if TYPE_CHECKING:
    from transformers import CLIPTokenizer


@dataclass(frozen=True)
class Tokens:
    """A tokenised prompt.

    Attributes:
        input_ids: `[C * L]` int32 for C chunks, each of them: start token, a part of the prompt,
            end token, padding.
        weights: `[C * L]` float32, how much each token counts; 1 unless `Words` say
            otherwise.
        truncated: the end of the prompt that did not fit, or "".
        count: the number of the prompt's tokens, including the start and end tokens and the tokens
            that did not fit.
        chunks: the number of chunks with a part of the prompt; 1 for a blank one.
    """

    input_ids: np.ndarray
    weights: np.ndarray
    truncated: str
    count: int
    chunks: int = 1


@dataclass(frozen=True)
class Words:
    """A part of a prompt with a weight, or with ids of its own.

    Attributes:
        text: the part as it is written in the prompt.
        weight: how much each of its tokens counts.
        ids: the ids that stand for it; None for those of its words.
    """

    text: str
    weight: float = 1.0
    ids: Sequence[int] | None = None


Part: TypeAlias = str | Words | Break
# A prompt, or its parts.
Prompt: TypeAlias = str | Sequence[Part]


class Tokenizer:
    """A CLIP tokenizer that returns the ids that diffusers' pipelines pass to their text encoder.

    Attributes:
        length: L, the number of ids to which every prompt is cut or padded.
    """

    def __init__(self, clip: "CLIPTokenizer") -> None:
        # The backend does the work and can be pickled. A start from the cache thus avoids importing
        # transformers, which takes a second.
        self._backend = clip.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._split_special_tokens = clip.split_special_tokens
        self._end_of_word: str = self._backend.model.end_of_word_suffix
        self._pad_token_id = clip.pad_token_id
        self.length = clip.model_max_length

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled tokenizer, and the setting that the backend does not pickle."""
        self.__dict__ |= state
        self._backend.encode_special_tokens = self._split_special_tokens

    @classmethod
    def load(cls, folder: Path, max_position_embeddings: int = POSITIONS) -> "Tokenizer":
        """Read `vocab.json` and `merges.txt`, or `tokenizer.json`, with their configuration.

        A configuration with `"vocabulary": "clip"` needs no other file: the vocabulary is in this
        package.

        Args:
            folder: the tokenizer's folder in a checkpoint.
            max_position_embeddings: the largest number of tokens that the text encoder takes, from
                its config.

        Raises:
            CheckpointError: if files are missing or damaged, or a setting is not supported.
        """
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        is_bundled = uses_bundled_vocabulary(folder)
        if not (is_bundled or {"vocab.json", "merges.txt"} <= names or "tokenizer.json" in names):
            raise CheckpointError(
                f"{folder}: no tokenizer found; expected vocab.json and merges.txt, or "
                "tokenizer.json"
            )
        try:
            with completed(folder) if is_bundled else nullcontext(folder) as source:
                clip = _clip_tokenizer_class().from_pretrained(source, local_files_only=True)
        # A damaged file raises KeyError, OSError, TypeError, ValueError, or the bare Exception of
        # the tokenizers library.
        except Exception as error:
            raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from error
        _check(clip, folder, max_position_embeddings)
        return cls(clip)

    @property
    def vocabulary_size(self) -> int:
        """The largest id plus one; the text encoder must have at least as many embeddings."""
        return max(self._backend.get_vocab().values()) + 1

    def tokenize(self, prompt: Prompt, chunks: int = 1) -> Tokens:
        """Return the ids of any text in up to `chunks` chunks; threads may share a tokenizer.

        Each chunk is padded to `length`. The text that does not fit is cut.
        """
        parts = (prompt,) if isinstance(prompt, str) else prompt
        start, end = self._backend.encode("").ids
        # The backend does not truncate, so the text that is cut off is known without a second pass.
        runs = [self._run(part) for part in parts]
        comma = self._backend.token_to_id(f",{self._end_of_word}")
        filled_chunks, count_in_chunks = arrange(runs, self.length - 2, chunks, comma)
        ids = np.full((chunks, self.length), self._pad_token_id, np.int32)
        ids[:, :2] = start, end
        weights = np.ones((chunks, self.length), np.float32)
        for row, chunk in enumerate(filled_chunks):
            inside = slice(1, 1 + len(chunk))
            ids[row, inside] = [token for token, _ in chunk]
            weights[row, inside] = [weight for _, weight in chunk]
            ids[row, 1 + len(chunk)] = end
        count = 2 + sum(len(run.ids) for run in runs if isinstance(run, Run))
        cut = self._cut(parts, runs, count_in_chunks) if count_in_chunks < count - 2 else ""
        return Tokens(ids.reshape(-1), weights.reshape(-1), cut, count, len(filled_chunks))

    def _run(self, part: Part) -> Run | Break:
        if isinstance(part, Break):
            return part
        words = Words(part) if isinstance(part, str) else part
        if words.ids is not None:
            return Run(words.ids, words.weight, is_whole=True)
        return Run(self._ids(words.text), words.weight)

    def _ids(self, text: str) -> Sequence[int]:
        return self._backend.encode(_valid_unicode(text)).ids[1:-1]

    def _cut(self, parts: Sequence[Part], runs: Sequence[Run | Break], room: int) -> str:
        """Return the text of the ids after the first `room`, for the parts' ids."""
        texts = []
        for part, run in zip(parts, runs, strict=True):
            if isinstance(run, Break):
                continue
            if cut := run.ids[max(room, 0) :]:
                if isinstance(part, Words) and part.ids is not None:
                    texts.append(part.text)
                else:
                    texts.append(self._decode(cut))
            room -= len(run.ids)
        return " ".join(texts)

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._backend.decode(ids, skip_special_tokens=False)
        # transformers does this in a method of its own class, which is not pickled.
        return text.replace(self._end_of_word, " ").strip()


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of a checkpoint, one for each text encoder."""

    each: tuple[Tokenizer, ...]

    @classmethod
    def load(cls, folder: Path, limits: Mapping[str, int]) -> "Tokenizers":
        """Read the tokenizers of a checkpoint.

        Args:
            folder: the checkpoint's folder.
            limits: the largest number of tokens that each tokenizer's text encoder takes, by the
                tokenizer's folder in the checkpoint.

        Raises:
            CheckpointError: if a tokenizer cannot be loaded, as in `Tokenizer.load`.
        """
        return cls(tuple(Tokenizer.load(folder / name, limit) for name, limit in limits.items()))

    @property
    def length(self) -> int:
        """The fewest ids that a prompt becomes for any of the text encoders."""
        return min(tokenizer.length for tokenizer in self.each)

    def tokenize(self, prompts: Sequence[Prompt]) -> tuple[np.ndarray, list[str]]:
        """Return the ids of several prompts for text encoders of one length.

        Returns:
            `input_ids` `[n, E, L]` int32 for E encoders, and for each prompt the end that did not
            fit, or "". If tokenizers cut at different places, it is the longer end.
        """
        rows = [self.tokens(prompt) for prompt in prompts]
        ids = np.array([[tokens.input_ids for tokens in row] for row in rows], np.int32)
        truncated = [longest_end(row) for row in rows]
        return ids.reshape(len(rows), len(self.each), self.length), truncated

    def tokens(self, prompt: Prompt, chunks: int = 1) -> list[Tokens]:
        """Return a prompt's tokens in up to `chunks` chunks, for every text encoder."""
        return [tokenizer.tokenize(prompt, chunks) for tokenizer in self.each]


def read_length(folder: Path) -> int:
    """Return the `length` of the tokenizer in a folder, from its configuration alone.

    Raises:
        CheckpointError: if the configuration is missing, or has no length.
    """
    keys = StrictJson(folder / "tokenizer_config.json")
    return keys.take("model_max_length", int, keys.values.get("max_len", ...))  # its former name


def identity(folder: Path, names: Iterable[str]) -> object:
    """Return a key for the result of `Tokenizers.load`: digests of the files, library versions.

    Args:
        folder: the checkpoint's folder.
        names: the tokenizers' folders in it.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    digests = []
    folders = [folder / name for name in names]
    files = [file for tokenizer_folder in folders for file in tokenizer_folder.glob("*.*")]
    bundled = [MERGES] if any(map(uses_bundled_vocabulary, folders)) else []
    for file in sorted([*files, *bundled]):
        if file.suffix in (".json", ".txt", ".gz") and file.is_file():
            try:
                digests.append((file.parent.name, file.name, sha256(file.read_bytes()).digest()))
            except OSError as error:
                raise CheckpointError(f"{file}: this file cannot be read: {error}") from error
    return digests, [version(library) for library in ("transformers", "tokenizers")]


def longest_end(tokens: Iterable[Tokens]) -> str:
    """Return the longest end that did not fit, of one prompt's tokenisations."""
    return max((result.truncated for result in tokens), key=len)


def longest(tokens: Sequence[Tokens]) -> Tokens:
    """Return the longest of one prompt's tokenisations by different tokenizers."""
    return max(tokens, key=lambda result: (result.count, len(result.truncated)))


def _clip_tokenizer_class() -> "type[CLIPTokenizer]":
    """Return the class of transformers, imported here because the import takes a second."""
    # Without torch, transformers advises on import to install it, for models.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import CLIPTokenizer

    return CLIPTokenizer


def _check(clip: "CLIPTokenizer", folder: Path, max_position_embeddings: int) -> None:
    config = f"{folder}/tokenizer_config.json"
    # At least 3: the start token, one token of the prompt and the end token.
    if not 3 <= clip.model_max_length <= max_position_embeddings:
        raise CheckpointError(
            f"{config}: model_max_length is {clip.model_max_length}; the text encoder takes 3 to "
            f"{max_position_embeddings} (its max_position_embeddings)"
        )
    for key in ("padding_side", "truncation_side"):
        if getattr(clip, key) != "right":
            raise CheckpointError(
                f"{config}: {key} is {getattr(clip, key)!r}; only 'right' is supported"
            )
    if clip.pad_token_id is None:
        raise CheckpointError(f"{config}: pad_token is missing; the text encoder needs one")


def _valid_unicode(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates, which have no UTF-8 form."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def uses_bundled_vocabulary(folder: Path) -> bool:
    """Return whether a tokenizer's folder has no vocabulary but names the bundled one."""
    try:
        return StrictJson(folder / CONFIG).values.get("vocabulary") == "clip"
    except CheckpointError:
        return False


@contextmanager
def completed(folder: Path) -> Iterator[Path]:
    """Make a temporary copy of a tokenizer's configuration, with the bundled vocabulary."""
    with TemporaryDirectory() as temporary:
        copy = Path(temporary)
        merges = gzip.decompress(MERGES.read_bytes()).decode()
        shutil.copy(folder / CONFIG, copy)
        (copy / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
        (copy / "vocab.json").write_text(json.dumps(vocabulary(merges)), encoding="utf-8")
        yield copy


def vocabulary(merges: str) -> dict[str, int]:
    """Return the id of each token.

    Tokens are the bytes, as printable characters; the bytes that end a word; the results of the
    merges, a pair in each line; and the start and the end of a text.
    """
    symbols = _byte_symbols()
    merged_tokens = [line.replace(" ", "") for line in merges.splitlines()]
    tokens = [*symbols, *(symbol + WORD_END for symbol in symbols), *merged_tokens, *SPECIAL]
    return {token: number for number, token in enumerate(tokens)}


def _byte_symbols() -> list[str]:
    """Return the character of each byte: printable bytes first, then the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
