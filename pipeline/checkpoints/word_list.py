"""The word list that a checkpoint may bring: a file beside its `model_index.json`.

Each line is a word or an emoji that the model was trained with. Nothing is drawn by it: it tells
people which words of a prompt mean nothing to the model.
"""

import re
from pathlib import Path

from pipeline.errors import CheckpointError

WORDS = "words.txt"
MAX_FILE = 2**16  # bytes
MAX_WORD = 40  # characters
_WORD = re.compile(rf"[^\s\x00-\x1f\x7f]{{1,{MAX_WORD}}}")


def read_words(folder: Path) -> tuple[str, ...]:
    """Return the words in a checkpoint's folder, sorted; none if it has no list.

    Raises:
        CheckpointError: if the list is too large, is not in UTF-8, or has a line that is not one
            word.
    """
    file = folder / WORDS
    if not file.is_file():
        return ()
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_FILE + 1)
        lines = content[:MAX_FILE].decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as text in UTF-8: {error}") from error
    if len(content) > MAX_FILE:
        raise CheckpointError(f"{file}: it has more than {MAX_FILE >> 10} KiB; list fewer words")
    for number, line in enumerate(lines, start=1):
        if _WORD.fullmatch(line) is None:
            raise CheckpointError(
                f"{file}: line {number} is {line[:MAX_WORD]!r}; expected one word or emoji, of at"
                f" most {MAX_WORD} characters and without spaces"
            )
    return tuple(sorted(set(lines)))
