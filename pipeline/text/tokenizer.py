"""Prompts to token ids, for each of a checkpoint's text encoders."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import CheckpointError
from pipeline.strict_json import Keys

if TYPE_CHECKING:
    from transformers import CLIPTokenizer

POSITIONS = 77  # what CLIP's text encoders were trained with
NAMES = ("tokenizer", "tokenizer_2")


@dataclass(frozen=True)
class Tokens:
    """A tokenised prompt.

    Attributes:
        input_ids: `[L]` int32: start token, the prompt, end token, padding.
        truncated: the end of the prompt that did not fit, or "".
        count: of the prompt's tokens, start and end tokens included, those that did not fit too.
    """

    input_ids: np.ndarray
    truncated: str
    count: int


class Tokenizer:
    """One CLIP tokenizer, giving the ids that diffusers' pipelines give their text encoder.

    Attributes:
        length: L, the number of ids that every prompt becomes.
    """

    def __init__(self, clip: "CLIPTokenizer") -> None:
        # What does the work, which can be kept on disk: to import transformers takes a second.
        self._backend = clip.backend_tokenizer
        self._backend.no_truncation()
        self._backend.no_padding()
        self._split_special_tokens = clip.split_special_tokens
        self._end_of_word: str = self._backend.model.end_of_word_suffix
        self._pad_token_id = clip.pad_token_id
        self.length = clip.model_max_length

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As it was when it was pickled; one of the backend's settings does not go with it."""
        self.__dict__ |= state
        self._backend.encode_special_tokens = self._split_special_tokens

    @classmethod
    def load(cls, folder: Path, max_position_embeddings: int = POSITIONS) -> "Tokenizer":
        """Reads `vocab.json` and `merges.txt`, or `tokenizer.json`, with their configuration.

        Args:
            folder: the tokenizer's folder in a checkpoint.
            max_position_embeddings: how many tokens the text encoder takes, from its config.

        Raises:
            CheckpointError: files are missing, damaged, or ask for what is not supported.
        """
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if not ({"vocab.json", "merges.txt"} <= names or "tokenizer.json" in names):
            raise CheckpointError(
                f"{folder}: no tokenizer found; expected vocab.json and merges.txt, or "
                "tokenizer.json"
            )
        try:
            clip = _clip_tokenizer_class().from_pretrained(folder, local_files_only=True)
        # A damaged file surfaces as any of KeyError, OSError, TypeError, ValueError, or as the
        # bare Exception that the tokenizers library raises.
        except Exception as error:
            raise CheckpointError(f"{folder}: the tokenizer cannot be read: {error}") from error
        _check(clip, folder, max_position_embeddings)
        return cls(clip)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id; the text encoder must have as many embeddings."""
        return max(self._backend.get_vocab().values()) + 1

    def tokenize(self, prompt: str) -> Tokens:
        """The ids of any text, cut and padded to `length`. Threads may share a tokenizer."""
        # Without truncation and padding what is cut off is known without a second pass.
        ids = self._backend.encode(_valid_unicode(prompt)).ids
        padded = np.full(self.length, self._pad_token_id, np.int32)
        if len(ids) <= self.length:
            padded[: len(ids)] = ids
            return Tokens(padded, truncated="", count=len(ids))
        padded[:] = [*ids[: self.length - 1], ids[-1]]
        cut = self._backend.decode(ids[self.length - 1 : -1], skip_special_tokens=False)
        # transformers has a method of its own do this, which is not kept on disk.
        cut = cut.replace(self._end_of_word, " ").strip()
        return Tokens(padded, truncated=cut, count=len(ids))


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of a checkpoint, one for each text encoder."""

    each: tuple[Tokenizer, ...]

    @classmethod
    def load(
        cls, folder: Path, max_position_embeddings: Sequence[int] = (POSITIONS, POSITIONS)
    ) -> "Tokenizers":
        """Reads `tokenizer/` of a checkpoint, and `tokenizer_2/` for a second text encoder.

        Args:
            folder: the checkpoint.
            max_position_embeddings: of each text encoder.

        Raises:
            CheckpointError: as `Tokenizer.load`, or the two give different numbers of tokens.
        """
        each = tuple(
            Tokenizer.load(folder / name, positions)
            for name, positions in zip(NAMES, max_position_embeddings, strict=False)
        )
        if each[-1].length != each[0].length:
            raise CheckpointError(
                f"{folder}/tokenizer_2/tokenizer_config.json: model_max_length is "
                f"{each[-1].length}; it must be {each[0].length}, as in tokenizer/"
            )
        return cls(each)

    @property
    def length(self) -> int:
        """L, the number of ids that every prompt becomes."""
        return self.each[0].length

    def tokenize(self, prompts: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """Every encoder's ids of several prompts.

        Returns:
            `input_ids` `[n, E, L]` int32 for E encoders, and per prompt the end that did not fit,
            or "". Where tokenizers cut at different places it is the longer end.
        """
        rows = [[tokenizer.tokenize(text) for tokenizer in self.each] for text in prompts]
        ids = np.array([[tokens.input_ids for tokens in row] for row in rows], np.int32)
        truncated = [max((tokens.truncated for tokens in row), key=len) for row in rows]
        return ids.reshape(len(rows), len(self.each), self.length), truncated


def read_length(folder: Path) -> int:
    """What `Tokenizers.load` will find as `length`, by a checkpoint's configuration alone.

    Raises CheckpointError where there is none.
    """
    keys = Keys(folder / NAMES[0] / "tokenizer_config.json")
    return keys.take("model_max_length", int, keys.values.get("max_len", ...))  # its former name


def identity(folder: Path) -> object:
    """What decides what `Tokenizers.load` makes of a checkpoint: its files and who reads them.

    Raises CheckpointError for a file that cannot be read.
    """
    digests = []
    for file in sorted(file for name in NAMES for file in (folder / name).glob("*.*")):
        if file.suffix in (".json", ".txt") and file.is_file():
            try:
                digests.append((file.parent.name, file.name, sha256(file.read_bytes()).digest()))
            except OSError as error:
                raise CheckpointError(f"{file}: this file cannot be read: {error}") from error
    return digests, [version(library) for library in ("transformers", "tokenizers")]


def longest(tokens: Sequence[Tokens]) -> Tokens:
    """Of one prompt, where its tokenizers do not agree."""
    return max(tokens, key=lambda each: (each.count, len(each.truncated)))


def _clip_tokenizer_class() -> "type[CLIPTokenizer]":
    """The class of transformers, imported when first needed because that takes a second."""
    # Without torch transformers advises on every import that models are not available. They are
    # not wanted here.
    logger = logging.getLogger("transformers")
    logger.addFilter(_not_advice_on_torch)
    try:
        from transformers import CLIPTokenizer
    finally:
        logger.removeFilter(_not_advice_on_torch)
    return CLIPTokenizer


def _not_advice_on_torch(record: logging.LogRecord) -> bool:
    return "PyTorch was not found" not in record.getMessage()


def _check(clip: "CLIPTokenizer", folder: Path, max_position_embeddings: int) -> None:
    config = f"{folder}/tokenizer_config.json"
    # Three leaves room for the start token, one of the prompt's and the end token.
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
    """Joins surrogate pairs and replaces lone surrogates, which have no UTF-8 form."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
