"""A picture that four devices draw together, against the same picture on one."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import InputError, SDXLPipeline
from pipeline.families import read_config
from pipeline.runtime.compiled import choose_layout, make_mesh
from pipeline.runtime.programs import check_rows
from tests.checkpoints import EXECUTABLES, GOLDEN, SMALLEST, nothing_compiles
from tools.adapter_files import draw_adapter, is_projection, read_inventory, write_adapter

FLOAT32 = np.dtype(np.float32)
CLOSE = 1e-4  # of the largest number; sums are in another order
STEPS = 3


def start(devices: int, model: Path = SMALLEST, **more: Any) -> SDXLPipeline:
    return SDXLPipeline.from_pretrained(
        model,
        num_inference_steps=STEPS,
        devices=jax.devices()[:devices],
        step_cache=True,
        cache_dir=EXECUTABLES,
        **more,
    )


@pytest.fixture(scope="module")
def pipe() -> SDXLPipeline:
    return start(4, images_per_request=2, devices_per_picture=4)


@pytest.fixture(scope="module")
def alone() -> SDXLPipeline:
    """Return the pipeline of `tests/pipeline/test_step_cache.py`."""
    return start(2)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max() / np.abs(other).max())


@pytest.mark.slow
def test_four_devices_draw_the_picture_of_one(pipe: SDXLPipeline, alone: SDXLPipeline) -> None:
    """Whatever is asked for, nothing compiles."""
    assert pipe.facts.num_devices == 4
    assert pipe._compiled.mesh.shape == {"guidance": 2, "images": 1, "rows": 2}
    picture = np.random.default_rng(0).random((16, 16, 3), np.float32)
    mask = np.zeros((16, 16), np.float32)
    mask[5:] = 1  # its edge is inside a band
    draws: list[dict[str, Any]] = [
        {"output_type": "latent"},
        {"output_type": "np"},
        {"guidance_scale": 1.0},
        {"guidance_until": 0.5, "guidance_rescale": 0.7},
        {"scheduler": "euler-ancestral", "cache_interval": 2},
        {"variation_seed": 3, "variation_strength": 0.4},
        {"image": picture, "mask": mask, "strength": 0.7},
    ]
    for given in draws:
        more = {"output_type": "np", "images": 2, "seed": 7, **given}
        with nothing_compiles():
            ours = pipe.generate(["a red star", "a ring"], "blue", **more).images
        right = alone.generate(["a red star", "a ring"], "blue", **more).images
        assert difference(ours, right) < CLOSE, given


def test_loras_change_the_picture_of_four_devices_as_that_of_one(
    pipe: SDXLPipeline, alone: SDXLPipeline, tmp_path: Path
) -> None:
    inventory = read_inventory(SMALLEST)
    drawn = draw_adapter(inventory, "lora", 0, is_projection)
    write_adapter(tmp_path / "ink.safetensors", drawn, "kohya sdxl", inventory)
    given = {"seed": 7, "output_type": "np", "images": 1}
    without = pipe.generate("a red star", **given).images
    pictures = []
    for each in (pipe, alone):
        each.load_lora(tmp_path / "ink.safetensors")
        pictures.append(each.generate("a red star", loras={"ink": 0.5}, **given).images)
        each.unload_lora("ink")
    ours, right = pictures
    assert difference(ours, right) < CLOSE < difference(ours, without)
    np.testing.assert_array_equal(pipe.generate("a red star", **given).images, without)


@pytest.mark.slow
def test_the_tiny_vae_and_the_refiner_share_rows_too() -> None:
    more = {"tiny_vae": GOLDEN / "tiny_vae", "refiner": GOLDEN / "refiner/checkpoint"}
    sdxl = GOLDEN / "plain/checkpoint"
    pipes = (
        start(4, sdxl, images_per_request=1, devices_per_picture=4, **more),
        start(1, sdxl, images_per_request=1, **more),
    )
    given = {"seed": 7, "decoder": "tiny", "output_type": "np", "denoising_end": 0.5}
    ours, right = (pipe.generate("a red star", **given).images for pipe in pipes)
    assert difference(ours, right) < CLOSE


@pytest.mark.parametrize(
    ("devices", "images", "per_picture", "layout"),
    [
        (4, 4, 2, (2, 2, 1)),
        (4, 4, 4, (1, 2, 2)),
        (8, 4, 4, (2, 2, 2)),
        (8, 3, 4, (1, 2, 2)),
        (8, 1, 8, (1, 2, 4)),
        (7, 2, 6, (1, 2, 3)),
    ],
)
def test_layout(devices: int, images: int, per_picture: int, layout: tuple[int, int, int]) -> None:
    assert choose_layout(devices, images, per_picture) == layout


@pytest.mark.parametrize(
    ("devices", "per_picture", "right"), [(4, 3, "1, 2, 4"), (2, 4, "1, 2"), (1, 2, "1")]
)
def test_other_numbers_of_devices_are_refused(devices: int, per_picture: int, right: str) -> None:
    with pytest.raises(InputError, match=rf"_picture is {per_picture}, .*; expected {right}, so"):
        choose_layout(devices, 4, per_picture)


def test_heights_that_do_not_divide_are_refused(pipe: SDXLPipeline) -> None:
    with pytest.raises(InputError, match=r"height is 20; with devices_per_picture 4, .* of 8$"):
        pipe.check_size(20, 16)
    pipe.check_size(24, 20)
    config = read_config(SMALLEST)
    check_rows(config, make_mesh(jax.devices()[:4], 1, 2), 20)  # halves alone
    with pytest.raises(InputError, match=r"height is 24; with devices_per_picture 8, .* of 16$"):
        check_rows(config, make_mesh(jax.devices()[:8], 1, 8), 24)
