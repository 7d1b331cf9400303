"""Which of the models the page has words, examples and styles for is running."""

from enum import Enum

from serving.generator import Model


class Kind(Enum):
    """What sort of pictures the model draws."""

    MINIATURE = "miniature"
    SDXL = "sdxl"
    OTHER = "other"


def kind_of(model: Model) -> Kind:
    """The kind of a model."""
    if model.bundled:
        return Kind.MINIATURE
    return Kind.SDXL if "stable-diffusion-xl" in model.name.lower() else Kind.OTHER
