"""CLIP's vocabulary, which single files lack: its table of merges is bundled.

The vocabulary follows from the merges, as in CLIP's own tokenizer:
https://github.com/openai/CLIP/blob/main/clip/simple_tokenizer.py
"""

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from pipeline.errors import CheckpointError
from pipeline.strict_json import StrictJson

MERGES = Path(__file__).parent / "clip_merges.txt.gz"  # its licence is beside it
WORD_END = "</w>"
SPECIAL = ("<|startoftext|>", "<|endoftext|>")
CONFIG = "tokenizer_config.json"


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
