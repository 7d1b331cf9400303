"""Timing of the previews, and their cost."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.drawing.drawing import Picture
from pipeline.images import metadata
from pipeline.images.metadata import Settings
from serving.generators.picture_files import (
    PAUSE_S,
    SHARE,
    SIDE,
    Previews,
    encode,
    small_jpeg_of,
)


class Clock:
    """Clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_finished_picture_is_small_among_previews():
    found = Image.open(io.BytesIO(small_jpeg_of(Image.new("RGB", (1024, 768)))))
    assert (found.format, found.size) == ("JPEG", (SIDE, SIDE * 3 // 4))


@pytest.mark.parametrize(("model", "written"), [("pony", "0123456789"), ("other", None)])
def test_a_picture_names_the_hash_of_its_model(model: str, written: str | None):
    images = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for image in images:
        metadata.attach(image, Settings("a star", model=model))
    picture = Picture(0, images[0], unblurred=images[1])
    event = encode(picture, 7, True, (), {"pony": "0123456789abcdef"})
    assert event.settings["model_hash"] == written
    for file in (event.png, event.unblurred):
        assert file is not None
        settings = metadata.from_text(Image.open(io.BytesIO(file)).info[metadata.KEY])
        assert (settings.model, settings.model_hash) == (model, written)


def test_one_jpeg_for_each_picture():
    colours = np.zeros((3, 16, 12, 3), np.uint8)
    colours[1] = (200, 30, 90)
    files = Previews().make(lambda: dict(enumerate(colours)))
    pictures = [Image.open(io.BytesIO(files[index])) for index in range(3)]
    assert [(picture.format, picture.size) for picture in pictures] == [("JPEG", (12, 16))] * 3
    found = np.asarray(pictures[1]).mean(axis=(0, 1))
    np.testing.assert_allclose(found, (200, 30, 90), atol=3)


@pytest.mark.parametrize("among", [1, 3])
def test_previews_take_a_small_share_of_the_time(among: int):
    """Previews take a small share of the time, whatever one costs and however short the steps."""
    for cost_s in (0.0, 0.001, 0.1, 2.0):
        clock = Clock()
        looks: list[float] = []

        def look(clock: Clock = clock, looks: list[float] = looks, cost_s: float = cost_s):
            looks.append(clock.now)
            clock.now += cost_s
            return {0: np.zeros((1, 1, 3), np.uint8)}

        previews = Previews(clock)
        while len(looks) < 20:
            clock.now += 0.01
            before = len(looks)
            assert bool(previews.make(look, among)) == (len(looks) > before)
        spent_s, whole_s = 19 * cost_s, looks[-1] - looks[0]
        assert among * spent_s <= SHARE * whole_s
        assert whole_s >= 19 * PAUSE_S
