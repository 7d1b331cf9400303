"""Files of prompts are read strictly, and errors name the file, the line and the setting."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline import InputError
from pipeline.batch import prompts
from pipeline.batch.prompts import Batch, read_batch
from pipeline.setting_kinds import MAX_SEED

SLOW = HealthCheck.too_slow, HealthCheck.function_scoped_fixture
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a file of prompts, by default one of JSON."""

    def write(*lines: str | dict[str, Any], name: str = "list.jsonl") -> Path:
        file = tmp_path / name
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        file.write_text("\n".join(texts), "utf-8", newline="")
        return file

    return write


def names(batch: Batch) -> list[str]:
    return [item.name for item in batch.items]


def test_each_line_of_a_text_is_a_prompt(write: Write):
    batch = read_batch(write("\ufeffa star\r", "  ", " a ring ", name="list.txt"), {"seed": 5})
    found = [item.request for item in batch.items]
    assert [(each.prompt, each.seed) for each in found] == [("a star", 5), ("a ring", 6)]
    assert [item.line.number for item in batch.items] == [1, 3]
    assert names(batch) == ["000000-5.png", "000001-6.png"]


def test_a_line_may_hold_any_setting(write: Write):
    own = {"prompt": "a star", "seed": 7, "images": 2, "scheduler": "DPM++ 2M Karras", "eta": None}
    own |= {"loras": {"pixel": 0.5}, "num_inference_steps": 3, "height": 8, "width": 16}
    batch = read_batch(write(own, {"prompt": "a ring"}), {"negative_prompt": "blue"})
    assert names(batch) == ["000000-7.png", "000001-8.png", "000002-2.png"]
    first, second, third = (item.request for item in batch.items)
    assert (first.scheduler, first.sigma_schedule) == ("dpmsolver++", "karras")
    assert (first.loras, first.num_inference_steps) == ("pixel:0.5", 3)
    assert (second.prompt, second.negative_prompt, second.seed) == ("a star", "blue", 8)
    assert [item.line.size for item in batch.items] == [(8, 16), (8, 16), None]
    assert (first.guidance_scale, third.num_inference_steps) == (None, None)  # the model's own


def test_variations_share_a_seed(write: Write):
    varied = {"prompt": "a star", "seed": 7, "variation_strength": 0.5, "images": 2}
    batch = read_batch(write(varied), {})
    assert names(batch) == ["000000-7.png", "000001-7.png"]
    assert [item.request.variation_seed for item in batch.items] == [0, 1]


