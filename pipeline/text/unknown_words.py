"""The words and signs of a prompt that a model with a word list does not know."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from unicodedata import category, normalize

from pipeline.text.emphasis import read_emphasis
from pipeline.text.explanation import Explanation
from pipeline.text.wildcards import WILDCARD

# These name nothing that a picture could show, so a list need not have them. The last ones are
# the ends of words such as "don't", which CLIP's tokenizer divides.
_GLUE = frozenset({
    "a", "an", "and", "are", "as", "at", "by", "for", "from", "in", "is", "it", "its", "of", "on",
    "or", "that", "the", "this", "to", "with", "d", "ll", "m", "re", "s", "t", "ve",
})  # fmt: skip
# Each character becomes a letter for its kind, over which the patterns below run: l is a letter, d
# a digit, m a mark on the character before it, j a joiner, f half of a flag, s a sign, and "-"
# stands inside words.
_KINDS = {"L": "l", "N": "d", "M": "m", "So": "s", "Cn": "s"}
_SPECIAL = (
    dict.fromkeys("-'’_", "-")
    | dict.fromkeys("\u200c\u200d", "j")
    | dict.fromkeys(map(chr, range(0x1F1E6, 0x1F200)), "f")
    | dict.fromkeys(map(chr, range(0x1F3FB, 0x1F400)), "m")  # tones of skin
    | dict.fromkeys(map(chr, range(0xE0020, 0xE0080)), "m")  # letters of regional flags
)
_FIRST_SIGN = "\u2190"  # those before it, such as ©, are punctuation here
_SIGN = "ff?|s(?:m|j+s)*"
_WORD = re.compile(rf"[ld][ldmj]*(?:-[ld][ldmj]*)*|{_SIGN}")
_PART = re.compile(rf"l[lmj]*|{_SIGN}")
_FIRST_CJK = "\u2e80"


def unknown_words(prompts: Sequence[Explanation], words: Iterable[str]) -> list[str]:
    """Return the words and signs of prompts that a list lacks, each once, in their order.

    Upper and lower case are the same. A word with digits, hyphens or apostrophes is known if the
    letters between these are. Chinese and Japanese have no spaces: a passage is known if the list
    has all its characters.

    Args:
        prompts: how the prompts are read. All options of their lists count.
        words: the model's word list.
    """
    known_words = _GLUE.union(map(_folded, words))
    characters = set("".join(known_words))
    texts = (text.sections for explanation in prompts for text in explanation.texts)
    lists = (read_emphasis(list_text) for explanation in prompts for list_text in explanation.lists)
    spellings: dict[str, str] = {}
    for fragment in chain.from_iterable(chain.from_iterable([*texts, *lists])):
        for word in _split(WILDCARD.sub(" ", fragment.text), _WORD):
            spellings.setdefault(_folded(word), word)
    return [
        word for folded, word in spellings.items() if not _is_known(folded, known_words, characters)
    ]


def _folded(word: str) -> str:
    return normalize("NFC", word).lower()


def _is_known(word: str, known_words: Collection[str], characters: set[str]) -> bool:
    return word in known_words or all(
        part in known_words
        or (part[0] >= _FIRST_CJK and part[0].isalpha() and characters.issuperset(part))
        for part in _split(word, _PART)
    )


def _split(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Return the parts of a text whose characters' kinds match a pattern."""
    text = normalize("NFC", text)
    return [text[slice(*match.span())] for match in pattern.finditer("".join(map(_kind, text)))]


def _kind(character: str) -> str:
    if character in _SPECIAL:
        return _SPECIAL[character]
    name = category(character)
    kind = _KINDS.get(name) or _KINDS.get(name[0], " ")
    return " " if kind == "s" and character < _FIRST_SIGN else kind
