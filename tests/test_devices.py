"""What is said of devices that are not there."""

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
        timeout=120,
    )
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "no device" in line]
    assert f"JAX_PLATFORMS is '{platform}'" in line
