"""Choice of the devices, and messages about devices that are missing."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("program", [["-m", "pipeline", "a star"], ["app.py", "--port", "0"]])
def test_a_platform_that_is_not_there_is_one_line(platform: str, program: list[str]) -> None:
    if program[0] == "app.py":
        program = ["app.py", "--port", "18917"]
    done = subprocess.run(
        [sys.executable, *program],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "no device" in line]
    assert f"JAX_PLATFORMS is '{platform}'" in line


@pytest.mark.parametrize(
    ("images", "cores", "devices"), [(4, 2, 2), (4, 3, 2), (3, 64, 3), (1, 8, 1)]
)
def test_cores_share_pictures_equally(images: int, cores: int, devices: int) -> None:
    program = (
        f"import os; os.cpu_count = lambda: {cores}\n"
        "import jax\nfrom pipeline.runtime.mesh import cores_as_devices\n"
        f"cores_as_devices({images}); print(jax.device_count())"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for asked, found in ((None, devices), ("5", 5)):
        chosen = environment if asked is None else {**environment, "JAX_NUM_CPU_DEVICES": asked}
        done = subprocess.run(
            [sys.executable, "-c", program], env=chosen, capture_output=True, text=True, check=True
        )
        assert int(done.stdout) == found
