"""The kinds of models that the page has texts, examples and styles for."""

from enum import Enum

from serving.generator import Model


class Kind(Enum):
    """The kind of a model, by the pictures that it can draw."""

    MINIATURE = "miniature"
    SDXL = "sdxl"
    OTHER = "other"


def kind_of(model: Model) -> Kind:
    """Return the kind of a model."""
    if model.bundled:
        return Kind.MINIATURE
    return Kind.SDXL if "stable-diffusion-xl" in model.name.lower() else Kind.OTHER
