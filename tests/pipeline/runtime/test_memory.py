"""The memory of devices, and of a machine whose cgroups limit it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from pipeline.runtime.memory import available_memory, device_memory

KIB, GIB = 2**10, 2**30
MEMINFO = f"MemTotal: {32 * GIB // KIB} kB\nMemAvailable: {16 * GIB // KIB} kB\nSwapFree: {{}} kB\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a folder like the root of a machine with 16 GiB available and no cgroups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO.format(0))
    return tmp_path


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def available(machine: Path) -> int | None:
    return available_memory(machine / "proc", machine / "cgroup")


def test_without_cgroups_the_machines_memory_counts(machine: Path) -> None:
    assert available(machine) == 16 * GIB


def test_swap_counts(machine: Path) -> None:
    (machine / "proc/meminfo").write_text(MEMINFO.format(4 * GIB // KIB))
    assert available(machine) == 20 * GIB


def test_without_proc_the_memory_is_unknown(tmp_path: Path) -> None:
    assert available(tmp_path) is None


def test_a_group_with_a_limit(machine: Path) -> None:
    """Files that the group has in memory are given back when it is needed."""
    write(machine / "proc/self", cgroup="0::/service/one")
    inside = machine / "cgroup/service/one"
    write(inside, memory__max=4 * GIB, memory__current=3 * GIB)
    assert available(machine) == GIB
    write(inside, memory__stat=f"anon {GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}")
    assert available(machine) == 2.5 * GIB


def test_the_tightest_group_counts(machine: Path) -> None:
    write(machine / "proc/self", cgroup="0::/service/one")
    write(machine / "cgroup/service/one", memory__max="max", memory__current=GIB)
    write(machine / "cgroup/service", memory__max=2 * GIB, memory__current=GIB)
    assert available(machine) == GIB


def test_a_container_sees_its_group_as_the_root(machine: Path) -> None:
    write(machine / "proc/self", cgroup="0::/docker/1234")
    write(machine / "cgroup", memory__max=3 * GIB, memory__current=GIB)
    assert available(machine) == 2 * GIB


def test_the_first_version_of_cgroups(machine: Path) -> None:
    write(machine / "proc/self", cgroup="5:cpu:/other\n4:memory:/one")
    no_limit = 2**63 - 4096
    memory = machine / "cgroup/memory"
    write(memory, memory__limit_in_bytes=no_limit, memory__usage_in_bytes=GIB)
    assert available(machine) == 16 * GIB
    write(memory / "one", memory__limit_in_bytes=2 * GIB, memory__usage_in_bytes=GIB)
    write(memory / "other", memory__limit_in_bytes=GIB, memory__usage_in_bytes=GIB)
    assert available(machine) == GIB


def test_the_first_version_counts_files_of_groups_inside(machine: Path) -> None:
    write(machine / "proc/self", cgroup="4:memory:/pod/one")
    pod = machine / "cgroup/memory/pod"
    write(pod, memory__limit_in_bytes=4 * GIB, memory__usage_in_bytes=3 * GIB)
    write(pod, memory__stat=f"inactive_file 0\ntotal_inactive_file {2 * GIB}")
    assert available(machine) == 3 * GIB


def test_a_group_may_swap_within_its_limit_of_swap(machine: Path) -> None:
    (machine / "proc/meminfo").write_text(MEMINFO.format(4 * GIB // KIB))
    write(machine / "proc/self", cgroup="0::/one")
    inside = machine / "cgroup/one"
    write(inside, memory__max=2 * GIB, memory__current=GIB)
    assert available(machine) == 5 * GIB
    write(inside, memory__swap__max=2 * GIB, memory__swap__current=GIB)
    assert available(machine) == 2 * GIB
    write(inside, memory__swap__max=0)
    assert available(machine) == GIB


@pytest.mark.parametrize(
    ("stats", "memory"),
    [
        (None, None),
        ({"bytes_limit": 0}, None),
        ({"bytes_limit": 7}, 7),
        ({"bytes_limit": 7, "bytes_in_use": 3}, 4),
    ],
)
def test_an_accelerators_memory_is_what_it_reports(
    stats: dict[str, int] | None, memory: int | None
) -> None:
    device: Any = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    assert device_memory(device) == memory


def test_the_memory_of_this_machine_is_found() -> None:
    assert device_memory(jax.devices()[0]) == pytest.approx(available_memory(), rel=0.3)
