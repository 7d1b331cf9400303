"""Token ids, compared with the calls of diffusers' SDXL pipeline, and tokenizers refused."""

import json
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from transformers import CLIPTokenizer

from pipeline.errors import CheckpointError
from pipeline.text.tokenizer import Tokenizer, Tokenizers
from tools.vocabulary import write_tokenizer

END = "<|endoftext|>"
LIMITS = {"tokenizer": 77, "tokenizer_2": 77}
WORDS = ["a", "large", "red", "star", "on", "blue", "background"]
PROMPTS = {
    "plain": "a large red star on a blue background",
    "blank": "",
    "whitespace": " \t\r\n\u00a0\u3000 ",
    "emoji": "a 😀 star 👩‍👩‍👧 ❤️",
    "right-to-left": "نجمة حمراء كبيرة שלום \u202eabc",
    "control": "a\x00red\x07\x1b[31m star\x7f\x85\ufeff\u200b",
    "padding token": "red! a!! ! star!",
    "special tokens": "<|startoftext|>red<|endoftext|> star <|EndOfText|>",
    "contractions": "it's a star's i'm we'll",
    "decomposed": "cafe\u0301 \u212b",
    "just fits": "red " * 75,
    "one too many": "red " * 75 + "star",
    "ends in the end token": "red " * 75 + END,
    "very long": "a large RED star, on 12 blue backgrounds; " * 250,
    "very long without words": "🙂" * 10_000,
}


def write_words_and_merges(folder: Path, pad_token: str) -> None:
    write_tokenizer(folder, WORDS, pad_token)


def write_single_file(folder: Path, pad_token: str) -> None:
    write_tokenizer(folder / "source", WORDS, pad_token)
    CLIPTokenizer.from_pretrained(folder / "source").save_pretrained(folder)
    for path in [*(folder / "source").iterdir(), folder / "source"]:
        path.unlink() if path.is_file() else path.rmdir()
    assert not (folder / "vocab.json").exists()


@pytest.fixture(scope="module", params=[write_words_and_merges, write_single_file])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    request.param(folder / "tokenizer", END)
    request.param(folder / "tokenizer_2", "!")
    return folder


def diffusers_ids(clip: CLIPTokenizer, prompt: str) -> tuple[np.ndarray, str]:
    """Tokenize as `StableDiffusionXLPipeline.encode_prompt` does, with NumPy arrays.

    Returns:
        The token ids, and the text that was cut off.
    """
    ids = clip(
        prompt,
        padding="max_length",
        max_length=clip.model_max_length,
        truncation=True,
        return_tensors="np",
    ).input_ids
    untruncated = clip(prompt, padding="longest", return_tensors="np").input_ids
    removed = ""
    if untruncated.shape[-1] >= ids.shape[-1] and not np.array_equal(ids, untruncated):
        [removed] = clip.batch_decode(untruncated[:, clip.model_max_length - 1 : -1])
    return ids[0], removed


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("component", ["tokenizer", "tokenizer_2"])
def test_agrees_with_diffusers(folder: Path, component: str, name: str) -> None:
    ids, removed = diffusers_ids(CLIPTokenizer.from_pretrained(folder / component), PROMPTS[name])
    tokenizer = Tokenizer.load(folder / component)
    kept = pickle.loads(pickle.dumps(tokenizer))
    for tokens in (tokenizer.tokenize(PROMPTS[name]), kept.tokenize(PROMPTS[name])):
        assert tokens.input_ids.dtype == np.int32
        np.testing.assert_array_equal(tokens.input_ids, ids)
        assert tokens.truncated == removed


