"""Live agreement with diffusers 0.39's own Flax pipelines, which run in their own environment.

diffusers runs with torch's constants in place of its own (`tools.incumbent`). The golden files show
how far its own constants change a picture.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pipeline.compat import FlaxDiffusionPipeline
from tests import compiling
from tests.reference.drawing import draw_flax_checkpoint
from tools import flax_calls, torch_reference
from tools.tiny_checkpoints import write

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-incumbent/bin/python"
PICTURE_BOUND = 2 / 255


@pytest.mark.parametrize(("xl", "devices"), [(True, 8), (False, 4)])
def test_pictures(xl: bool, devices: int, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    torch_reference.prepare_for_tiny()
    rng = np.random.default_rng([request.config.getoption("--seed"), 39])
    tiny = draw_flax_checkpoint(rng, xl=xl)
    print(tiny)
    folder, file = tmp_path / "checkpoint", tmp_path / "theirs.npz"
    write(tiny, folder)
    command = [PYTHON, "-m", "tools.incumbent", folder, file, "--torch-constants"]
    command += ["--devices", str(devices)]
    environment = {**os.environ, **compiling.QUICKLY, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        ours = flax_calls.pictures(*FlaxDiffusionPipeline.from_pretrained(folder), [devices])
    assert process.returncode == 0
    with np.load(file, allow_pickle=False) as theirs:
        assert set(ours) == set(theirs)
        for name, array in theirs.items():
            assert ours[name].shape == array.shape
            assert np.abs(ours[name] - array).max() <= PICTURE_BOUND, name
