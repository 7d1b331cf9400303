"""The pipelines that begin with a picture, against pictures drawn by diffusers 0.39."""

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image

from pipeline import CheckpointError, InputError
from pipeline.compat import (
    FlaxStableDiffusionImg2ImgPipeline,
    FlaxStableDiffusionInpaintPipeline,
)
from tests import flax_calls
from tests.checkpoints import GOLDEN

SD = GOLDEN / "flax_sd/checkpoint"


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


def test_inputs_of_other_types_are_refused() -> None:
    with pytest.raises(InputError, match="image is str; expected a PIL picture, or a list"):
        loaded()[0].prepare_inputs("a star", "a.png")  # type: ignore[arg-type]


def test_masks_are_black_and_white_and_hide_their_part() -> None:
    pipeline = object.__new__(FlaxStableDiffusionInpaintPipeline)
    pipeline._tokenizers = loaded()[0]._tokenizers
    _, images, masks = pipeline.prepare_inputs("a star", flax_calls.picture(), flax_calls.mask())
    assert (images.shape, masks.shape) == ((1, 3, 32, 32), (1, 1, 32, 32))
    assert {*np.unique(masks)} == {0, 1}
    hidden = np.broadcast_to(masks == 1, images.shape)
    assert not np.asarray(images)[hidden].any()
    assert np.asarray(images)[~hidden].any()


@pytest.mark.parametrize(("strength", "start"), [(0.8, 10), (1.0, 0), (0.55, 23)])
def test_the_first_timestep(strength: float, start: int) -> None:
    assert loaded()[0].get_timestep_start(50, strength) == start


@pytest.mark.slow
def test_a_picture_with_little_strength_stays_near() -> None:
    pipeline, params = loaded()
    ids, image = pipeline.prepare_inputs(["a star"], flax_calls.picture())

    def draw(strength: float, **options: Any) -> np.ndarray:
        size = {"height": 32, "width": 32, **options}
        key = jax.random.PRNGKey(0)
        drawn = pipeline(ids, image, params, key, strength, num_inference_steps=10, **size)
        return np.asarray(drawn.images)

    near, far = draw(0.1), draw(1.0)
    assert near.shape == (1, 32, 32, 3)
    assert np.abs(draw(0.2) - near).mean() < np.abs(far - near).mean()
    with pytest.raises(InputError, match=r"image is \[1, 3, 32, 32\] on each device; expected"):
        draw(0.5, height=16, width=16)
    with pytest.raises(InputError, match="strength"):
        draw(0.05)


def test_a_checkpoint_without_a_mask_is_refused_for_inpainting() -> None:
    with pytest.raises(CheckpointError, match="is for FlaxStableDiffusionPipeline, not for"):
        FlaxStableDiffusionInpaintPipeline.from_pretrained(SD)
