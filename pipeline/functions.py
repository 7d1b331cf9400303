"""Import of the operator's own functions."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pipeline.errors import InputError


def import_function(name: str, setting: str) -> Callable[..., Any]:
    """Return the function that `package.module:function` names.

    Args:
        name: the name of the function.
        setting: the setting that it was given as, for messages.

    Raises:
        InputError: if it cannot be imported or is not callable; the message says why.
    """
    module, _, function = name.partition(":")
    try:
        imported = getattr(import_module(module), function)
    except Exception as error:  # a module can raise anything when it is imported
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{setting}: {name} cannot be used: {reason}") from error
    if not callable(imported):
        raise InputError(f"{setting}: {name} cannot be used: {imported!r} is not a function")
    return imported
