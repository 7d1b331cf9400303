"""JSON files that are read key by key, so that no key is silently ignored."""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from pipeline.errors import CheckpointError

LARGEST = 2**20  # limit of a count or width in a configuration; more is a mistake or an attack


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; this is an `object_pairs_hook` of `json.loads`.

    Raises:
        ValueError: if it has two values of one name.
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it has {reprlib.repr(name)} twice")
    return values


class StrictJson:
    """A JSON file whose keys are taken one at a time; `finish` refuses the keys that are left."""

    def __init__(self, path: Path):
        self.where = str(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(f"{path}: this file is missing from the checkpoint") from None
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: not a readable JSON file: {error}") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: expected a JSON object at the top")
        self.values: dict[str, Any] = values

    def error(self, key: str, value: object, expectation: str) -> CheckpointError:
        """Return the exception for an unsupported value; `expectation` says what is supported."""
        return CheckpointError(
            f"{self.where}: {key} = {value!r} is not supported; expected {expectation}"
        )

    def take(self, key: str, kind: type, default: Any = ...) -> Any:
        """Return the value under `key`, which must be of type `kind`.

        An int is accepted where a float is expected. A float must be finite.
        """
        value = self.values.pop(key, default)
        if value is ...:
            raise CheckpointError(f"{self.where}: {key} is missing")
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        wrong = not isinstance(value, kind) or (kind is not bool and isinstance(value, bool))
        if wrong or (kind is float and not math.isfinite(value)):
            raise self.error(key, value, f"a value of type {kind.__name__}")
        return value

    def inner(self, key: str) -> "StrictJson":
        """Return the object under `key` as `StrictJson`; an empty one if the key is missing."""
        values = self.values.pop(key, None)
        values = {} if values is None else values
        if not isinstance(values, dict):
            raise self.error(key, values, "an object")
        content = copy(self)
        content.where, content.values = f"{self.where}: {key}", values
        return content

    def positive(self, key: str, default: float) -> float:
        """Return the value under `key`, which must be a number above 0."""
        value = self.take(key, float, default)
        if value <= 0:
            raise self.error(key, value, "a number above 0")
        return value

    def size(self, key: str, default: Any = ...) -> int:
        """Return the value under `key`, which must be an integer from 1 to `LARGEST`."""
        value = self.take(key, int, default)
        if not 1 <= value <= LARGEST:
            raise self.error(key, value, f"an integer from 1 to {LARGEST}")
        return value

    def sizes(self, key: str, default: Any = ...) -> tuple[int, ...]:
        """Return the list under `key`, which must hold integers from 1 to `LARGEST`."""
        value = self.take(key, list, default)
        if not value or not all(type(item) is int and 1 <= item <= LARGEST for item in value):
            raise self.error(key, value, f"a list of integers from 1 to {LARGEST}")
        return tuple(value)

    def per_block(self, key: str, blocks: int, default: Any = ...) -> tuple[Any, ...]:
        """Return one value per block; the file has one for all blocks, or a list."""
        value = self.values.pop(key, default)
        if value is ...:
            raise CheckpointError(f"{self.where}: {key} is missing")
        values = tuple(value) if isinstance(value, list) else (value,) * blocks
        if len(values) != blocks:
            raise self.error(key, value, f"one value, or a list of {blocks}, one per block")
        return values

    def sizes_per_block(self, key: str, blocks: int, default: int) -> tuple[int, ...]:
        """Return one integer from 1 to `LARGEST` per block; the file has one for all, or a list."""
        stated_value = self.values.get(key)
        values = self.per_block(key, blocks, default)
        if not all(type(value) is int and 1 <= value <= LARGEST for value in values):
            raise self.error(key, stated_value, f"integers from 1 to {LARGEST}")
        return values

    def one_of(self, key: str, allowed: Sequence[Any], default: Any = ...) -> Any:
        """Return the value under `key`, which must be in `allowed`.

        A missing key means `default`, or the first allowed value where no default is given.
        """
        value = self.values.pop(key, allowed[0] if default is ... else default)
        # `True == 1` in Python, but not in a config.
        if not any(value == option and type(value) is type(option) for option in allowed):
            raise self.error(key, value, " or ".join(repr(option) for option in allowed))
        return value

    def drop(self, *keys: str) -> None:
        """Discard keys that do not affect inference."""
        for key in keys:
            self.values.pop(key, None)

    def finish(self) -> None:
        """Raise CheckpointError if a key is left; names that start with "_" are notes."""
        for key, value in self.values.items():
            if not key.startswith("_"):
                raise CheckpointError(f"{self.where}: unknown key {key} = {value!r}")
