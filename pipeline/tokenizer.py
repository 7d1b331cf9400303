"""Prompts to token ids, for both of SDXL's text encoders."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import CLIPTokenizer

POSITIONS = 77  # what CLIP's text encoders were trained with


@dataclass(frozen=True)
class Tokens:
    """A tokenised prompt.

    Attributes:
        input_ids: `[L]` int32: start token, the prompt, end token, padding.
        truncated: the end of the prompt that did not fit, or "".
    """

    input_ids: np.ndarray
    truncated: str


class Tokenizer:
    """One CLIP tokenizer, giving the ids that diffusers' SDXL pipeline gives its text encoder."""

    def __init__(self, clip: "CLIPTokenizer") -> None:
        self._clip = clip

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
    def length(self) -> int:
        """L, the number of ids that every prompt becomes."""
        return self._clip.model_max_length

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id; the text encoder must have as many embeddings."""
        return max(self._clip.get_vocab().values()) + 1

    def tokenize(self, prompt: str) -> Tokens:
        """The ids of any text, cut and padded to `length`. Threads may share a tokenizer."""
        # Without truncation and padding the shared tokenizer is left unchanged, and what is cut
        # off is known without a second pass.
        ids: list[int] = self._clip(_valid_unicode(prompt), verbose=False)["input_ids"]
        padded = np.full(self.length, self._clip.pad_token_id, np.int32)
        if len(ids) <= self.length:
            padded[: len(ids)] = ids
            return Tokens(padded, truncated="")
        padded[:] = [*ids[: self.length - 1], ids[-1]]
        return Tokens(padded, truncated=str(self._clip.decode(ids[self.length - 1 : -1])))


@dataclass(frozen=True)
class Tokenizers:
    """The two tokenizers of an SDXL checkpoint."""

    first: Tokenizer
    second: Tokenizer

    @classmethod
    def load(
        cls, folder: Path, max_position_embeddings: tuple[int, int] = (POSITIONS, POSITIONS)
    ) -> "Tokenizers":
        """Reads `tokenizer/` and `tokenizer_2/` of a checkpoint.

        Args:
            folder: the checkpoint.
            max_position_embeddings: of the first and of the second text encoder.

        Raises:
            CheckpointError: as `Tokenizer.load`, or the two give different numbers of tokens.
        """
        first = Tokenizer.load(folder / "tokenizer", max_position_embeddings[0])
        second = Tokenizer.load(folder / "tokenizer_2", max_position_embeddings[1])
        if first.length != second.length:
            raise CheckpointError(
                f"{folder}/tokenizer_2/tokenizer_config.json: model_max_length is "
                f"{second.length}; it must be {first.length}, as in tokenizer/"
            )
        return cls(first, second)

    def tokenize(self, prompts: Sequence[str]) -> tuple[np.ndarray, list[str]]:
        """Both encoders' ids of several prompts.

        Returns:
            `input_ids` `[n, 2, L]` int32, and per prompt the end that did not fit, or "". Where
            the two tokenizers cut at different places it is the longer end.
        """
        pairs = [(self.first.tokenize(text), self.second.tokenize(text)) for text in prompts]
        ids = np.array([[tokens.input_ids for tokens in pair] for pair in pairs], np.int32)
        truncated = [max((tokens.truncated for tokens in pair), key=len) for pair in pairs]
        return ids.reshape(len(pairs), 2, self.first.length), truncated


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
        raise CheckpointError(f"{config}: pad_token is missing; SDXL needs one")


def _valid_unicode(text: str) -> str:
    """Joins surrogate pairs and replaces lone surrogates, which have no UTF-8 form."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
