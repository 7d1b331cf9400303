"""Import of the operator's own function that screens finished pictures."""

from typing import TYPE_CHECKING

from pipeline.functions import import_function

if TYPE_CHECKING:
    from pipeline.images.moderation import Screen


def find(name: str) -> "Screen":
    """Return the function that `package.module:function` names.

    Raises:
        InputError: if it cannot be imported or is not callable; the message says why.
    """
    return import_function(name, "--screen")
