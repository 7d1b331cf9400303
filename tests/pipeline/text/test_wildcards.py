"""Lists in prompts are resolved by a seed; no file and no text does harm."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.text.wildcards import (
    MAX_FILE,
    MAX_TEXT,
    Resolver,
    digest_of_lists,
    find_lists,
    longest_choice,
    read_lines,
)

ODD = st.lists(
    st.sampled_from([*"{}[]|\\_$2", "a", "__", "2$$", "{a|b}", "1-2$$a$$", "0.5::", "-$$"]),
    max_size=40,
).map("".join)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lists").mkdir()
    write(tmp_path / "lists", "colour", "# colours\nred\n\n  blue \n{dark|light} green")
    return tmp_path / "lists"


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.txt").write_text(text)


def choices(text: str, folder: Path | None = None, seeds: int = 60) -> set[str]:
    return {Resolver(seed, folder).resolve(text) for seed in range(seeds)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a {red|blue} fox", {"a red fox", "a blue fox"}),
        ("{a|{b|c} d}", {"a", "b d", "c d"}),
        ("{a|}b", {"ab", "b"}),
        ("{2$$a|b|c}", {"a, b", "b, a", "a, c", "c, a", "b, c", "c, b"}),
        ("{9$$a|b}", {"a, b", "b, a"}),
        ("{0$$a|b}", {""}),
        ("{1$$a}", {"a"}),
        ("{2$$ and $$a|b}", {"a and b", "b and a"}),
        ("{ 2$$$$a|b}", {"ab", "ba"}),
        ("{1-2$$+$$a|b}", {"a", "b", "a+b", "b+a"}),
        ("{-2$$a|b}", {"a", "b", "a, b", "b, a"}),
        ("{2-$$a|b}", {"a, b", "b, a"}),
        ("{2-1$$a|b}", {"a", "b", "a, b", "b, a"}),
        ("{2$$ and $${a|b}|c}", {"a and c", "c and a", "b and c", "c and b"}),
        ("{2$$a|b$$c}", {"a, b$$c", "b$$c, a"}),
        ("{0::a|b}", {"b"}),
        ("{0.5::a|.5::{b|c}| 1.::d}", {"a", "b", "c", "d"}),
        ("{0::a|0::b}", {"a", "b"}),
        ("{2$$0::a|b}", {"b, a"}),
        ("{1::2:1|4:3}", {"2:1", "4:3"}),
        ("a __colour__ fox", {"a __colour__ fox"}),
        ("{2$$__colour__}", {"__colour__"}),
        ("{[a|b]|(c:1.2)}", {"[a|b]", "(c:1.2)"}),
        ("{[a|b}", {"{[a|b}"}),
        ("{a}", {"{a}"}),
        ("{a|b", {"{a|b"}),
        ("a|b}", {"a|b}"}),
        (r"\{a|b\}", {r"\{a|b\}"}),
        ("____ __ __", {"____ __ __"}),
    ],
)
def test_lists(text: str, expected: set[str]) -> None:
    assert choices(text) == expected


def test_each_option_is_as_likely() -> None:
    counted = Counter(Resolver(seed, None).resolve("{a|b|c|d}") for seed in range(2000))
    assert min(counted.values()) > 400


def test_weights_are_relative() -> None:
    counted = Counter(Resolver(seed, None).resolve("{3::a|b|0.5::c}") for seed in range(4500))
    assert [round(counted[option] / 500) for option in "abc"] == [6, 2, 1]


def test_a_seed_always_chooses_the_same() -> None:
    # The choices are part of pictures' settings, so no version of Python may change them.
    found = [Resolver(seed, None).resolve("{a|b|c|d} {2$$e|f|g}") for seed in (0, 1, 2**32 - 1)]
    assert found == EXPECTED


EXPECTED = ["d g, e", "a g, f", "c e, g"]


def test_files(folder: Path) -> None:
    expected = {"a red fox", "a blue fox", "a dark green fox", "a light green fox"}
    assert choices("a __colour__ fox", folder) == expected
    (folder / "coats").mkdir()
    write(folder, "coats/long", "long __colour__ coat")
    assert "long blue coat" in choices("{__coats/long__|}", folder)


def test_different_lines_of_a_file(folder: Path) -> None:
    pairs = {"red", "blue", "dark green", "light green"}
    for found in choices("{2$$ and $$__colour__}", folder):
        one, other = found.split(" and ")
        assert one != other
        assert {one, other} <= pairs
    assert {found.count(" & ") for found in choices("{-9$$ & $$__colour__}", folder)} == {0, 1, 2}


def test_a_seed_always_chooses_the_same_lines(folder: Path) -> None:
    write(folder, "numbers", "\n".join(map(str, range(1000))))
    write(folder, "two", "__numbers__ {a|b|c}\n__numbers__")
    found = [
        Resolver(seed, folder).resolve("__numbers__ {x|y} __two__") for seed in (0, 1, 2**32 - 1)
    ]
    assert found == EXPECTED_LINES


EXPECTED_LINES = ["757 y 511 a", "847 x 255", "203 y 291"]


def test_a_list_is_read_once_for_each_of_its_versions(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_file = Path.open

    def noted(path: Path, *args: Any, **options: Any) -> Any:
        opened.append(path.name)
        return open_file(path, *args, **options)

    write(folder, "colour", "red")
    monkeypatch.setattr(Path, "open", noted)
    for seed in range(8):
        assert Resolver(seed, folder).resolve("__colour__ " * 100) == "red " * 100
    assert opened == ["colour.txt"]
    (folder / "new.txt").write_text("blue")
    (folder / "new.txt").replace(folder / "colour.txt")
    assert Resolver(0, folder).resolve("__colour__") == "blue"
    assert opened.count("colour.txt") == 2


def test_the_digest_of_lists_is_that_of_their_lines(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        write(folder, "colour", "red\nblue")
        (folder / "coats").mkdir()
        write(folder, "coats/long", "long")
        (folder / "broken.txt").write_bytes(b"\xff")
    digest = digest_of_lists(one)
    assert digest_of_lists(other) == digest
    write(other, "coats/long", "short")
    assert digest_of_lists(other) != digest
    (one / "coats" / "long.txt").rename(one / "long.txt")
    assert digest_of_lists(one) != digest


def test_a_line_that_is_too_long_is_not_read(folder: Path) -> None:
    write(folder, "long", "{x" + "|x" * MAX_TEXT + "}")
    with pytest.raises(InputError, match=f"longer than {MAX_TEXT} characters"):
        Resolver(0, folder).resolve("__long__")


ELSEWHERE = ["../secret", "/etc/passwd", "a/../../secret", "a\\b", "a.b", ".."]


@pytest.mark.parametrize("name", [*ELSEWHERE, "missing", "colour/red", "n" * 100])
def test_names_that_no_list_has_are_text(folder: Path, name: str) -> None:
    write(folder.parent, "secret", "secret")
    for place in (folder, None):
        assert Resolver(0, place).resolve(f"a __{name}__") == f"a __{name}__"


def test_links_that_lead_elsewhere(folder: Path) -> None:
    write(folder.parent, "secret", "secret")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    with pytest.raises(InputError, match="list __link__ is outside of the folder"):
        Resolver(0, folder).resolve("__link__")


def test_files_that_cannot_be_used(folder: Path) -> None:
    (folder / "large.txt").write_bytes(b"a" * (MAX_FILE + 1))
    (folder / "binary.txt").write_bytes(b"\xff\xfe\0")
    (folder / "nul.txt").write_bytes(b"a\0b\n")
    (folder / "blank.txt").write_bytes(b"# nothing\n\n")
    os.mkfifo(folder / "pipe.txt")
    (folder / "folder.txt").mkdir()
    for name, message in {
        "large": "is not a text file of at most 1 MB",
        "binary": "cannot be read as text in UTF-8",
        "nul": "has no lines of text",
        "blank": "has no lines of text",
        "pipe": "is not a text file",
        "folder": "is not a text file",
    }.items():
        with pytest.raises(InputError, match=message):
            Resolver(0, folder).resolve(f"__{name}__")


def test_files_that_name_each_other(folder: Path) -> None:
    write(folder, "circle", "__circle__")
    write(folder, "bomb", "__bomb__ __bomb__")
    write(folder, "wide", "__long__ " * 30)
    write(folder, "long", "x" * (MAX_TEXT // 20))
    for name in ("circle", "bomb"):
        with pytest.raises(InputError, match="let no file lead back to itself"):
            Resolver(0, folder).resolve(f"__{name}__")
    with pytest.raises(InputError, match=f"longer than {MAX_TEXT} characters"):
        Resolver(0, folder).resolve("__wide__")


@given(ODD | st.text(), st.integers(0, 2**32))
def test_any_text_is_resolved(text: str, seed: int) -> None:
    found = Resolver(seed, None).resolve(text)
    assert len(found) <= len(text) + text.count("|")  # a separator may come between two options


@pytest.mark.parametrize("piece", ["{", "}", "[", "{a|", "__", "|", "\\", "{2$$", "_", "__ a"])
def test_long_texts(piece: str) -> None:
    Resolver(0, None).resolve(piece * 10_000)
    Resolver(0, None).resolve(piece * 5_000 + "}" * 5_000)


@given(ODD)
def test_lists_are_found_as_they_are_written(text: str) -> None:
    for found in find_lists(text):
        choice = found.choice
        assert found in text
        assert choice.low <= choice.high
        assert len(choice.options) == len(choice.ends)
        if found.startswith("{") and not find_lists("".join(choice.options)):
            longest = sorted(choice.options, key=len, reverse=True)[: choice.high]
            assert longest_choice(found) == choice.separator.join(longest)


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("opening", "inside", "closing"),
    [("{", "", "}"), ("{ ", "", "}"), ("{a", "a|b", "}"), ("{", "2$$a|b", "}"), ("{[", "a", "]}")],
)
def test_deep_nesting_takes_linear_time(opening: str, inside: str, closing: str) -> None:
    """Joining the inside of each bracket would take minutes."""
    depth = 200_000
    text = opening * depth + inside + closing * depth
    assert len(longest_choice(text)) <= len(text)
    assert len(find_lists(text)) == ("|" in inside)


def test_a_list_is_found_where_it_is() -> None:
    assert find_lists(r"\{a|b}__{a|b}c__") == ["{a|b}"]


def test_a_file_is_read_once_for_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened = tmp_path / "colour.txt", []
    plain_open = Path.open

    def noted(path: Path, *arguments: Any) -> Any:
        opened.append(path.name)
        return plain_open(path, *arguments)

    file.write_text("red\n# no line\n\n blue ")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", noted)
        assert [read_lines(tmp_path, "colour") for _ in range(2)] == [("red", "blue")] * 2
    assert opened == ["colour.txt"]
    file.write_text("green!")
    assert read_lines(tmp_path, "colour") == ("green!",)
