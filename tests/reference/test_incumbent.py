"""Live agreement with diffusers 0.39's own Flax pipelines, which run in their own environment.

diffusers runs with torch's constants in place of its own (`tests.reference.incumbent`). The golden
files show how far its own constants change a picture.
"""

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.compat import (
    FlaxDiffusionPipeline,
    FlaxStableDiffusionImg2ImgPipeline,
    FlaxStableDiffusionInpaintPipeline,
)
from tests import compiling, flax_calls
from tests.reference.drawing import draw_flax_checkpoint
from tests.reference.tiny_checkpoints import FLAX, Tiny, write

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-incumbent/bin/python"
PICTURE_BOUND = 2 / 255
# The functions that draw by each class.
DRAWN: dict[type[FlaxDiffusionPipeline], Callable[..., dict[str, np.ndarray]]] = {
    FlaxDiffusionPipeline: flax_calls.pictures,
    FlaxStableDiffusionImg2ImgPipeline: flax_calls.from_picture,
    FlaxStableDiffusionInpaintPipeline: flax_calls.inpainted,
}


def draw(kind: type[FlaxDiffusionPipeline], tiny: Tiny, devices: int, folder: Path) -> None:
    """Assert that both programs draw the same from a checkpoint."""
    print(tiny)
    file = folder / "theirs.npz"
    write(tiny, folder / "checkpoint")
    command = [
        PYTHON,
        "-m",
        "tests.reference.incumbent",
        folder / "checkpoint",
        file,
        "--torch-constants",
    ]
    command += ["--devices", str(devices), "--kind", kind.__name__]
    environment = {**os.environ, **compiling.QUICKLY, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        ours = DRAWN[kind](*kind.from_pretrained(folder / "checkpoint"), [devices])
    assert process.returncode == 0
    with np.load(file, allow_pickle=False) as theirs:
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert ours[name].shape == array.shape
            assert np.abs(ours[name] - array).max() <= PICTURE_BOUND, name


@pytest.mark.parametrize(("xl", "devices"), [(True, 8), (False, 4)])
def test_pictures(xl: bool, devices: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    draw(FlaxDiffusionPipeline, drawn_checkpoint(request, xl=xl), devices, tmp_path)


@pytest.mark.parametrize(
    "kind", [FlaxStableDiffusionImg2ImgPipeline, FlaxStableDiffusionInpaintPipeline]
)
def test_pictures_from_pictures(kind: type[FlaxDiffusionPipeline], tmp_path: Path) -> None:
    tiny = FLAX["flax_sd"]
    if kind.takes_mask:
        tiny = dataclasses.replace(tiny, unet={**tiny.unet, "in_channels": 9, "out_channels": 4})
    draw(kind, tiny, 2, tmp_path)


def drawn_checkpoint(request: pytest.FixtureRequest, *, xl: bool) -> Tiny:
    rng = np.random.default_rng([request.config.getoption("--seed"), 39])
    return draw_flax_checkpoint(rng, xl=xl)