def test_seeds_go_on_from_zero(write: Write):
    batch = read_batch(write("a star", "a ring", name="list.txt"), {"seed": MAX_SEED})
    assert names(batch) == [f"000000-{MAX_SEED}.png", "000001-0.png"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a star", "not JSON: Expecting value"),
        ("[1]", "not a JSON object; expected a line such as"),
        ("[" * 60_000, "not JSON: "),
        ('{"prompt": "a star", "seed": 1, "seed": 2}', "not JSON: it has 'seed' twice"),
        ('{"prompt": "a star", "guidance_scale": NaN}', "guidance_scale is nan; expected"),
        ('{"prompt": "a star", "seed": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
        ({"seed": 1}, "prompt is missing"),
        ({"prompt": None}, "prompt is missing"),
        ({"prompt": ["a star"]}, "prompt is ['a star']; expected a text"),
        ({"prompt": "a star", "negative_prompt": 1}, "negative_prompt is 1; expected a text"),
        ({"prompt": "a star", "sed": 1}, "unknown setting 'sed'; expected prompt, "),
        ({"prompt": "a star", "seed": -1}, "seed is -1; expected 0 to 4294967295"),
        ({"prompt": "a star", "seed": 1.5}, "seed is 1.5; expected a whole number"),
        ({"prompt": "a star", "guidance_scale": 1e308}, "guidance_scale is 1e+308; expected"),
        ({"prompt": "a star", "scheduler": "x"}, "scheduler is 'x'; expected one of"),
        ({"prompt": "a star", "images": 0}, "images is 0; expected 1 to 64"),
        ({"prompt": "a star", "images": 10**12}, "images is 1000000000000; expected 1 to 64"),
        ({"prompt": "a star", "images": True}, "images is True; expected a whole number"),
        ({"prompt": "a star", "height": 8}, "width is None; expected pixels, and both height"),
        ({"prompt": "a star", "height": 8, "width": "8"}, "width is '8'; expected pixels"),
        ({"prompt": "a star", "strength": 0.5}, "strength is given without image"),
        ({"prompt": "a star", "image": 1}, "image is 1; expected the path of a picture"),
        ({"prompt": "a star", "image": "no.png"}, "no.png: no such file; expected a PNG"),
        ({"prompt": "a star", "image": "."}, "no such file; expected a PNG"),
        ({"prompt": "a star", "image": "x" * 5000}, "cannot be read: File name too long"),
        ({"prompt": "a star", "image": "\0"}, "image is '\\x00'; expected the path"),
    ],
)
def test_a_bad_line(write: Write, line: str | dict[str, Any], message: str):
    file = write({"prompt": "a star"}, "", line)
    with pytest.raises(InputError) as caught:
        read_batch(file, {})
    assert str(caught.value).startswith(f"{file}:3: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("list.csv", b"a star", ": expected a file named *.txt or *.jsonl"),
        ("list.txt", b"a star\n\n\xff\n", ":3: not UTF-8; save the file in that encoding"),
        ("list.txt", b" \n\n", ": no prompts; expected one in each line"),
        ("list.txt", b"\n" * 101, ": larger than 100 bytes; split the file"),
        ("list.jsonl", b'{"prompt":"","images":6}\n' * 2, ":2: more than 9 pictures; split"),
    ],
)
def test_a_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
):
    for limit, value in {"MAX_BYTES": 100, "MAX_PICTURES": 9}.items():
        monkeypatch.setattr(prompts, limit, value)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_batch(tmp_path / name, {})
    assert str(caught.value).startswith(f"{tmp_path / name}{message}")


def test_settings_of_the_command_are_checked(write: Write):
    with pytest.raises(InputError, match=r"^seed is -1; expected"):
        read_batch(write("a star", name="list.txt"), {"seed": -1})


@pytest.mark.lasting
@settings(max_examples=100, deadline=None, suppress_health_check=[*SLOW])
@given(
    st.dictionaries(
        st.sampled_from(["prompt", "images", "seed", "loras", "timesteps", "height", "mask", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_any_line_is_read_or_refused(write: Write, values: dict[str, Any]):
    file, refused = write(values), ""
    try:
        found = [item.request.prompt for item in read_batch(file, {}).items]
    except InputError as error:
        found, refused = [], str(error)
    assert refused.startswith(f"{file}:1: ") or set(found) == {values["prompt"]}


def test_the_digest_is_that_of_the_pictures(write: Write, tmp_path: Path):
    """Equal pictures have equal digests, and others do not."""
    image = tmp_path / "image.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image)
    line = {"prompt": "a star", "image": "image.png"}

    def digest(*lines: dict[str, Any], **defaults: Any) -> str:
        return read_batch(write(*lines), defaults).digest

    same = digest(line)
    assert digest({**line, "seed": 0, "loras": {}}) == same
    changes = ({"seed": 1}, {"height": 8, "width": 8}, {"images": 2}, {"num_inference_steps": 25})
    others = [digest({**line, **change}) for change in changes]
    others += [digest(line, line), digest(line, seed=3), digest(line, guidance_scale=5.0)]
    Image.fromarray(np.ones((8, 8, 3), np.uint8)).save(image)
    others.append(digest(line))
    assert same not in others
    assert len({*others}) == len(others)
