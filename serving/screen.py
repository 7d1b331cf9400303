"""Import of the operator's own function that screens finished pictures."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.images.moderation import Screen


def find(name: str) -> "Screen":
    """Return the function that `package.module:function` names.

    Raises:
        InputError: if it cannot be imported or is not callable; the message says why.
    """
    module, _, function = name.partition(":")
    try:
        screen = getattr(import_module(module), function)
    except Exception as error:  # a module can raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"--screen: {name} cannot be used: {reason}") from error
    if not callable(screen):
        raise InputError(f"--screen: {name} cannot be used: {screen!r} is not a function")
    return cast("Screen", screen)
