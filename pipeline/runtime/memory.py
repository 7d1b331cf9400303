"""Available memory: of each device, or of the whole machine for a CPU."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from pipeline.platforms import cgroup_folders

# For each version of cgroups: the name of its controller and folder, and the files with a group's
# limit and its usage.
CGROUP_FILES = (
    ("", "memory.max", "memory.current"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# The page cache, which the system frees when memory is needed.
RECLAIMABLE = ("inactive_file", "active_file")
# The files of the second version with a group's limit and its usage of swap.
SWAP_FILES = ("memory.swap.max", "memory.swap.current")


def device_memory(device: jax.Device) -> int | None:
    """Return the number of bytes that JAX can still use on a device; None if it is not known.

    On a CPU this is the memory available on the machine, which all its devices share.
    """
    if device.platform == "cpu":
        return available_memory()
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0) or None


def gigabytes(size: int) -> str:
    """Return a number of bytes in GB, or in MB where it is small."""
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def available_memory(
    proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Return the bytes that this process can still allocate, with swap; None if not known.

    This is the least of the bytes that the machine and each of the process's cgroups allow.
    """
    machine = _numbers(proc / "meminfo")
    if "MemAvailable:" not in machine:
        return None
    machine_memory, swap = 1024 * machine["MemAvailable:"], 1024 * machine.get("SwapFree:", 0)
    return min([machine_memory + swap, *_allowed(proc, cgroups, swap)])


def _allowed(proc: Path, cgroups: Path, swap: int) -> Iterator[int]:
    """Yield the bytes that each cgroup of the process still allows, the innermost first.

    `swap` is the machine's free swap.
    """
    for controller, limit_file, use_file in CGROUP_FILES:
        for folder in cgroup_folders(controller, proc, cgroups):
            limit, use = _number(folder / limit_file), _number(folder / use_file)
            if limit is not None and use is not None:
                yield max(limit - max(use - _page_cache(folder), 0), 0) + _swap(folder, swap)


def _page_cache(group: Path) -> int:
    """Return the bytes of a cgroup's page cache, which the system frees when memory is needed."""
    use = _numbers(group / "memory.stat")
    # In the first version only the numbers named total_ include the groups inside.
    return sum(use.get(f"total_{name}", use.get(name, 0)) for name in RECLAIMABLE)


def _swap(group: Path, free_swap: int) -> int:
    """Return the bytes of the machine's free swap that a cgroup allows."""
    limit, use = (_number(group / file) for file in SWAP_FILES)
    return free_swap if limit is None or use is None else min(free_swap, max(limit - use, 0))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # there is no such file, or no limit: "max"
        return None


def _numbers(file: Path) -> Mapping[str, int]:
    """Parse a file that has a name and a number on each line."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
