"""Tests that are coroutines."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

# The arguments that a `run` function gives to its test, before the fixtures.
PROVIDED = {"app", "generator", "pipe"}


def run_by(run: Callable[..., Any], *fixtures: str, **options: Any) -> Callable[..., Any]:
    """Let a function run a test, which it gets as its first argument.

    The values of `fixtures` and the `options` are its other arguments. Pytest gives the test all
    arguments but those that are `PROVIDED`.
    """

    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        signature = inspect.signature(test)
        wanted = [name for name in signature.parameters if name not in PROVIDED]

        @functools.wraps(test)
        def whole(**values: Any) -> None:
            bound = functools.partial(test, **{name: values[name] for name in wanted})
            run(bound, *(values[name] for name in fixtures), **options)

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
            for name in dict.fromkeys([*fixtures, *wanted])
        ]
        whole.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return whole

    return decorate


def run_alone(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a new event loop."""
    asyncio.run(test())
