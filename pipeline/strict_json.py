"""JSON files that are read key by key, so that no key is silently ignored."""

import json
import math
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

from pipeline.errors import CheckpointError

LARGEST = 2**20  # limit of a count or width in a configuration; more is a mistake or an attack
MOST_BYTES = 2**24  # of a file


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


def _beginning(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


class StrictJson:
    """A JSON file whose keys are taken one at a time; `finish` refuses the keys that are left.

    Most keys have neutral values alone, which `expect` reads from a table; a class of pydantic's
    would declare each of them as a field. A `text` stands in place of the file's; `path` then says
    where it is. Neither may have more than `most` bytes.
    """

    def __init__(self, path: Path | str, text: str | None = None, most: int = MOST_BYTES):
        self.where = str(path)
        try:
            content = _beginning(Path(path), most + 1) if text is None else text.encode()
            if len(content) > most:
                raise ValueError(f"it has more than {most} bytes")
            values = json.loads(content.decode())
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

        An int is accepted where a float is expected. A float must be finite. With None for the
        default, the value may be None too.
        """
        value = self.values.pop(key, default)
        if value is ...:
            raise CheckpointError(f"{self.where}: {key} is missing")
        if value is None and default is None:
            return None
        if kind is float and type(value) is int and abs(value) < 2**53:
            value = float(value)
        wrong = not isinstance(value, kind) or (
            isinstance(value, bool) and kind not in (bool, object)
        )
        if wrong or (kind is float and not math.isfinite(cast(float, value))):
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

    def size(self, key: str, default: Any = ...) -> Any:
        """Return the value under `key`, which must be an integer from 1 to `LARGEST`."""
        value = self.take(key, int, default)
        if value is not None and not 1 <= value <= LARGEST:
            raise self.error(key, value, f"an integer from 1 to {LARGEST}")
        return value

    def sizes(self, key: str, default: Any = ...) -> tuple[int, ...]:
        """Return the list under `key`, which must hold integers from 1 to `LARGEST`."""
        value = self.take(key, list, default)
        if not value or not all(map(_is_size, value)):
            raise self.error(key, value, f"a list of integers from 1 to {LARGEST}")
        return tuple(value)

    def numbers(self, key: str, count: int, default: list[float] | None) -> Any:
        """Return the list under `key` as a tuple of `count` floats; None where it is None."""
        value = self.take(key, list, default)
        # Check the size before converting: an int may be too large for a float.
        if value is None or (
            len(value) == count
            and all(type(item) in (int, float) and abs(item) < 1e6 for item in value)
        ):
            return value and tuple(map(float, value))
        raise self.error(key, value, f"a list of {count} numbers, one per channel")

    def several(self, key: str, count: int, default: Any = ...) -> tuple[Any, ...]:
        """Return `count` values; the file has one for all, or a list."""
        value = self.take(key, object, default)
        values = tuple(value) if isinstance(value, list) else (value,) * count
        if len(values) != count:
            raise self.error(key, value, f"one value, or a list of {count}")
        return values

    def several_sizes(self, key: str, count: int, default: Any = ...) -> tuple[int, ...]:
        """Return `count` integers from 1 to `LARGEST`; the file has one for all, or a list."""
        stated_value = self.values.get(key)
        values = self.several(key, count, default)
        if not all(map(_is_size, values)):
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

    def expect(self, neutral_values: Mapping[str, Sequence[Any]]) -> None:
        """Refuse values of keys other than those in a table; a key that is missing is right."""
        for key, allowed in neutral_values.items():
            self.one_of(key, allowed)

    def finish(self, *unused: str) -> None:
        """Raise CheckpointError if a key is left, except for those that no picture depends on.

        Names that start with "_" are notes.
        """
        for key, value in self.values.items():
            if key not in unused and not key.startswith("_"):
                raise CheckpointError(f"{self.where}: unknown key {key} = {value!r}")


def _is_size(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST
