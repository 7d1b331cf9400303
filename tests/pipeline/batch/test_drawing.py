"""A batch keeps all slots full, draws what `generate` draws, and survives a bad picture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline import DeviceError, InputError
from pipeline.batch.drawing import add_sizes, check, draw, grouped
from pipeline.batch.journal import Journal
from pipeline.batch.prompts import Batch, read_batch
from pipeline.drawing.engine import MAX_DECODED
from tests.checkpoints import CompilationCount, shared_pipeline
from tests.fake_pipeline import FakePipeline

SIZE = 16


def make_batch(folder: Path, *lines: dict[str, Any], **defaults: Any) -> Batch:
    file = folder / "list.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    return read_batch(file, defaults)


class Drawn:
    """The results of a batch.

    Attributes:
        failed: the reasons why pictures failed, by index.
        overs: the number of pictures that are finished or failed.
        cuts: the messages about prompts that were cut off.
    """

    def __init__(self, pipe: Any, batch: Batch, folder: Path):
        self.overs = 0
        self.cuts: list[str] = []
        with Journal(folder, batch) as journal:
            journal.begin({})
            try:
                draw(pipe, journal.left, folder, journal, self._on_over, self.cuts.append)
            finally:
                self.failed, self.drawn = journal.failed, journal.drawn

    def _on_over(self) -> None:
        self.overs += 1


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_the_pictures_are_those_of_generate(tmp_path: Path, out: Path):
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    lines: list[dict[str, Any]] = [
        {"prompt": "a star", "seed": 3, "images": 2},
        {"prompt": "a ring", "num_inference_steps": 5, "scheduler": "heun", "guidance_scale": 1},
        {"prompt": "a square", "image": "image.png", "strength": 0.7},
        {"prompt": "star " * 90},
    ]
    pipe = shared_pipeline(1)
    batch = make_batch(tmp_path, *lines)
    with CompilationCount() as count:
        check(pipe, batch.items)
        found = Drawn(pipe, batch, out)
    assert (count.value, found.overs, found.failed) == (0, 5, {})
    assert [cut.partition(": cut off, too long: ")[0] for cut in found.cuts] == [
        f"{tmp_path / 'list.jsonl'}:4"
    ]
    expected = [*pipe.generate("a star", seed=3, images=2).images]
    others = {key: value for key, value in lines[1].items() if key != "prompt"}
    expected += pipe.generate("a ring", seed=2, images=1, **others).images
    start = Image.fromarray(pixels)
    expected += pipe.generate("a square", seed=3, images=1, image=start, strength=0.7).images
    expected += pipe.generate("star " * 90, seed=4, images=1).images
    for item, image in zip(batch.items, expected, strict=True):
        with Image.open(out / item.name) as written:
            np.testing.assert_array_equal(np.asarray(written), np.asarray(image))
            assert written.info["parameters"] == image.info["parameters"]


def test_the_slots_stay_full_over_lines_of_different_steps(tmp_path: Path, out: Path):
    steps = [2 + index % 5 for index in range(60)]
    pipe = FakePipeline(slots=4)
    lines = [{"prompt": "a star", "num_inference_steps": each} for each in steps]
    assert Drawn(pipe, make_batch(tmp_path, *lines), out).overs == 60
    evaluations, pictures = pipe.evaluated
    assert pictures == sum(steps)
    assert evaluations <= sum(steps) / 4 + max(steps)  # the slots empty only at the end


def test_pictures_that_share_the_slots_follow_each_other(tmp_path: Path):
    other, size = {"loras": {"pixel": 1}}, {"height": 8, "width": 8}
    lines = [{"prompt": "a", **more} for more in ({}, other, size, {}, other, {"seed": 9})]
    found = grouped(make_batch(tmp_path, *lines).items)
    assert [item.index for item in found] == [0, 3, 5, 1, 4, 2]


def test_pictures_with_the_loras_of_tags_follow_each_other(tmp_path: Path):
    named = {"prompt": "a <lora:pixel:0.5>", "prompt_syntax": "a1111"}
    other = {"prompt": "b", "loras": {"pixel": 0.5}}
    lines = named, {"prompt": "c"}, other, {"prompt": "d"}, {**named, "prompt": "e<lora:pixel:.5>"}
    found = grouped(make_batch(tmp_path, *lines).items)
    assert [item.index for item in found] == [0, 2, 4, 1, 3]


def test_a_picture_that_is_not_finite_fails_alone(tmp_path: Path, out: Path):
    batch = make_batch(tmp_path, *({"prompt": each} for each in ("a", "overflow", "b", "c")))
    found = Drawn(FakePipeline(), batch, out)
    assert (found.overs, found.drawn, [*found.failed]) == (4, {0, 2, 3}, [1])
    assert found.failed[1].startswith("the latents are not finite")


def test_a_device_that_fails_ends_the_batch(tmp_path: Path, out: Path):
    """All pictures that are finished by then are written."""
    prompts = *("a" for _ in range(12)), "break"
    batch = make_batch(tmp_path, *({"prompt": prompt} for prompt in prompts))
    finished: list[None] = []
    with Journal(out, batch) as journal:
        journal.begin({})
        with pytest.raises(KeyError):
            draw(
                FakePipeline().as_pipeline(),
                journal.left,
                out,
                journal,
                lambda: finished.append(None),
                print,
            )
    assert len(finished) >= 12 - 2 * MAX_DECODED  # with more behind it, "break" cannot enter
    with Journal(out, batch) as journal:
        assert (journal.drawn, journal.failed) == ({*range(len(finished))}, {})


def test_lines_that_the_model_cannot_draw_are_found(tmp_path: Path):
    good = [{"prompt": "a star", "seed": seed} for seed in range(5)]
    pipe = shared_pipeline(1)
    where = f"{tmp_path / 'list.jsonl'}:6: "
    (tmp_path / "no.png").write_bytes(b"no picture")
    for bad, message in (
        ({"loras": "pixel:1"}, "no LoRA named 'pixel' is loaded"),
        ({"height": 15, "width": 16}, "height is 15; expected a multiple of 4"),
        ({"decoder": "tiny"}, "decoder is 'tiny', but the pipeline has no tiny VAE"),
        ({"image": "no.png"}, f"image {tmp_path / 'no.png'} cannot be used"),
        ({"scheduler": "dpmsolver++", "eta": 0.5}, "eta is 0.5, which scheduler 'dpmsolver++'"),
    ):
        batch = make_batch(tmp_path, *good, {"prompt": "a ring", **bad})
        with pytest.raises(InputError) as caught:
            check(pipe, batch.items)
        assert str(caught.value).startswith(where + message)


def test_sizes_that_do_not_fit_are_refused_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pipe = shared_pipeline(1)
    asked = []

    def refuse(sizes: list[tuple[int, int]]) -> None:
        asked.append(sizes)
        raise DeviceError("too little memory")

    monkeypatch.setattr(pipe, "check_memory", refuse)
    sizes = [(16, 16), (16, 24), (24, 16), (16, 24)]
    lines = [{"prompt": "a", "height": height, "width": width} for height, width in sizes]
    with pytest.raises(DeviceError):
        add_sizes(pipe, make_batch(tmp_path, {"prompt": "a"}, *lines).items)
    assert asked == [[(16, 24), (24, 16)]]
