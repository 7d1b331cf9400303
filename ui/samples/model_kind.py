"""The kinds of models that the page has texts, examples and styles for."""

from enum import Enum

from pipeline.facts import Facts


class Kind(Enum):
    """The kind of a model, by the pictures that it can draw."""

    MINIATURE = "miniature"
    SDXL = "sdxl"
    OTHER = "other"


def kind_of(facts: Facts) -> Kind:
    """Return the kind of a model."""
    if facts.bundled:
        return Kind.MINIATURE
    return Kind.SDXL if "stable-diffusion-xl" in facts.name.lower() else Kind.OTHER
