"""LoRAs as text and as tags in a prompt."""

import pytest

from pipeline.text.loras import (
    add_tags,
    format_loras,
    is_lora_name,
    parse_loras,
    take_tags,
    without_unknown_tags,
)


@pytest.mark.parametrize(
    ("prompt", "rest", "loras"),
    [
        ("a cat", "a cat", ""),
        ("", "", ""),
        ("a cat <lora:pixel:0.8>", "a cat", "pixel:0.8"),
        ("<lora:pixel:.8>a cat<lora:other>", "a cat", "other:1,pixel:0.8"),
        ("<lora:with space:-1:+0.5> a\nb", "a\nb", "with space:0.5:-1"),  # text encoders first
        ("a <lora:pixel:1> <lora:pixel:2> b", "a b", "pixel:2"),
        ("a <lora:pixel:0>", "a", ""),
        *(
            (f"a {tag}", f"a {tag}", "")
            for tag in ("<lora:>", "<lora:a:x>", "<lora:a:5>", "<lora:a:1:1:1>", "<lora:a,b:1>")
        ),
        (" a <hypernet:b:1> ", " a <hypernet:b:1> ", ""),
    ],
)
def test_tags(prompt: str, rest: str, loras: str) -> None:
    assert take_tags(prompt) == (rest, loras)


@pytest.mark.parametrize(
    ("prompt", "rest", "missing"),
    [
        ("a cat", "a cat", []),
        (" a <lora:pixel:0.8> cat ", " a <lora:pixel:0.8> cat ", []),
        (" a <lora:gone:0.8> cat <lora:pixel:1> <lora:x>", "a cat <lora:pixel:1>", ["gone", "x"]),
        ("<lora:gone:much>", "<lora:gone:much>", []),  # this is no tag
    ],
)
def test_tags_of_unknown_loras(prompt: str, rest: str, missing: list[str]) -> None:
    assert without_unknown_tags(prompt, {"pixel"}) == (rest, missing)


def test_all_spaces_before_a_tag_go_with_it() -> None:
    assert take_tags("a" + " \t" * 500 + "<lora:b>  c") == ("a  c", "b:1")


def test_too_many_tags_stay() -> None:
    prompt = " ".join(f"<lora:{i}:1>" for i in range(9))
    assert take_tags(prompt) == (prompt, "")


@pytest.mark.parametrize("loras", ["", "pixel:0.8", "a:0:1,b:-4,with space:0.5:0.25"])
def test_tags_are_read_as_they_are_written(loras: str) -> None:
    assert take_tags(add_tags("a cat", loras)) == ("a cat", loras)


def test_small_weights() -> None:
    assert format_loras({"a": 1e-30, "b": 1.5e-7}) == "b:0.00000015"
    assert parse_loras("b:0.00000015") == {"b": (1.5e-7, 1.5e-7)}


@pytest.mark.parametrize(
    ("name", "usable"),
    [
        *((name, True) for name in ("a", "Pixel Art_v2.1", "add-detail", "星", "x" * 100)),
        *((name, False) for name in ("", " a", "a ", "a:b", "a,b", "<a", "a>", "a\tb", "a\nb")),
        *((name, False) for name in ("x" * 101, "\ud800", "a\u200b", None, 3)),
    ],
)
def test_names(name: object, usable: bool) -> None:
    assert is_lora_name(name) == usable
