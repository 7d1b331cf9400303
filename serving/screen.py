"""The function by which an operator has finished pictures screened."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pipeline.errors import InputError

if TYPE_CHECKING:
    from pipeline.images.screen import Screen


def find(name: str) -> "Screen":
    """The function that `package.module:function` names.

    Raises:
        InputError: it cannot be imported, or is none; the message says why.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # importing it runs whatever stands there
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"--screen: {name} cannot be used: {reason}") from error
    if not callable(found):
        raise InputError(f"--screen: {name} cannot be used: {found!r} is no function")
    return cast("Screen", found)
