"""The miniature changes the colour of a thing by inpainting, and the judge says so."""

from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from pipeline import BUNDLED, SDXLPipeline
from pipeline.images.inputs import to_bytes
from tests.checkpoints import miniature
from tools.miniature.drawing import draw
from tools.miniature.judge import judge_scene
from tools.miniature.scenes import COLOURS, SHAPES, Scene, Thing

SCENES = 12
STEPS = 12
AROUND = 8  # pixels around the thing that are redrawn too
RIGHT = 0.9
LORAS = BUNDLED / "loras"
STYLES = ("dusk", "glow")
QUICK = "miniature-quick"  # the LoRA of a recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    pipe = miniature()
    for name in (*STYLES, QUICK):
        pipe.load_lora(LORAS / f"{name}.safetensors")
    return pipe


def test_a_thing_gets_another_colour_and_the_rest_stays(pipe: SDXLPipeline) -> None:
    rng = np.random.default_rng(24)
    right: list[bool] = []
    for start in range(0, SCENES, 4):
        cases = [_case(rng, SHAPES[i % len(SHAPES)]) for i in range(start, start + 4)]
        images, masks, scenes = zip(*cases, strict=True)
        found = pipe.generate(
            [_prompt(scene) for scene in scenes],
            seed=start,
            num_inference_steps=STEPS,
            image=images,
            mask=masks,
            strength=1,
            output_type="np",
        ).images
        for picture, image, mask, scene in zip(found, images, masks, scenes, strict=True):
            assert np.abs(picture - image)[mask == 0].max() <= 2 / 255
            right.append(judge_scene(to_bytes(picture), scene).colour)
    assert np.mean(right) >= RIGHT


def test_the_bundled_loras_change_the_masked_part_alone(pipe: SDXLPipeline) -> None:
    image, mask, scene = _case(np.random.default_rng(5), SHAPES[0])

    def drawn(**options: Any) -> np.ndarray:
        given = {"num_inference_steps": STEPS, "seed": 1, "images": 1, **options}
        return pipe.generate(
            _prompt(scene), image=image, mask=mask, strength=1, output_type="np", **given
        ).images[0]

    [recipe] = pipe.facts.recipes
    quick = {"recipe": recipe.name, "num_inference_steps": None}
    every: list[dict[str, Any]] = [{}, quick, *({"loras": {name: 1.0}} for name in STYLES)]
    found = [drawn(**each) for each in every]
    for i, one in enumerate(found):
        np.testing.assert_array_equal(one[mask == 0], image[mask == 0])
        for other in found[:i]:
            assert np.abs(one - other)[mask == 1].mean() > 0.01
    assert judge_scene(to_bytes(found[1]), scene).colour
    np.testing.assert_array_equal(drawn(), found[0])


def _case(rng: np.random.Generator, shape: str) -> tuple[np.ndarray, np.ndarray, Scene]:
    """Return a picture of a thing, a mask around it, and the scene with another colour."""
    before, after, background = (str(each) for each in rng.choice([*COLOURS], 3, replace=False))
    picture = draw(_scene(shape, before, background), rng).astype(np.float32) / 255
    thing = np.abs(picture - picture[2, 2]).max(axis=-1) > 0.08
    mask = ndimage.binary_dilation(thing, iterations=AROUND).astype(np.float32)
    return picture, mask, _scene(shape, after, background)


def _scene(shape: str, colour: str, background: str) -> Scene:
    return Scene(background, (Thing(shape, colour, "medium"),), "centre", "flat")


def _prompt(scene: Scene) -> str:
    [thing] = scene.things
    return f"a {thing.colour} {thing.shape} on a {scene.background} background"
