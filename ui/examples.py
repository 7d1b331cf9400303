"""Prompts to begin with, for each kind of model; the page shows 60 characters of each."""

from ui.kinds import Kind

_MINIATURE = (
    "a large red star on a blue background",
    "a small white circle inside a large red square",
    "a glossy pink heart on a black background",
    "a yellow moon above a green triangle",
    "an outlined orange hexagon on a cyan background",
)
_SDXL = (
    "a lighthouse on a cliff at dusk, mist over the sea",
    "portrait of an old fisherman in a yellow raincoat",
    "a bowl of ramen on a wooden counter, steam rising",
    "an astronaut resting in a meadow of wild flowers",
    "a narrow old street after rain, lanterns, reflections",
)


def examples_for(kind: Kind) -> tuple[str, ...]:
    """Example prompts that suit a model of this kind."""
    return _MINIATURE if kind is Kind.MINIATURE else _SDXL
