"""The choices by platform."""

import os
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from pipeline.platforms import (
    LARGE_PARAMETERS,
    PLAIN,
    PLATFORMS,
    by_platform,
    network_dtype,
    platform_of,
    usable_cores,
    worth_a_copy,
    worth_bfloat16,
)
from pipeline.runtime.sampler import FORMS


@pytest.mark.parametrize(
    ("named", "accelerator", "dtype", "forward"),
    [
        ("cpu", False, "float32", "picture"),
        ("tpu", True, "bfloat16", "half"),
        ("gpu", True, "bfloat16", "slots"),
        ("gpu 6.1", True, "float16", "slots"),
        ("gpu 7.5", True, "float16", "slots"),
        ("gpu 8.0", True, "bfloat16", "slots"),
        ("gpu 12.0", True, "bfloat16", "slots"),
        ("gpu gfx942", True, "bfloat16", "slots"),
        ("another", True, "bfloat16", "slots"),
    ],
)
def test_the_choices_of_a_device(named: str, accelerator: bool, dtype: str, forward: str) -> None:
    name, _, capability = named.partition(" ")
    device = SimpleNamespace(
        platform=name, **({"compute_capability": capability} if capability else {})
    )
    assert network_dtype(None, [device]).name == dtype  # type: ignore[list-item]
    if accelerator:
        assert worth_bfloat16(device, 1) is (dtype == "bfloat16")  # type: ignore[arg-type]
    chosen = platform_of(device)  # type: ignore[arg-type]
    assert (chosen.is_accelerator, chosen.dtype) == (accelerator, dtype)
    assert chosen.forward == forward


def test_every_form_of_the_forward_passes_exists() -> None:
    assert {platform.forward for platform in PLATFORMS.values()} == FORMS.keys()


@pytest.mark.parametrize("platform", sorted(PLATFORMS.keys() - {"cuda before 8.0"}))
def test_a_program_has_its_platforms_form_or_else_the_plain_one(platform: str) -> None:
    name = PLATFORMS[platform].attention
    own, plain = (lambda x: jnp.sin(x)), (lambda x: jnp.cos(x))

    def lowered(**forms) -> str:
        program = jax.jit(lambda x: by_platform("attention", forms, x)).trace(jnp.ones(1))
        return program.lower(lowering_platforms=(platform,)).as_text()

    with_own = lowered(**{PLAIN: plain, name: own})
    assert "sine" in with_own
    assert "cosine" not in with_own
    assert "cosine" in lowered(**{PLAIN: plain})


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
    monkeypatch.setattr("pipeline.platforms.CPU_INFO", info)
    device = SimpleNamespace(platform=platform)
    assert worth_bfloat16(device, parameters) == worth  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("root", "inner", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("150000 100000", "max 100000", 2),
        ("max 100000", "300000 100000", 3),
        ("1000 100000", None, 1),
        (None, None, 8),
        ("9999999 100000", "nonsense", 8),
    ],
)
def test_cores_are_those_of_the_affinity_and_the_quota(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    root: str | None,
    inner: str | None,
    cores: int,
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/system.slice/sdxl.service\n")
    for folder, limit in ((tmp_path, root), (tmp_path / "system.slice/sdxl.service", inner)):
        folder.mkdir(parents=True, exist_ok=True)
        if limit is not None:
            (folder / "cpu.max").write_text(f"{limit}\n")
    assert usable_cores(tmp_path, tmp_path) == cores


def test_cores_without_cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    assert usable_cores(tmp_path, tmp_path) == 3
