"""Clip skip, a number of each picture."""

import jax
import numpy as np
import pytest

from pipeline import InputError, SDXLPipeline
from pipeline.images import metadata
from pipeline.request import GenerateRequest
from tests.checkpoints import EXECUTABLES, SD_1, nothing_compiles, shared_pipeline

STEPS = 2


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        SD_1, images_per_request=2, devices=jax.devices()[:1], cache_dir=EXECUTABLES
    )


@pytest.mark.slow
def test_each_value_draws_other_pictures_and_nothing_compiles(pipe: SDXLPipeline):
    with nothing_compiles():
        drawn = [
            pipe.generate("a red star", num_inference_steps=STEPS, clip_skip=skip, images=1)
            for skip in (0, 1, 2, 3)
        ]
    pixels = [np.asarray(result.images[0]) for result in drawn]
    assert (pixels[0] == pixels[1]).all()
    assert len({picture.tobytes() for picture in pixels}) == 3
    texts = [result.images[0].info[metadata.KEY] for result in drawn]
    assert [metadata.from_text(text).clip_skip for text in texts] == [None, 1, 2, 3]


def test_pictures_with_other_values_share_a_step(pipe: SDXLPipeline):
    requests = [
        GenerateRequest("a red star", num_inference_steps=STEPS, clip_skip=skip) for skip in (1, 2)
    ]
    drawings = [pipe.prepare(request, 1) for request in requests]
    for drawing in drawings:
        pipe.begin(drawing)
    together: dict[int, np.ndarray] = {}
    while pipe.is_busy:
        for progress in pipe.advance():
            for picture in progress.finished:
                together[drawings.index(progress.drawing)] = np.asarray(picture.image)
    for i, request in enumerate(requests):
        [alone] = pipe.generate(request, images=1).images
        np.testing.assert_array_equal(together[i], np.asarray(alone))


def test_other_models_have_none():
    pipe = shared_pipeline(1)
    with pytest.raises(InputError, match="clip_skip is 2"):
        pipe.generate("a star", clip_skip=2)
