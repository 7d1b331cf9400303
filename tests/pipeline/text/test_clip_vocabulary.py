"""The bundled vocabulary gives the ids of CLIP's published tokenizers."""

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import CLIPTokenizer

from pipeline.families.single_files import CONFIGS
from pipeline.text.tokenizer import (
    MERGES,
    Tokenizer,
    completed,
    identity,
    uses_bundled_vocabulary,
    vocabulary,
)
from tests.checkpoints import GOLDEN

START, END = 49406, 49407
FOLDERS = sorted(file.parent for file in CONFIGS.glob("*/tokenizer*/tokenizer_config.json"))
# The ids that openai/clip-vit-large-patch14 gives.
PUBLISHED = {
    "a photo of a cat": [320, 1125, 539, 320, 2368],
    "A photo of\ta CAT": [320, 1125, 539, 320, 2368],
    "a photograph of an astronaut riding a horse": [
        *(320, 8853, 539, 550, 18376, 6765, 320, 4558),
    ],
    "hello world": [3306, 1002],
    "a diagram, a dog": [320, 22697, 267, 320, 1929],
    "": [],
}


@pytest.mark.parametrize("prompt", PUBLISHED)
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "/".join(folder.parts[-2:]))
def test_known_prompts(folder: Path, prompt: str) -> None:
    ids = Tokenizer.load(folder).tokenize(prompt).input_ids
    right = [START, *PUBLISHED[prompt], END]
    pad = END if folder.parts[-2:] in (("sd_1", "tokenizer"), ("sdxl", "tokenizer")) else 0
    assert ids.tolist() == [*right, *[pad] * (77 - len(right))]


def test_every_merge_makes_a_token() -> None:
    tokens = vocabulary(gzip.decompress(MERGES.read_bytes()).decode())
    assert len(tokens) == 49408
    assert [tokens[text] for text in ("!", "!</w>", "<|startoftext|>", "<|endoftext|>")] == [
        *(0, 256, START, END),
    ]
    assert [*tokens.values()] == [*range(49408)]


def test_the_ids_are_those_of_the_whole_files() -> None:
    """A prompt that is not English, has signs, the padding token, and is too long."""
    prompt = "wow! Ein Käse, 30 € 😀 <|endoftext|> it's " * 9
    for folder in FOLDERS:
        with completed(folder) as whole:
            clip = CLIPTokenizer.from_pretrained(whole)
            right = clip(prompt, padding="max_length", max_length=77, truncation=True).input_ids
        np.testing.assert_array_equal(Tokenizer.load(folder).tokenize(prompt).input_ids, right)


def test_only_a_configuration_that_says_so_uses_it(tmp_path: Path) -> None:
    assert all(map(uses_bundled_vocabulary, FOLDERS))
    assert not uses_bundled_vocabulary(GOLDEN / "plain/checkpoint/tokenizer")
    assert not uses_bundled_vocabulary(tmp_path)


def test_the_key_of_the_cache_holds_the_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = identity(CONFIGS / "sd_1", ["tokenizer"])
    other = shutil.copy(MERGES, tmp_path)
    Path(other).write_bytes(gzip.compress(b"a b\n"))
    monkeypatch.setattr("pipeline.text.tokenizer.MERGES", Path(other))
    assert identity(CONFIGS / "sd_1", ["tokenizer"]) != before
