"""Drawing from pictures: image to image, inpainting, the masked part alone."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline import InputError, SDXLPipeline, metadata
from pipeline.images.inputs import to_bytes
from pipeline.request import SETTINGS
from tests.checkpoints import nothing_compiles, shared_pipeline
from tools.agreement import relative_error

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(size=(4, 16, 16, 3)).astype(np.float32)
IMAGE = IMAGES[0]
MASK = np.zeros((16, 16), np.float32)
MASK[:, 8:] = 1
LARGE = RNG.uniform(size=(60, 90, 3)).astype(np.float32)
LARGE_MASK = np.zeros((60, 90), np.float32)
LARGE_MASK[10:20, 30:45] = 1


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    return shared_pipeline(1)


def drawn(pipe: SDXLPipeline, output_type: str = "latent", **options: Any) -> Any:
    """Return the pictures of a request with 4 steps, one picture by default."""
    given: dict[str, Any] = {"prompt": "a star", "images": 1, "num_inference_steps": 4, **options}
    return pipe.generate(output_type=output_type, **given).images


def test_a_picture_with_little_strength_stays_near(pipe: SDXLPipeline) -> None:
    x0 = drawn(pipe, image=IMAGE, strength=0.25)
    assert not np.array_equal(x0, drawn(pipe))
    distances = [
        np.abs(drawn(pipe, image=IMAGE, strength=strength) - x0).mean()
        for strength in (0.5, 0.75, 1)
    ]
    assert distances == sorted(distances)
    np.testing.assert_array_equal(drawn(pipe, image=IMAGE), drawn(pipe, image=IMAGE, strength=0.8))


def test_strength_is_the_share_of_the_steps(pipe: SDXLPipeline) -> None:
    steps: list[tuple[int, int]] = []
    drawn(pipe, image=IMAGE, strength=0.5, on_step=lambda *step: steps.append(step[:2]))
    assert steps == [(1, 2), (2, 2)]


def test_nothing_is_compiled_for_pictures_and_masks(pipe: SDXLPipeline) -> None:
    drawn(pipe)
    with nothing_compiles():
        drawn(pipe, image=IMAGE, strength=0.5)
        drawn(pipe, "np", images=2, image=IMAGE, mask=MASK, strength=0.75)


def test_one_picture_for_all_or_one_for_each(pipe: SDXLPipeline) -> None:
    each = drawn(pipe, images=4, image=[*IMAGES], mask=MASK, seed=5)
    for i, image in enumerate(IMAGES):
        alone = drawn(pipe, image=image, mask=[MASK], seed=5 + i)
        np.testing.assert_array_equal(each[i], alone[0])


def test_the_picture_outside_the_mask_does_not_change(pipe: SDXLPipeline) -> None:
    [found] = drawn(pipe, "np", image=IMAGE, mask=MASK, strength=1)
    np.testing.assert_array_equal(found[MASK == 0], IMAGE[MASK == 0])
    assert np.abs(found - IMAGE)[:, 12:].mean() > 0.05
    [picture] = drawn(pipe, "pil", image=IMAGE, mask=MASK, strength=1)
    np.testing.assert_array_equal(np.asarray(picture), to_bytes(found))


def test_latents_are_the_noise_that_is_added(pipe: SDXLPipeline) -> None:
    noise = RNG.normal(size=(1, *pipe._compiled.latents_shape)).astype(np.float32)
    given: dict[str, Any] = {"image": IMAGE, "strength": 0.5, "latents": noise}
    assert not np.array_equal(drawn(pipe, **given), drawn(pipe, image=IMAGE, strength=0.5))
    # A mask of ones keeps nothing.
    np.testing.assert_array_equal(
        drawn(pipe, **given), drawn(pipe, **given, mask=np.ones_like(MASK))
    )


def test_all_strength_with_a_mask_starts_from_noise_alone(pipe: SDXLPipeline) -> None:
    every = np.ones_like(MASK)
    assert relative_error(drawn(pipe, image=IMAGE, mask=every, strength=1), drawn(pipe)) < 1e-5


def test_the_masked_part_alone_is_pasted_into_the_whole_picture(pipe: SDXLPipeline) -> None:
    given: dict[str, Any] = {"image": LARGE, "mask": LARGE_MASK, "padding": 4, "strength": 1}
    [found] = drawn(pipe, "np", **given)
    assert found.shape == LARGE.shape
    np.testing.assert_array_equal(found[LARGE_MASK == 0], LARGE[LARGE_MASK == 0])
    assert np.abs(found - LARGE)[LARGE_MASK == 1].mean() > 0.05
    [picture] = drawn(pipe, "pil", **given)
    assert picture.size == (90, 60)
    settings = metadata.from_text(picture.info[metadata.KEY])
    assert (settings.width, settings.height) == (16, 16)
    assert (settings.strength, settings.padding) == (1, 4)


def test_pictures_of_other_sizes_are_fitted(pipe: SDXLPipeline) -> None:
    picture = Image.fromarray(to_bytes(LARGE))
    mask = Image.fromarray(to_bytes(LARGE_MASK))
    [found] = drawn(pipe, "pil", image=picture, mask=mask)
    assert found.size == (16, 16)


def test_strength_is_in_the_settings_of_pictures_from_pictures(pipe: SDXLPipeline) -> None:
    def settings(**options: Any) -> metadata.Settings:
        [picture] = drawn(pipe, "pil", **options)
        return metadata.from_text(picture.info[metadata.KEY])

    assert settings(image=IMAGE).strength == 0.8
    assert settings(image=IMAGE, strength=0.5).strength == 0.5
    assert settings().strength is None


def test_variations_and_pictures_go_together(pipe: SDXLPipeline) -> None:
    given: dict[str, Any] = {"image": IMAGE, "strength": 0.75}
    varied = drawn(pipe, **given, variation_strength=1.0, variation_seed=9)
    assert relative_error(varied, drawn(pipe, **given, seed=9)) < 1e-4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mask": MASK}, "mask is given without image; pass image too, or leave it out"),
        ({"strength": 0.5}, "strength is given without image"),
        ({"image": IMAGE, "padding": 8}, "padding is given without mask"),
        ({"image": IMAGE, "strength": 0.2}, "strength is 0.2, which leaves none of 4 steps"),
        ({"image": IMAGE, "strength": 0}, r"strength is 0; expected 0.01 to 1|a number from 0.01"),
        ({"image": IMAGE, "mask": MASK[:8]}, "mask is of size 16x8; expected 16x16"),
        ({"image": IMAGE, "mask": 0 * MASK}, "mask is empty; expected at least one white pixel"),
        ({"image": [IMAGE] * 3}, "image has 3 pictures; expected one, or 1, one for each"),
        ({"image": []}, "image has 0 pictures; expected one"),
        ({"image": "a.png"}, "image is of type str; expected a PIL picture"),
        ({"image": IMAGE, "mask": [MASK[None]]}, "mask has the shape"),
    ],
)
def test_refused_pictures(pipe: SDXLPipeline, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(pipe, **given)


@pytest.mark.parametrize("sides", [{"right": 20}, {"left": 7, "bottom": 9}])
def test_a_picture_is_extended(pipe: SDXLPipeline, sides: dict[str, int]) -> None:
    [found] = drawn(pipe, "np", image=LARGE, extend=sides, strength=1)
    left, bottom = sides.get("left", 0), sides.get("bottom", 0)
    height, width = LARGE.shape[:2]
    assert found.shape == (height + bottom, left + width + sides.get("right", 0), 3)
    # 16 pixels at the sides that grow are redrawn too.
    kept = LARGE[: height - 16, 16 : width - 16]
    np.testing.assert_array_equal(found[: height - 16, left + 16 : left + width - 16], kept)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"extend": {"left": 8}}, "extend needs image"),
        ({"extend": {"left": 8}, "image": IMAGE, "mask": MASK}, "makes the mask itself"),
        ({"extend": {"up": 8}, "image": IMAGE}, "extend has the key 'up'; expected 'top', 'left'"),
        ({"extend": {"left": -1}, "image": IMAGE}, r"extend\['left'\] is -1; expected 0 to"),
        ({"extend": {}, "image": IMAGE}, "no pixels are added at any side"),
        ({"enlarge": (24, 24)}, "the size is 24x24; expected one of 16x16"),
        ({"enlarge": (16, 16), "enlarge_strength": 2}, "strength is 2"),
    ],
)
def test_refused_sides_and_sizes(pipe: SDXLPipeline, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        drawn(pipe, **given)


def test_each_picture_is_drawn_again_with_its_own_prompt(pipe: SDXLPipeline) -> None:
    prompts = "a star", "a heart"
    both = drawn(pipe, prompt=prompts, images=2, enlarge=(16, 16))
    for i, prompt in enumerate(prompts):
        alone = drawn(pipe, prompt=prompt, images=1, seed=i, enlarge=(16, 16))
        np.testing.assert_array_equal(both[i], alone[0])


def test_pictures_drawn_again_go_on_with_changes_of_prompts(pipe: SDXLPipeline) -> None:
    given: dict[str, Any] = {"prompt_syntax": "a1111", "images": 1}
    prompt = "a [star:heart:0.5] [ring:box:6]"
    found = drawn(pipe, "np", prompt=prompt, enlarge=(16, 16), enlarge_strength=1.0, **given)
    [first] = drawn(pipe, "pil", prompt=prompt, **given)  # as its file has it
    given |= {"image": first, "strength": 1.0}
    np.testing.assert_array_equal(found, drawn(pipe, "np", prompt="a heart [ring:box:2]", **given))


def test_pictures_of_several_sizes_with_masks(pipe: SDXLPipeline) -> None:
    """They are drawn one by one, and refused before anything is drawn where an array is needed."""
    sizes = (LARGE.shape[:2], IMAGE.shape[:2])
    given: dict[str, Any] = {
        "image": [LARGE, IMAGE],
        "mask": [np.ones(size, np.float32) for size in sizes],
    }
    steps: list[int] = []
    result = pipe.generate("a star", num_inference_steps=4, images=2, padding=0, **given)
    assert [picture.size[::-1] for picture in result.images] == [*sizes]
    larger = pipe.generate("a star", images=2, padding=0, enlarge=(16, 16), **given)
    assert [picture.size for picture in larger.images] == [(16, 16)] * 2
    given["on_step"] = lambda *step: steps.append(step[0])
    with pytest.raises(InputError, match="image has pictures of the sizes"):
        pipe.generate("a star", images=2, padding=0, output_type="np", **given)
    assert not steps


def test_finished_pictures_are_drawn_again_in_another_size(pipe: SDXLPipeline) -> None:
    steps: list[tuple[int, int]] = []
    found = pipe.generate(
        "a star",
        num_inference_steps=4,
        images=2,
        enlarge=(16, 16),
        enlarge_strength=0.5,
        enlarge_steps=8,
        output_type="np",
        on_step=lambda *step: steps.append(step[:2]),
    )
    assert steps == [(i, 8) for i in range(1, 9)]
    first = drawn(pipe, "pil", images=2)  # as their files have them
    again = drawn(pipe, "np", images=2, image=[*first], strength=0.5, num_inference_steps=8)
    np.testing.assert_array_equal(found.images, again)


def test_a_larger_pictures_settings_draw_it_again(pipe: SDXLPipeline) -> None:
    [first] = drawn(
        pipe,
        "pil",
        prompt="a [star:heart:1.5]",
        prompt_syntax="a1111",
        enlarge=(16, 16),
        enlarge_strength=0.5,
    )
    settings = asdict(metadata.from_text(first.info[metadata.KEY])) | {"model": ""}
    [again] = drawn(pipe, "pil", **{name: settings[name] for name in SETTINGS})
    np.testing.assert_array_equal(np.asarray(first), np.asarray(again))
