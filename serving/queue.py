"""Who is next: first come, first served for each visitor, and the visitors take turns."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Round robin over visitors, so that one visitor's ten requests do not delay another's one."""

    def __init__(self) -> None:
        # In the order of the visitors' turns; a visitor without requests is not there.
        self._lines: dict[str, deque[T]] = {}

    def push(self, visitor: str, item: T) -> None:
        """Adds an item at the end of the visitor's own line."""
        self._lines.setdefault(visitor, deque()).append(item)

    def pop(self, ready: Callable[[T], bool] = lambda _: True) -> T | None:
        """Takes out the item that is next of those that are ready; None if there is none."""
        for visitor, item in self._in_turn():
            if ready(item):
                line = self._lines.pop(visitor)
                line.remove(item)
                if line:
                    self._lines[visitor] = line  # behind all other visitors
                return item
        return None

    def remove(self, visitor: str, item: T) -> None:
        """Takes out an item, wherever it is; one that is not there is no error."""
        line = self._lines.get(visitor, deque())
        if item in line:
            line.remove(item)
            if not line:
                del self._lines[visitor]

    def count(self, visitor: str) -> int:
        """How many items of a visitor there are."""
        return len(self._lines.get(visitor, ()))

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        """The items in the order in which they are next, should nobody else come."""
        return (item for _, item in self._in_turn())

    def _in_turn(self) -> Iterator[tuple[str, T]]:
        lines = list(self._lines.items())
        for turn in count():
            lines = [(visitor, line) for visitor, line in lines if turn < len(line)]
            if not lines:
                return
            for visitor, line in lines:
                yield visitor, line[turn]
