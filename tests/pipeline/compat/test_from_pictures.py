"""The pipelines that begin with a picture, against pictures drawn by diffusers 0.39."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from pipeline import CheckpointError, InputError
from pipeline.compat import (
    FlaxStableDiffusionImg2ImgPipeline,
    FlaxStableDiffusionInpaintPipeline,
    FlaxStableDiffusionPipeline,
)
from tests.checkpoints import GOLDEN
from tools import flax_calls

SD = GOLDEN / "flax_sd/checkpoint"
INCUMBENT_BOUND = 2 / 255


@cache
def loaded() -> tuple[FlaxStableDiffusionImg2ImgPipeline, dict[str, Any]]:
    return FlaxStableDiffusionImg2ImgPipeline.from_pretrained(SD)


def test_inputs_are_those_of_diffusers() -> None:
    ids, images = loaded()[0].prepare_inputs(["a star", "night"], flax_calls.picture())
    assert ids.shape == (2, 77)
    assert (images.shape, images.dtype) == ((1, 3, 32, 32), np.float32)
    pixels = np.asarray(flax_calls.picture().resize((32, 32), Image.Resampling.LANCZOS))
    np.testing.assert_allclose(
        images[0].transpose(1, 2, 0), pixels.astype(np.float32) / 127.5 - 1, atol=1e-5
    )


@pytest.mark.slow
def test_pictures_are_those_of_diffusers() -> None:
    ours = flax_calls.from_pictures(*loaded())
    with np.load(GOLDEN / "flax_sd/incumbent_from_pictures.npz", allow_pickle=False) as theirs:
        assert set(ours) == {*theirs}
        for name, array in theirs.items():
            assert ours[name].shape == array.shape
            assert np.abs(ours[name] - array).max() <= INCUMBENT_BOUND, name
