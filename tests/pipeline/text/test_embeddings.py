"""Textual inversion: files, names in prompts, and rows."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.errors import CheckpointError, InputError
from pipeline.text.embeddings import (
    MAX_LENGTH,
    MAX_VECTORS,
    Embedding,
    Embeddings,
    Placement,
    is_embedding_name,
    read_embedding,
)
from pipeline.text.tokenizer import Tokenizer, Words
from tests.checkpoints import PLAIN

WIDTHS = (8, 12)


def embedding(name: str, length: int = 1, value: float = 0) -> Embedding:
    vectors = tuple(np.full((length, width), value, np.float32) for width in WIDTHS)
    return Embedding(name, Path(f"{name}.safetensors"), name.ljust(64, "0"), vectors)


def loaded(*given: Embedding) -> Embeddings:
    return Embeddings({each.name: each for each in given})


# --- files


def written(folder: Path, **tensors: np.ndarray) -> Path:
    file = folder / "style.safetensors"
    save_file(tensors, file)
    return file


@pytest.mark.parametrize("key", ["emb_params", "<cat-toy>", "clip_l"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_one_tensor_for_one_text_encoder(tmp_path: Path, key: str, dtype: type) -> None:
    rows = np.arange(24).reshape(3, 8).astype(dtype)
    found = read_embedding(written(tmp_path, **{key: rows}), "style", [8])
    assert (found.name, found.length, len(found.digest)) == ("style", 3, 64)
    [vectors] = found.vectors
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, rows.astype(np.float32))
    one = read_embedding(written(tmp_path, **{key: rows[1]}), "style", [8])
    np.testing.assert_array_equal(one.vectors[0], vectors[1:2])


@pytest.mark.parametrize("keys", [("clip_l", "clip_g"), ("text_encoders_0", "text_encoders_1")])
def test_a_pair_for_two_text_encoders(tmp_path: Path, keys: tuple[str, str]) -> None:
    pair = {keys[0]: np.ones((2, 8), np.float32), keys[1]: np.zeros((2, 12), np.float32)}
    found = read_embedding(written(tmp_path, **pair), "style", WIDTHS)
    for vectors, right in zip(found.vectors, pair.values(), strict=True):
        np.testing.assert_array_equal(vectors, right)


ONE, TWO = np.ones((2, 8), np.float32), np.ones((2, 12), np.float32)


@pytest.mark.parametrize(
    ("tensors", "widths", "said"),
    [
        ({"emb_params": TWO}, [8], r"'emb_params' has shape \[2, 12\]; .* \[1 to 75, 8\]"),
        ({"a": np.ones((76, 8), np.float32)}, [8], r"shape \[76, 8\]; .* \[1 to 75, 8\]"),
        ({"a": np.ones((0, 8), np.float32)}, [8], r"shape \[0, 8\]"),
        ({"a": np.ones((1, 1, 8), np.float32)}, [8], r"shape \[1, 1, 8\]"),
        ({"a": np.array(1, np.float32)}, [8], r"shape \[\]"),
        ({"a": np.ones((1, 8), np.int32)}, [8], "'a' is int32; expected a float dtype"),
        ({"a": np.full((1, 8), np.nan, np.float32)}, [8], "'a' has values that are not finite"),
        ({"clip_l": ONE, "clip_g": TWO}, [8], "have one tensor; this file has 'clip_g', 'clip_l'"),
        ({"a": ONE, "b": ONE, "c": ONE, "d": ONE, "e": ONE}, [8], "'a', 'b', 'c' and 2 more"),
        ({}, [8], "have one tensor; this file has none"),
        ({"clip_l_out": ONE}, [8], "have one tensor; this file has 'clip_l_out'$"),
        (
            {"unet.a.lora_A.weight": ONE, "unet.a.lora_B.weight": ONE},
            [8],
            "lora_B.weight': it is a LoRA; copy it into LORA_DIR$",
        ),
        (
            {"control_model.a.weight": ONE, "b": ONE},
            WIDTHS,
            "'control_model.a.weight': it is a ControlNet; copy it into CONTROL_DIR$",
        ),
        ({"emb_params": ONE}, WIDTHS, "the tensors clip_l and clip_g; this file has 'emb_params'"),
        ({"clip_l": ONE}, WIDTHS, "the tensors clip_l and clip_g; this file has 'clip_l'"),
        ({"clip_l": TWO, "clip_g": ONE}, WIDTHS, r"'clip_l' has shape \[2, 12\]; .* 8\]"),
        ({"clip_l": ONE[:1], "clip_g": TWO}, WIDTHS, r"\[1, 8\] and \[2, 12\]; expected equally"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], widths: list[int], said: str
) -> None:
    file = written(tmp_path, **tensors)
    with pytest.raises(CheckpointError, match=said) as caught:
        read_embedding(file, "style", widths)
    assert str(file) in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = written(tmp_path, emb_params=ONE).read_bytes()
    header = json.dumps({"a": {"dtype": "F32", "shape": [1, 8], "data_offsets": [0, 10**12]}})
    for content in (
        *(b"", whole[:4], whole[:-1], whole + b"0", b"\xff" * 100),
        len(header).to_bytes(8, "little") + header.encode() + b"0" * 32,
    ):
        file = tmp_path / "damaged.safetensors"
        file.write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            read_embedding(file, "style", [8])
        assert str(file) in str(caught.value)
    (tmp_path / "folder.safetensors").mkdir()
    for name in ("gone", "folder"):
        with pytest.raises(CheckpointError, match=rf"{name}\.safetensors"):
            read_embedding(tmp_path / f"{name}.safetensors", "style", [8])


@pytest.mark.parametrize("suffix", [".pt", ".bin", ".PT"])
def test_pickles_are_refused_unopened(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(CheckpointError, match="pickles, which can run code and are never opened"):
        read_embedding(tmp_path / f"style{suffix}", "style", [8])


# --- names


def test_names() -> None:
    for name in ("style", "bad-hands-5", "ng_deepnegative_v1_75t", "my style", "é", "x" * 100):
        assert is_embedding_name(name)
    for name in ("", " ", " a", "a ", "a,b", "a:b", "<a>", "(a)", "[a]", "a|b", "a\nb", "x" * 101):
        assert not is_embedding_name(name)


def split(prompt: str, *names: str) -> list[str]:
    """Return the parts of a prompt that name one of the embeddings, and the others in brackets."""
    parts = loaded(*map(embedding, names)).split(prompt)
    assert "".join(text for text, _ in parts) == prompt
    return [each.name if each else f"[{text}]" for text, each in parts]


def test_a_name_is_a_whole_word() -> None:
    assert split("a style, bold", "style") == ["[a ]", "style", "[, bold]"]
    assert split("a <style>", "style") == ["[a ]", "style", "[]"]
    assert split("(style:1.2) STYLE.", "style") == ["[(]", "style", "[:1.2) ]", "style", "[.]"]
    for text in ("styles", "freestyle", "life-style", "style_2", "style-2", "sty le", "été"):
        assert split(text, "style") == [f"[{text}]"]
    assert split("ÉTÉ", "été") == ["[]", "été", "[]"]


def test_the_longest_name_is_taken() -> None:
    assert split("my style", "style", "my style") == ["[]", "my style", "[]"]
    assert split("a.b a", "a", "a.b") == ["[]", "a.b", "[ ]", "a", "[]"]


def test_names_are_unique_but_for_case() -> None:
    given = loaded(embedding("style"))
    for name in ("style", "Style"):
        with pytest.raises(InputError, match="an embedding named 'style' is loaded"):
            given.with_one(embedding(name))
    with pytest.raises(InputError, match="an embedding named 'style' is loaded"):
        given.with_one(embedding("Style"), replace=True)
    assert given.with_one(embedding("style", 3), replace=True)["style"].length == 3
    assert given["style"].length == 1
    assert not given.without("style")
    with pytest.raises(InputError, match="no embedding named 'x' is loaded; loaded are: 'style'"):
        given.without("x")


# --- rows


def test_rows_are_given_in_the_order_of_first_use() -> None:
    placement = Placement(loaded(embedding("a", 2, 1.0), embedding("b", 3, 2.0)))
    assert placement.vectors() is None
    assert placement.place("red") == [Words("red")]
    assert placement.place("b and a") == [
        *(
            Words(""),
            Words("b", 1.0, (-1, -2, -3)),
            Words(" and "),
            Words("a", 1.0, (-4, -5)),
            Words(""),
        )
    ]
    assert placement.place("A")[1] == Words("A", 1.0, (-4, -5))
    rows = placement.vectors()
    assert rows is not None
    for vectors, width in zip(rows, WIDTHS, strict=True):
        assert vectors.shape == (MAX_VECTORS, width)
        assert vectors[:, 0].tolist() == [2, 2, 2, 1, 1, *[0] * (MAX_VECTORS - 5)]
    assert placement.hashes("a star", "a b") == "a: a00000000000, b: b00000000000"
    assert placement.hashes("star", "") is None


def test_too_many_vectors_for_a_request() -> None:
    count = MAX_VECTORS // MAX_LENGTH + 1
    given = loaded(*(embedding(f"e{i}", MAX_LENGTH) for i in range(count)))
    prompt = " ".join(given)
    with pytest.raises(InputError, match=f"e0, e1, .* {count * MAX_LENGTH} vectors; a request can"):
        Placement(given).place(prompt)
    assert Placement(given, limit=None).place(prompt)


# --- tokens


def test_vectors_count_as_tokens() -> None:
    tokenizer = Tokenizer.load(PLAIN / "tokenizer")
    start, red, end = tokenizer.tokenize("red").input_ids[:3]
    placement = Placement(loaded(embedding("style", 2)))
    tokens = tokenizer.tokenize(placement.place("red style red"))
    assert tokens.count == 6
    assert tokens.input_ids[:6].tolist() == [start, red, -1, -2, red, end]
    assert tokens.truncated == ""


def test_vectors_that_do_not_fit_are_cut() -> None:
    tokenizer = Tokenizer.load(PLAIN / "tokenizer")
    start, red, end = tokenizer.tokenize("red").input_ids[:3].tolist()
    before = tokenizer.length - 2 - 1  # one vector of three fits
    placement = Placement(loaded(embedding("style", 3)))
    tokens = tokenizer.tokenize(placement.place("red " * before + "<style> red"))
    assert tokens.input_ids.tolist() == [start, *[red] * before, -1, end]
    assert tokens.truncated == "<style> red"
    assert tokens.count == tokenizer.length + 3
