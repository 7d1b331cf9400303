"""LoRAs as text and as tags in a prompt."""

import pytest

from pipeline.text.loras import (
    add_tags,
    drop_tags,
    format_loras,
    is_lora_name,
    parse_loras,
    take_tags,
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
        ("a, <lora:pixel>, b", "a, , b", "pixel:1"),  # not ",,", which is another token
        ("a <lora:pixel>b", "a b", "pixel:1"),
        ("<lyco:pixel:0.5>", "", "pixel:0.5"),
        ("a <lora:pixel:te=0.5:unet=.9>", "a", "pixel:0.9:0.5"),
        ("a <lora:pixel:0.3:unet=0.9>", "a", "pixel:0.9:0.3"),
        ("a <lora:pixel:te=0.3>", "a", "pixel:0.3"),
        ("a <lora:pixel: 0.8 :8e-1>", "a", "pixel:0.8"),
        ("a <lora:pixel:0.8:0.8:32>", "a <options:pixel:32>", "pixel:0.8"),
        ("<lora:pixel:dyn=32:lbw=ALL> a", "<options:pixel:dyn=32:lbw=ALL> a", "pixel:1"),
        ("{<lora:a:1>|b} <lora:c:1>", "{<lora:a:1>|b}", "c:1"),
        *(
            (f" a {tag}", f" a {tag}", "")
            for tag in (
                *("<lora:>", "<lora:a:x>", "<lora:a:5>", "<lora:a:1:nan>", "<lora:a,b:1>"),
                *("<lora:te=1>", "<hypernet:b:1>", "<LORA:a:1>", "<lora a>"),
            )
        ),
    ],
)
def test_tags(prompt: str, rest: str, loras: str) -> None:
    assert take_tags(prompt) == (rest, loras)


def test_tags_of_unknown_loras_stay() -> None:
    prompt = "a <lora:gone:0.8> cat <lora:pixel:1> <lora:x>"
    assert take_tags(prompt, {"pixel"}) == ("a <lora:gone:0.8> cat <lora:x>", "pixel:1")


@pytest.mark.parametrize(
    ("prompt", "rest", "tags"),
    [
        (" a cat ", " a cat ", []),
        ("a <lora:gone:x> cat <hypernet:b:1>", "a cat", ["<lora:gone:x>", "<hypernet:b:1>"]),
        ("a <b:c d\ne>, 1 < 2: 3 > 2, <b>, <:b>", "a, 1 < 2: 3 > 2, <b>, <:b>", ["<b:c d\ne>"]),
        ("<lora:a<b:1>", "<lora:a", ["<b:1>"]),
    ],
)
def test_all_tags_are_dropped(prompt: str, rest: str, tags: list[str]) -> None:
    assert drop_tags(prompt) == (rest, tags)


@pytest.mark.parametrize("piece", ["<", "<a:", "<a", "a:", " ", "<lora:b>", "<lora:b:"])
def test_long_prompts_take_linear_time(piece: str) -> None:
    drop_tags(piece * 100_000)
    take_tags(piece * 100_000)


def test_all_spaces_before_a_tag_go_with_it() -> None:
    assert take_tags("a" + " \t" * 500 + "<lora:b>  c") == ("a  c", "b:1")


def test_tags_beyond_the_limit_stay() -> None:
    prompt = " ".join(f"<lora:{i}:1>" for i in range(10))
    expected = ",".join(f"{i}:1" for i in range(7)) + ",7:2"
    assert take_tags(f"{prompt} <lora:7:2>") == ("<lora:8:1> <lora:9:1>", expected)


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
