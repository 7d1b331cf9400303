"""Choice of the devices, and messages about devices that are missing."""

import os
import subprocess
import sys

import pytest


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("platform", "program"),
    [
        ("cuda", ["-m", "pipeline", "a star"]),
        pytest.param("tpu", ["app.py", "--port", "18917"], marks=pytest.mark.slow),
    ],
)
def test_a_missing_platform_is_reported_in_one_line(platform: str, program: list[str]) -> None:
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


# Each case needs a process that has no devices yet: copies of one that has imported JAX are quick.
COUNT = """
import os, sys, jax
from pipeline.runtime.mesh import cores_as_devices
for case in sys.argv[1:]:
    images, cores = map(int, case.split(","))
    if os.fork():
        os.wait()
        continue
    os.sched_getaffinity = lambda _: range(cores)
    cores_as_devices(images)
    print(jax.device_count(), flush=True)
    os._exit(0)
"""


@pytest.mark.lasting
@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ({}, "2213"),
        pytest.param({"JAX_NUM_CPU_DEVICES": "5"}, "5555", marks=pytest.mark.slow),
    ],
)
def test_cores_share_pictures_equally(asked: dict[str, str], devices: str) -> None:
    cases = "4,2", "4,3", "1,8", "3,64"
    done = subprocess.run(
        [sys.executable, "-c", COUNT, *cases],
        env={**os.environ, "JAX_PLATFORMS": "cpu"} | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == list(devices)
