"""Pictures to start from, together with schedulers, LoRAs, recipes and variations."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline import SDXLPipeline
from pipeline.schedulers.config import SCHEDULERS, SIGMA_KEYS
from tests.checkpoints import nothing_compiles, shared_pipeline
from tools.adapter_files import draw_adapter, write_adapter

RNG = np.random.default_rng(1)
IMAGES = RNG.uniform(size=(4, 16, 16, 3)).astype(np.float32)
MASK = np.zeros((16, 16), np.float32)
MASK[4:12, 4:] = 1
KEPT = MASK == 0
# A LoRA, and one that is recognised as that of a recipe.
LORAS = ("one", "sdxl_lightning_2step_lora")
# All schedulers, and their families once with each sequence of noise levels.
RUNS = [(name, "") for name in SCHEDULERS] + [("dpmsolver++", each) for each in SIGMA_KEYS.values()]


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SDXLPipeline]:
    pipe, folder = shared_pipeline(1), tmp_path_factory.mktemp("loras")
    inventory = pipe._adapters.inventory
    for seed, name in enumerate(LORAS):
        file = folder / f"{name}.safetensors"
        write_adapter(file, draw_adapter(inventory, "lora", seed), "kohya sdxl", inventory)
        pipe.load_lora(file)
    yield pipe
    for name in LORAS:
        pipe.unload_lora(name)
    pipe._adapters.select({})


def drawn(pipe: SDXLPipeline, **options: Any) -> np.ndarray:
    given: dict[str, Any] = {"images": 1, "num_inference_steps": 4, "seed": 5, **options}
    return pipe.generate("a star", output_type="np", **given).images


@pytest.mark.parametrize(("scheduler", "sigma_schedule"), RUNS)
def test_the_masked_part_alone_changes_and_has_the_same_bits_beside_others(
    pipe: SDXLPipeline, scheduler: str, sigma_schedule: str
) -> None:
    given: dict[str, Any] = {
        "mask": MASK,
        "strength": 0.75,
        "scheduler": scheduler,
        "sigma_schedule": sigma_schedule or None,
        "loras": {"one": 0.7},
    }
    each = drawn(pipe, images=4, image=[*IMAGES], **given)
    np.testing.assert_array_equal(each[:, KEPT], IMAGES[:, KEPT])
    assert np.isfinite(each).all()
    assert np.abs(each - IMAGES)[:, ~KEPT].mean() > 0.05
    alone = drawn(pipe, image=IMAGES[2], **given | {"seed": 7})
    np.testing.assert_array_equal(alone[0], each[2])


@pytest.mark.parametrize("scheduler", ["euler", "dpmsolver++-sde"])
def test_loras_and_variations_change_the_masked_part(pipe: SDXLPipeline, scheduler: str) -> None:
    given: dict[str, Any] = {"image": IMAGES[0], "mask": MASK, "scheduler": scheduler}
    changes: list[dict[str, Any]] = [
        {},
        {"loras": {"one": 0.7}},
        {"variation_strength": 0.5, "variation_seed": 9},
        {"loras": {"one": 0.7}, "variation_strength": 0.5, "variation_seed": 9},
    ]
    found = [drawn(pipe, **given, **change)[0] for change in changes]
    for i, one in enumerate(found):
        np.testing.assert_array_equal(one[KEPT], IMAGES[0][KEPT])
        assert not any(np.array_equal(one, other) for other in found[:i])


def test_a_recipe_with_a_picture_is_its_lora_with_its_settings(pipe: SDXLPipeline) -> None:
    given: dict[str, Any] = {"image": IMAGES[0], "mask": MASK, "strength": 0.5, "seed": 3}
    with nothing_compiles():
        found = drawn(pipe, recipe="lightning-2", num_inference_steps=None, **given)
    same = drawn(
        pipe,
        num_inference_steps=2,
        guidance_scale=1.0,
        scheduler="euler",
        timestep_spacing="trailing",
        loras={LORAS[1]: 1.0},
        **given,
    )
    np.testing.assert_array_equal(found, same)
