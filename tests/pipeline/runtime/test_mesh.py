"""Choice of the devices, and messages about devices that are missing."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from pipeline.runtime.mesh import LARGE_PARAMETERS, worth_a_copy, worth_bfloat16


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


def test_a_large_checkpoint_is_not_copied_within_one_memory() -> None:
    devices = jax.devices()
    assert worth_a_copy(devices, LARGE_PARAMETERS) == devices
    assert worth_a_copy(devices, LARGE_PARAMETERS + 1) == devices[:1]
    accelerators = [SimpleNamespace(platform="tpu")] * 4
    assert len(worth_a_copy(accelerators, LARGE_PARAMETERS + 1)) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("platform", "flags", "parameters", "worth"),
    [
        ("cpu", "avx512_bf16 amx_bf16 amx_tile", LARGE_PARAMETERS + 1, True),
        ("cpu", "avx512_bf16 amx_bf16 amx_tile", LARGE_PARAMETERS, False),
        ("cpu", "avx512f avx512_bf16", LARGE_PARAMETERS + 1, True),
        ("cpu", "avx512f avx512bw", LARGE_PARAMETERS + 1, False),
        ("cpu", None, LARGE_PARAMETERS + 1, False),
        ("gpu", None, 1, True),
    ],
)
def test_bfloat16_where_the_hardware_has_it(
    platform: str,
    flags: str | None,
    parameters: int,
    worth: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = tmp_path / "cpuinfo"
    if flags is not None:
        info.write_text(f"processor\t: 0\nflags\t\t: fpu {flags} rdpid\n")
    monkeypatch.setattr("pipeline.runtime.mesh.CPU_INFO", info)
    device = SimpleNamespace(platform=platform)
    assert worth_bfloat16(device, parameters) == worth  # type: ignore[arg-type]
