"""The miniature's tokenizer files, as transformers' `CLIPTokenizer` reads them."""

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import BUNDLED
from pipeline.checkpoints.word_list import read_words
from pipeline.text.tokenizer import Tokenizer
from tools.vocabulary import (
    byte_symbols,
    word_merges,
    write_tokenizer,
    write_tokenizers,
)

END = "<|endoftext|>"
# Words that share beginnings, endings and middles, repeat themselves or contain one another.
TEXT = (
    "a star stars starfish last lastly least blue blueish red redder square squares coco "
    "cococo banana nana an on onion café naïve größe красный 星 ааа aaaa aaaaa inside "
    "outside side left right of yellow low below above t st"
)
WORDS = TEXT.split()


def load(folder: Path, words: Sequence[str], pad_token: str = END) -> Tokenizer:
    write_tokenizer(folder, words, pad_token)
    return Tokenizer.load(folder)


def middle(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the ids between start and end token; the tokenizer pads with the end token."""
    start, end = tokenizer.vocabulary_size - 2, tokenizer.vocabulary_size - 1
    ids = tokenizer.tokenize(prompt).input_ids.tolist()
    assert ids[0] == start
    return ids[1 : ids.index(end)]


def test_every_word_is_one_token(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, WORDS)
    ids = [middle(tokenizer, word) for word in WORDS]
    assert [len(found) for found in ids] == [1] * len(WORDS)
    assert len({found[0] for found in ids}) == len(WORDS)
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert middle(tokenizer, "star") == [vocabulary["star</w>"]]


@pytest.mark.parametrize("seed", range(5))
def test_every_word_of_a_tangled_list_is_one_token(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(200)]
    tokenizer = load(tmp_path, words)
    assert all(len(middle(tokenizer, word)) == 1 for word in words)


def test_case_and_spaces_do_not_matter(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, WORDS)
    assert middle(tokenizer, "  A   Red\nSTAR,") == middle(tokenizer, "a red star ,")
    assert len(middle(tokenizer, "a red star")) == 3


def test_ids_are_numbered_in_clips_order(tmp_path: Path) -> None:
    load(tmp_path, ["red"])
    vocabulary = json.loads((tmp_path / "vocab.json").read_text(encoding="utf-8"))
    assert list(vocabulary.values()) == list(range(512 + 2 + 2))
    assert (vocabulary["!"], vocabulary["!</w>"]) == (0, 256)
    assert [*vocabulary][-4:] == ["re", "red</w>", "<|startoftext|>", END]


@pytest.mark.parametrize("pad_token", [END, "!"])
def test_padding(tmp_path: Path, pad_token: str) -> None:
    tokenizer = load(tmp_path, WORDS, pad_token)
    ids = tokenizer.tokenize("red").input_ids
    assert ids.shape == (77,)
    assert set(ids[3:].tolist()) == {tokenizer.vocabulary_size - 1 if pad_token == END else 0}


def test_every_byte_has_its_symbol() -> None:
    assert len(set(byte_symbols())) == 256
    assert byte_symbols()[0] == "!"


def test_any_text_has_a_spelling(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, WORDS)
    for text in (string.printable, "😀 שלום עולם", "\x00\x07\x7f", "Ω≈ç√", "ǅ\u0301"):
        ids = middle(tokenizer, text)
        assert ids
        assert max(ids) < tokenizer.vocabulary_size - 2


@pytest.mark.parametrize("word", ["", "Red", "t-shirt", "two words", "3d", "don't"])
def test_a_word_outside_the_vocabulary_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="lower-case word of letters only"):
        word_merges([word])


def test_every_emoji_is_one_token_wherever_it_stands(tmp_path: Path) -> None:
    emoji = ["🦊", "🍎", "❤️", "🐻‍❄️"]
    write_tokenizer(tmp_path, WORDS, END, emoji)
    tokenizer = Tokenizer.load(tmp_path)
    alone = [middle(tokenizer, sign) for sign in emoji]
    assert [len(ids) for ids in alone] == [1] * len(emoji)
    inside = middle(tokenizer, "".join(emoji))
    assert len(inside) == len(emoji)
    assert len({*inside, *(ids[0] for ids in alone)}) == 2 * len(emoji) - 1
    assert len(middle(tokenizer, "a star")) == 2


def test_a_checkpoint_lists_its_words(tmp_path: Path) -> None:
    write_tokenizers(tmp_path, ["a red star", "a 3d fox, red"], ["🦊", "❤️"])
    assert set(read_words(tmp_path)) == {"a", "d", "fox", "red", "star", "🦊", "❤️"}


def test_the_bundled_model_lists_its_own_words(tmp_path: Path) -> None:
    write_tokenizers(tmp_path, read_words(BUNDLED))
    for name in ("words.txt", "tokenizer/merges.txt"):
        assert (tmp_path / name).read_bytes() == (BUNDLED / name).read_bytes()
