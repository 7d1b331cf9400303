"""A GPU's time by the class of its kernels."""

import re
from collections import Counter
from pathlib import Path

import jax

# The first pattern that matches a kernel's name gives its class.
CLASSES = {
    "attention": r"fmha|flash|sdpa|attention|cudnn.*mha",
    "convolution": r"conv|dgrad|wgrad|implicit_gemm|fprop",
    "matrix product": r"gemm|cutlass|nvjet|xmma|matmul|dot",
    "copy and layout": r"memcpy|memset|transpose|copy|concatenate|slice",
    "reduction": r"reduce|norm|softmax",
    "element by element": r"fusion|elementwise|wrapped|triton",
}
OTHER = "other"


def kind(kernel: str) -> str:
    """Return the class of a kernel."""
    found = (name for name, words in CLASSES.items() if re.search(words, kernel.lower()))
    return next(found, OTHER)


def by_class(folder: Path) -> dict[str, float]:
    """Return the milliseconds by class in a folder of `jax.profiler.trace`, most first."""
    [file] = folder.rglob("*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(file))
    spent: Counter[str] = Counter()
    for plane in profile.planes:
        if plane.name.startswith("/device:GPU"):
            # Only streams have the kernels; a device's other lines count the same time again.
            for line in plane.lines:
                if (line.name or "").startswith("Stream"):
                    for event in line.events:
                        spent[kind(event.name)] += event.duration_ns
    return {name: round(time / 1e6, 2) for name, time in spent.most_common()}
