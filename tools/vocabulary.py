"""A small vocabulary in the format of CLIP's tokenizer, which transformers' `CLIPTokenizer` reads.

Byte-pair encoding as in CLIP (https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py):
every byte is a symbol, so any Unicode text has a spelling; merges make each known word one token.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from pipeline.checkpoints.word_list import WORDS

START, END, WORD_END = "<|startoftext|>", "<|endoftext|>", "</w>"
PAD_2 = "!"  # of SDXL's second tokenizer


def byte_symbols() -> list[str]:
    """Return the printable character for each byte, in CLIP's order: "!" is the first.

    Bytes that print as themselves come first, then the others, as the characters from U+0100 on.
    """
    return list(_symbol_of_byte().values())


def _symbol_of_byte() -> dict[int, str]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }


def word_merges(words: Iterable[str], emoji: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Return merges, in order, after which every word is one token, and so is every emoji.

    A word is first spelt with the merges so far; new ones join the remaining pieces from the left.
    New merges rank below all others, so they cannot break up an earlier word.

    Args:
        words: lower-case words of letters only, which is what CLIP splits a prompt into.
        emoji: characters that CLIP does not separate from each other or from punctuation, so that
            each is a token at the end of a word, and another one inside.

    Raises:
        ValueError: if a word is not lower-case letters only.
    """
    ranks: dict[tuple[str, str], int] = {}
    for word in words:
        if not word.isalpha() or word != word.lower():
            raise ValueError(f"{word!r} is not a lower-case word of letters only")
        _merge_all(word, ranks, WORD_END)
    for sign in emoji:
        _merge_all(sign, ranks, "")
        _merge_all(sign, ranks, WORD_END)
    return list(ranks)


def _merge_all(word: str, ranks: dict[tuple[str, str], int], end: str) -> None:
    """Add merges until a word with this end is one token."""
    while len(pieces := _spell(word, ranks, end)) > 1:
        ranks[pieces[0], pieces[1]] = len(ranks)


def _spell(word: str, ranks: dict[tuple[str, str], int], end: str) -> list[str]:
    """Spell a word with byte-pair encoding: the merge of lowest rank first, wherever it applies."""
    symbols = _symbol_of_byte()
    pieces = [symbols[byte] for byte in word.encode()]
    pieces[-1] += end
    while known := [pair for pair in pairwise(pieces) if pair in ranks]:
        pieces = _merge(pieces, min(known, key=ranks.__getitem__))
    return pieces


def _merge(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def write_tokenizers(checkpoint: Path, captions: Iterable[str], emoji: Sequence[str] = ()) -> int:
    """Write the tokenizers of SDXL for the captions' words, and the checkpoint's word list.

    Return how many tokens each tokenizer has.
    """
    words = sorted({word for caption in captions for word in re.findall("[a-z]+", caption)})
    checkpoint.mkdir(parents=True, exist_ok=True)
    _write(checkpoint / WORDS, "\n".join([*words, *emoji]))
    write_tokenizer(checkpoint / "tokenizer_2", words, PAD_2, emoji)
    return write_tokenizer(checkpoint / "tokenizer", words, END, emoji)


def write_tokenizer(
    folder: Path, words: Sequence[str], pad_token: str, emoji: Sequence[str] = ()
) -> int:
    """Write `vocab.json`, `merges.txt`, `tokenizer_config.json` and `special_tokens_map.json`.

    Ids 0-255 are bytes ("!" is 0, as in CLIP), 256-511 bytes that end a word; then come the tokens
    of the merges, in order, and last the start and the end token.

    Args:
        folder: the target; made if missing.
        words: each becomes one token (`word</w>`); lower-case, letters only.
        pad_token: fills a prompt up to 77 tokens: the end token in SDXL's first tokenizer, "!" in
            its second.
        emoji: see `word_merges`.

    Returns:
        The number of tokens.

    Raises:
        ValueError: if a word is not lower-case letters only.
    """
    symbols = byte_symbols()
    merges = word_merges(words, emoji)
    tokens = dict.fromkeys([*symbols, *(symbol + WORD_END for symbol in symbols)])
    tokens |= dict.fromkeys([*(left + right for left, right in merges), START, END])
    special = {"bos_token": START, "eos_token": END, "pad_token": pad_token, "unk_token": END}
    config = {
        "add_prefix_space": False,
        "do_lower_case": True,
        "errors": "replace",
        "model_max_length": 77,
        "tokenizer_class": "CLIPTokenizer",
        **special,
    }
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    _write(folder / "vocab.json", json.dumps(vocabulary, ensure_ascii=False))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    _write(folder / "merges.txt", "\n".join(lines))
    _write(folder / "tokenizer_config.json", json.dumps(config, indent=2))
    _write(folder / "special_tokens_map.json", json.dumps(special, indent=2))
    return len(tokens)


def _write(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