def test_special_tokens_in_a_prompt_may_be_words(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tokenizer", tmp_path, dirs_exist_ok=True)
    set_config(tmp_path, split_special_tokens=True)
    ids, _ = diffusers_ids(CLIPTokenizer.from_pretrained(tmp_path), f"red{END} star")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.tokenize("red").count < tokenizer.tokenize(END).count
    for each in (tokenizer, pickle.loads(pickle.dumps(tokenizer))):
        np.testing.assert_array_equal(each.tokenize(f"red{END} star").input_ids, ids)


def test_both_forms_of_the_files_say_the_same(tmp_path: Path) -> None:
    write_words_and_merges(tmp_path / "pair", "!")
    write_single_file(tmp_path / "single", "!")
    pair, single = Tokenizer.load(tmp_path / "pair"), Tokenizer.load(tmp_path / "single")
    assert pair.vocabulary_size == single.vocabulary_size
    for prompt in PROMPTS.values():
        np.testing.assert_array_equal(
            pair.tokenize(prompt).input_ids, single.tokenize(prompt).input_ids
        )


def test_truncated_text_is_returned(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "tokenizer")
    assert tokenizer.tokenize(PROMPTS["just fits"]).truncated == ""
    assert tokenizer.tokenize("red " * 75 + "large star").truncated == "large star"


def test_two_tokenizers_give_the_ids_of_both(folder: Path) -> None:
    tokenizers = Tokenizers.load(folder, LIMITS)
    ids, truncated = tokenizers.tokenize(["red star", "red " * 80])
    assert (ids.shape, ids.dtype) == ((2, 2, 77), np.int32)
    assert truncated == ["", "red red red red red"]
    end = tokenizers.each[0].vocabulary_size - 1
    assert ids[0, 0, 3:].tolist() == [end] * 74  # the first tokenizer pads with the end token
    assert ids[0, 1, 3:].tolist() == [end] + [0] * 73  # the second with "!"
    np.testing.assert_array_equal(ids[:, :, :3][:, 0], ids[:, :, :3][:, 1])
    assert tokenizers.tokenize([])[0].shape == (0, 2, 77)


@pytest.mark.parametrize("prompt", ["\ud800", "red \udfff star", "\ud83d\ude00"])
def test_surrogates(folder: Path, prompt: str) -> None:
    tokenizer = Tokenizer.load(folder / "tokenizer")
    valid = "😀" if prompt == "\ud83d\ude00" else prompt.encode(errors="replace").decode()
    valid = valid.replace("?", "\ufffd")
    np.testing.assert_array_equal(
        tokenizer.tokenize(prompt).input_ids, tokenizer.tokenize(valid).input_ids
    )


def test_threads_may_share_a_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder / "tokenizer")
    expected = {name: tokenizer.tokenize(prompt).input_ids for name, prompt in PROMPTS.items()}
    wrong: list[str] = []

    def work() -> None:
        for name, ids in expected.items():
            if not np.array_equal(tokenizer.tokenize(PROMPTS[name]).input_ids, ids):
                wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def set_config(folder: Path, **changes: object) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_other_lengths(tmp_path: Path) -> None:
    write_words_and_merges(tmp_path, "!")
    set_config(tmp_path, model_max_length=8)
    tokens = Tokenizer.load(tmp_path).tokenize("red " * 8)
    assert tokens.input_ids.shape == (8,)
    assert tokens.truncated == "red red"
    set_config(tmp_path, model_max_length=100)
    assert Tokenizer.load(tmp_path, max_position_embeddings=128).length == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_max_length": 78}, r"model_max_length is 78; .* 3 to 77"),
        ({"model_max_length": 2}, r"model_max_length is 2"),
        ({"model_max_length": None}, r"model_max_length is 1000"),
        ({"padding_side": "left"}, r"padding_side is 'left'; only 'right'"),
        ({"truncation_side": "left"}, r"truncation_side is 'left'"),
    ],
)
def test_unsupported_configuration(tmp_path: Path, changes: dict, message: str) -> None:
    write_words_and_merges(tmp_path, "!")
    set_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: " + message):
        Tokenizer.load(tmp_path)


def test_each_text_encoder_has_a_length_of_its_own(tmp_path: Path) -> None:
    write_words_and_merges(tmp_path / "tokenizer", END)
    write_words_and_merges(tmp_path / "tokenizer_2", "!")
    set_config(tmp_path / "tokenizer_2", model_max_length=64)
    tokens = Tokenizers.load(tmp_path, LIMITS).tokens("red star", chunks=2)
    assert [len(each.input_ids) for each in tokens] == [2 * 77, 2 * 64]


@pytest.mark.parametrize("missing", ["vocab.json", "merges.txt"])
def test_missing_files(tmp_path: Path, missing: str) -> None:
    write_words_and_merges(tmp_path, END)
    (tmp_path / missing).unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer found; expected vocab\.json"):
        Tokenizer.load(tmp_path)


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer: no tokenizer found"):
        Tokenizers.load(tmp_path, LIMITS)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("vocab.json", "{"),
        ("vocab.json", "[1, 2]"),
        ("vocab.json", '{"a": "b"}'),
        ("merges.txt", "#version: 0.2\nonly-one-part\n"),
        ("merges.txt", "#version: 0.2\nnot in\n"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("special_tokens_map.json", "["),
        ("tokenizer.json", "{}"),
    ],
)
def test_damaged_files(tmp_path: Path, file: str, content: str) -> None:
    write_words_and_merges(tmp_path, END)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=r"the tokenizer cannot be read"):
        Tokenizer.load(tmp_path)


@pytest.mark.lasting
def test_nothing_is_printed(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from pipeline.text.tokenizer import Tokenizers;"
        f"Tokenizers.load(Path(sys.argv[1]), {LIMITS}).tokenize(['red ' * 200])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""
