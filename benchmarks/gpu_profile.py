"""A GPU's time by kernel, and by the class of its kernels."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import jax

# The first pattern that matches a kernel's name gives its class. A name may contain several: a
# fusion is named for what it fuses, and cuBLAS sums the parts of a product in a reduction.
CLASSES = {
    "attention": r"fmha|flash|sdpa|attention|cudnn.*mha",
    "convolution": r"conv(?!ert)|dgrad|wgrad|implicit_gemm|fprop",
    "matrix product": r"gemm|cutlass|nvjet|xmma|matmul|splitk|(?<![a-z])dot",
    "copy and layout": r"memcpy|memset|transpose|copy|concatenate|slice|nchwtonhwc|nhwctonchw",
    "reduction": r"reduce|norm(?!al)|softmax",
    "element by element": r"fusion|elementwise|wrapped|triton",
}
OTHER = "other"
LONGEST = 20


def kind(kernel: str) -> str:
    """Return the class of a kernel."""
    names = (name for name, words in CLASSES.items() if re.search(words, kernel.lower()))
    return next(names, OTHER)


def kernels(folder: Path) -> dict[str, tuple[float, int]]:
    """Return the milliseconds and the calls of each kernel in a folder of `jax.profiler.trace`."""
    [file] = folder.rglob("*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(file))
    times: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for plane in profile.planes:
        if plane.name.startswith("/device:GPU"):
            # Only streams have the kernels; a device's other lines count the same time again.
            for line in plane.lines:
                if (line.name or "").startswith("Stream"):
                    for event in line.events:
                        times[event.name] += event.duration_ns
                        calls[event.name] += 1
    return {name: (time / 1e6, calls[name]) for name, time in times.most_common()}


def by_class(times: dict[str, tuple[float, int]]) -> dict[str, float]:
    """Return the milliseconds by class, most first."""
    classes: Counter[str] = Counter()
    for name, (time, _) in times.items():
        classes[kind(name)] += time  # type: ignore[assignment]
    return {name: round(time, 2) for name, time in classes.most_common()}


def longest(times: dict[str, tuple[float, int]]) -> list[dict[str, Any]]:
    """Return the kernels that take longest, most first."""
    return [
        {"kernel": name, "class": kind(name), "milliseconds": round(time, 2), "calls": calls}
        for name, (time, calls) in list(times.items())[:LONGEST]
    ]
