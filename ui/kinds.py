"""Which of the models the page has words, examples and styles for is running."""

from enum import Enum


class Kind(Enum):
    """What sort of pictures the model draws."""

    MINIATURE = "miniature"
    SDXL = "sdxl"
    OTHER = "other"


def kind_of(name: str, *, bundled: bool) -> Kind:
    """The kind of the model called `name`; `bundled` is true for the miniature shipped here."""
    if bundled:
        return Kind.MINIATURE
    return Kind.SDXL if "stable-diffusion-xl" in name.lower() else Kind.OTHER
